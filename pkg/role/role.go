// Package role is the instance's IAM role to those packages that speak to AWS: whose credentials they have, where they
// find its services, and what AWS calls a refusal.
package role

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials/ec2rolecreds"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"github.com/aws/smithy-go"
)

// Metadata reads a document of the instance metadata service, by its path below /latest/meta-data/. The error is an
// fs.ErrNotExist if there is none.
type Metadata func(ctx context.Context, path string) ([]byte, error)

// Line reads a document of one line.
func (m Metadata) Line(ctx context.Context, path string) (string, error) {
	body, err := m(ctx, path)
	return strings.TrimSpace(string(body)), err
}

// Credentials returns the role's credentials, which are asked for when they are needed first and kept until shortly
// before they expire. The error is an fs.ErrNotExist if the instance has no role.
func Credentials(metadata Metadata) *aws.CredentialsCache {
	return aws.NewCredentialsCache(ec2rolecreds.New(func(o *ec2rolecreds.Options) { o.Client = documents(metadata) }))
}

// documents is the metadata service in the shape that the SDK asks for. The SDK knows the role's documents and when to
// read them anew; how the service is asked is left to who knows that better.
type documents Metadata

// GetMetadata implements ec2rolecreds.GetMetadataAPIClient.
func (d documents) GetMetadata(ctx context.Context, in *imds.GetMetadataInput, _ ...func(*imds.Options)) (*imds.GetMetadataOutput, error) {
	body, err := d(ctx, strings.TrimPrefix(in.Path, "/"))
	if err != nil {
		return nil, err
	}
	return &imds.GetMetadataOutput{Content: io.NopCloser(bytes.NewReader(body))}, nil
}

// ErrNoRole is that the instance has no role to ask AWS with.
var ErrNoRole = errors.New("the instance has no IAM role")

// RefusedError is a request that IAM does not allow.
type RefusedError struct {
	// Action is what was asked for, by its name in IAM policies.
	Action string
}

// Error implements error.
func (e RefusedError) Error() string { return "the instance's role does not allow " + e.Action }

// Explain says in plain words why a request for an action failed that might take no longer than limit; the SDK's own text
// is a paragraph. The error is ErrNoRole, a RefusedError, or another that names the action; nil for nil.
func Explain(action string, limit time.Duration, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return ErrNoRole
	case Refused(err):
		return RefusedError{action}
	}
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		return fmt.Errorf("calling %s: %s: %s", action, api.ErrorCode(), api.ErrorMessage())
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("calling %s: no answer within %s", action, limit)
	}
	if sending, ok := errors.AsType[*url.Error](err); ok {
		err = sending.Err
	}
	return fmt.Errorf("calling %s: %w", action, err)
}

// Refused tells whether a service of AWS's has said that a request is not allowed, by whatever policy. Services have
// several words for it, some with the service's name before or "Exception" behind.
func Refused(err error) bool {
	switch word(err) {
	case "AccessDenied", "UnauthorizedOperation", "UnauthorizedAccess", "NotAuthorized", "Unauthorized":
		return true
	}
	return false
}

// Throttled tells whether a service of AWS's has said that too much is asked.
func Throttled(err error) bool {
	switch word(err) {
	case "Throttling", "Throttled", "ThrottledRequest", "RequestThrottled", "RequestLimitExceeded", "TooManyRequests", "SlowDown":
		return true
	}
	return false
}

// word is a service's word for what is wrong, without its name and "Exception"; empty if it has said none.
func word(err error) string {
	api, ok := errors.AsType[smithy.APIError](err)
	if !ok {
		return ""
	}
	code := api.ErrorCode()
	return strings.TrimSuffix(code[strings.LastIndexByte(code, '.')+1:], "Exception")
}
