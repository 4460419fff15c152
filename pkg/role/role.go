// Package role is the instance's IAM role: the credentials that the metadata service gives to whoever runs on the
// machine, for those packages that speak to AWS.
package role

import (
	"bytes"
	"context"
	"io"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials/ec2rolecreds"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
)

// Metadata reads a document of the instance metadata service, by its path below /latest/meta-data/. The error is an
// fs.ErrNotExist if there is none.
type Metadata func(ctx context.Context, path string) ([]byte, error)

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
