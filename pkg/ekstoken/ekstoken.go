// Package ekstoken makes the tokens by which an EKS cluster knows an IAM role, the instance's or another one, as "aws eks
// get-token" and aws-iam-authenticator do, but within the process: a program of Python's size need not be started first.
//
// A token is a request to STS, GetCallerIdentity, that was signed and not sent. The cluster sends it, and believes what
// STS answers. The header x-k8s-aws-id, which is signed too, names the cluster, so that no other can use the token.
package ekstoken

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/sts"

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
	// account says whose the credentials are, in which region, and what the environment says of endpoints.
	account func(ctx context.Context, region string) (aws.Config, error)
	signer  *v4.Signer
}

// New returns a Source for the role of the instance with this metadata service. region is its own; if that is "", the metadata
// service is asked for it, until it has told it once: like the credentials, it is not to be missed when the service is away.
func New(metadata role.Metadata, region string) *Source {
	credentials := role.Credentials(metadata) // which are kept
	var own atomic.Pointer[string]
	own.Store(&region)
	return &Source{signer: v4.NewSigner(), account: func(ctx context.Context, region string) (aws.Config, error) {
		known := cmp.Or(region, *own.Load())
		account, err := role.Config(ctx, role.Options{Metadata: metadata, Region: known})
		if err == nil && known == "" {
			own.Store(&account.Region)
		}
		account.Credentials = credentials
		return account, err
	}}
}

// Of returns a Source for whoever has these credentials.
func Of(account aws.Config) *Source {
	return &Source{signer: v4.NewSigner(), account: func(_ context.Context, region string) (aws.Config, error) {
		if region == "" {
			return account, nil
		}
		other := account.Copy()
		other.Region = region
		return other, nil
	}}
}

// host is where STS is in the account's region, by what the SDK knows of regions. Endpoints of one's own do not count: a
// cluster sends a token to none but AWS's.
func host(ctx context.Context, account aws.Config) (string, error) {
	account.BaseEndpoint = nil
	asked := sts.NewFromConfig(account).Options()
	found, err := sts.NewDefaultEndpointResolverV2().ResolveEndpoint(ctx, sts.EndpointParameters{
		Region:       &account.Region,
		UseFIPS:      new(asked.EndpointOptions.UseFIPSEndpoint == aws.FIPSEndpointStateEnabled),
		UseDualStack: new(asked.EndpointOptions.UseDualStackEndpoint == aws.DualStackEndpointStateEnabled),
	})
	return found.URI.Host, err
}

// Token makes a token for a cluster, and tells how long it is good for: no longer than the credentials that it was made from,
// as STS asks for them when the cluster does. An empty region is one's own.
func (s *Source) Token(ctx context.Context, cluster, region string) (token string, expires time.Time, err error) {
	account, err := s.account(ctx, region)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("making a token for EKS: %w", err)
	}
	credentials, err := account.Credentials.Retrieve(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return "", time.Time{}, errors.New("making a token for EKS: the instance has no IAM role")
	}
	if err != nil {
		return "", time.Time{}, fmt.Errorf("making a token for EKS: %w", err)
	}
	if account.Region == "" {
		return "", time.Time{}, errors.New("making a token for EKS: the region is not known")
	}
	host, err := host(ctx, account)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("making a token for EKS: %w", err)
	}
	now := time.Now()
	signed, err := s.sign(ctx, credentials, host, cluster, account.Region, now)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("making a token for EKS: %w", err)
	}
	expires = now.Add(life)
	if credentials.CanExpire && credentials.Expires.Before(expires) {
		expires = credentials.Expires
	}
	return prefix + base64.RawURLEncoding.EncodeToString([]byte(signed)), expires, nil
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
