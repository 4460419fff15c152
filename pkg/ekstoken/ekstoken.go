// Package ekstoken makes the tokens by which an EKS cluster knows an IAM role, the instance's or another one, as "aws eks
// get-token" and aws-iam-authenticator do, but within the process: a program of Python's size need not be started first.
//
// A token is a request to STS, GetCallerIdentity, that was signed and not sent. The cluster sends it, and believes what
// STS answers. The header x-k8s-aws-id, which is signed too, names the cluster, so that no other can use the token.
package ekstoken

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/nth-project/nth/pkg/role"
)

const (
	// prefix begins every token, and says how to read the rest.
	prefix = "k8s-aws-v1."
	// clusterHeader names the cluster.
	clusterHeader = "x-k8s-aws-id"
	// life is how long a cluster takes a token for valid, less a minute for clocks that differ. The lifetime that stands
	// in the request is what STS asks for, and of no meaning to the cluster.
	life = 14 * time.Minute
	// noBody is the SHA-256 of nothing: the request has no body.
	noBody = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

// Source makes tokens. It asks nobody for anything before the first, and may be used from several goroutines.
type Source struct {
	credentials aws.CredentialsProvider
	// region is one's own, and domain that of AWS's services in a region.
	region func(ctx context.Context) (string, error)
	domain func(ctx context.Context, region string) (string, error)
	signer *v4.Signer
}

// New returns a Source for the role of the instance with this metadata service.
func New(metadata role.Metadata) *Source {
	return &Source{
		credentials: role.Credentials(metadata), signer: v4.NewSigner(),
		region: func(ctx context.Context) (string, error) { return line(ctx, metadata, "placement/region") },
		domain: func(ctx context.Context, _ string) (string, error) { return line(ctx, metadata, "services/domain") },
	}
}

// Of returns a Source for whoever has these credentials.
func Of(account aws.Config) *Source {
	return &Source{
		credentials: account.Credentials, signer: v4.NewSigner(),
		region: func(context.Context) (string, error) { return account.Region, nil },
		domain: func(_ context.Context, region string) (string, error) { return domainOf(region), nil },
	}
}

// domainOf is the domain of AWS's services in a region.
func domainOf(region string) string {
	if strings.HasPrefix(region, "cn-") {
		return "amazonaws.com.cn"
	}
	return "amazonaws.com"
}

// Token makes a token for a cluster, and tells how long it is good for. An empty region is one's own.
func (s *Source) Token(ctx context.Context, cluster, region string) (token string, expires time.Time, err error) {
	credentials, err := s.credentials.Retrieve(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return "", time.Time{}, errors.New("making a token for EKS: the instance has no IAM role")
	}
	if err != nil {
		return "", time.Time{}, fmt.Errorf("making a token for EKS: %w", err)
	}
	if region == "" {
		if region, err = s.region(ctx); err != nil {
			return "", time.Time{}, err
		}
	}
	if region == "" {
		return "", time.Time{}, errors.New("making a token for EKS: the region is not known")
	}
	domain, err := s.domain(ctx, region)
	if err != nil {
		return "", time.Time{}, err
	}
	now := time.Now()
	signed, err := s.sign(ctx, credentials, "sts."+region+"."+domain, cluster, region, now)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("making a token for EKS: %w", err)
	}
	return prefix + base64.RawURLEncoding.EncodeToString([]byte(signed)), now.Add(life), nil
}

// sign returns the URL of the signed request.
func (s *Source) sign(ctx context.Context, c aws.Credentials, host, cluster, region string, now time.Time) (string, error) {
	query := url.Values{"Action": {"GetCallerIdentity"}, "Version": {"2011-06-15"}, "X-Amz-Expires": {"60"}}
	address := url.URL{Scheme: "https", Host: host, Path: "/", RawQuery: query.Encode()}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), nil)
	if err != nil {
		return "", err
	}
	request.Header.Set(clusterHeader, cluster)
	signed, _, err := s.signer.PresignHTTP(ctx, c, request, noBody, "sts", region, now)
	return signed, err
}

// line reads a document of one line.
func line(ctx context.Context, metadata role.Metadata, path string) (string, error) {
	body, err := metadata(ctx, path)
	if err != nil {
		return "", fmt.Errorf("making a token for EKS: %w", err)
	}
	return strings.TrimSpace(string(body)), nil
}
