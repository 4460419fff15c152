// Package ekstoken makes the tokens that authenticate an IAM role to an EKS cluster, as "aws eks get-token" and
// aws-iam-authenticator do, but within the process: no program of Python's size has to be started first.
//
// A token is a request to STS, GetCallerIdentity, that is signed but not sent. The cluster sends it, and trusts what STS
// answers. The header x-k8s-aws-id, which is signed too, names the cluster, so that no other one can use the token.
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
	prefix        = "k8s-aws-v1."
	clusterHeader = "x-k8s-aws-id"
	// tokenTTL is how long a cluster accepts a token, less a minute for clock skew. The expiry in the request is what STS
	// requires, and means nothing to the cluster.
	tokenTTL = 14 * time.Minute
	// emptyHash is the SHA-256 of the request's empty body.
	emptyHash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

// Source makes tokens. It makes no request before the first one, and may be used from several goroutines.
type Source struct {
	// account returns the AWS configuration to sign with, for a region; "" means the source's own. The configuration has the credentials, the
	// region, and what the environment says of endpoints.
	account func(ctx context.Context, region string) (aws.Config, error)
	signer  *v4.Signer
}

// New returns a Source for the IAM role of the instance whose metadata service this is. region is the source's own region; "" means that of
// the instance. The source reads that once and keeps it, like the credentials, for times when the metadata service does not answer.
func New(metadata role.Metadata, region string) *Source {
	credentials := role.Credentials(metadata)
	var own atomic.Pointer[string] // the source's own region; "" until it is read
	own.Store(&region)
	return &Source{signer: v4.NewSigner(), account: func(ctx context.Context, region string) (aws.Config, error) {
		known := cmp.Or(region, *own.Load())
		account, err := role.Config(ctx, metadata, known)
		if err == nil && known == "" {
			own.Store(&account.Region)
		}
		account.Credentials = credentials
		return account, err
	}}
}

// Of returns a Source for the credentials of an SDK configuration, whose region is the source's own.
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

// stsHost returns the host name of STS in the account's region, by the SDK's rules. It ignores a custom endpoint, because a cluster accepts
// only hosts of AWS in a token.
func stsHost(ctx context.Context, account aws.Config) (string, error) {
	account.BaseEndpoint = nil
	options := sts.NewFromConfig(account).Options()
	endpoint, err := sts.NewDefaultEndpointResolverV2().ResolveEndpoint(ctx, sts.EndpointParameters{
		Region:       &account.Region,
		UseFIPS:      new(options.EndpointOptions.UseFIPSEndpoint == aws.FIPSEndpointStateEnabled),
		UseDualStack: new(options.EndpointOptions.UseDualStackEndpoint == aws.DualStackEndpointStateEnabled),
	})
	return endpoint.URI.Host, err
}

// Token makes a token for a cluster; an empty region means the source's own. expires is when the cluster stops accepting the token, or when
// the credentials that signed it expire, if that is earlier: STS checks them each time the cluster uses the token.
func (s *Source) Token(ctx context.Context, cluster, region string) (token string, expires time.Time, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("making a token for EKS: %w", err)
		}
	}()
	account, err := s.account(ctx, region)
	if err != nil {
		return "", time.Time{}, err
	}
	credentials, err := account.Credentials.Retrieve(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return "", time.Time{}, errors.New("the instance has no IAM role")
	}
	if err != nil {
		return "", time.Time{}, err
	}
	if account.Region == "" {
		return "", time.Time{}, errors.New("the region is not known")
	}
	host, err := stsHost(ctx, account)
	if err != nil {
		return "", time.Time{}, err
	}
	now := time.Now()
	signed, err := s.sign(ctx, credentials, host, cluster, account.Region, now)
	if err != nil {
		return "", time.Time{}, err
	}
	expires = now.Add(tokenTTL)
	if credentials.CanExpire && credentials.Expires.Before(expires) {
		expires = credentials.Expires
	}
	return prefix + base64.RawURLEncoding.EncodeToString([]byte(signed)), expires, nil
}

// sign signs a request GetCallerIdentity to the host, with the cluster's name in a signed header. It returns the request's URL, which contains
// the signature.
func (s *Source) sign(ctx context.Context, c aws.Credentials, host, cluster, region string, now time.Time) (string, error) {
	query := url.Values{"Action": {"GetCallerIdentity"}, "Version": {"2011-06-15"}, "X-Amz-Expires": {"60"}}
	address := url.URL{Scheme: "https", Host: host, Path: "/", RawQuery: query.Encode()}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), nil)
	if err != nil {
		return "", err
	}
	request.Header.Set(clusterHeader, cluster)
	signed, _, err := s.signer.PresignHTTP(ctx, c, request, emptyHash, "sts", region, now)
	return signed, err
}
