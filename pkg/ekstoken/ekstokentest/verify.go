// Package ekstokentest verifies tokens as an EKS cluster and STS do, for tests: it signs the same request again.
package ekstokentest

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// Caller is who a token is from.
type Caller struct {
	AccessKey string
	Region    string
	// Session is the session token of a role's credentials.
	Session string
}

// stsHost is STS in a region: China has a domain of its own.
var stsHost = regexp.MustCompile(`^sts\.(cn-[a-z0-9-]+\.amazonaws\.com\.cn|([abd-z]|c[a-mo-z])[a-z0-9-]+\.amazonaws\.com)$`)

// emptyHash is the SHA-256 of an empty body.
const emptyHash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// Verify returns who made a token for the cluster. secret returns the secret key for an access key.
func Verify(token, cluster string, now time.Time, secret func(accessKey string) (string, bool)) (Caller, error) {
	encoded, found := strings.CutPrefix(token, "k8s-aws-v1.")
	if !found {
		return Caller{}, fmt.Errorf("the token begins with %.12q", token)
	}
	signed, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		return Caller{}, fmt.Errorf("decoding the token: %w", err)
	}
	request, err := url.Parse(string(signed))
	if err != nil {
		return Caller{}, fmt.Errorf("reading the token's request: %w", err)
	}
	query := request.Query()
	scope := strings.Split(query.Get("X-Amz-Credential"), "/")
	made, err := time.Parse("20060102T150405Z", query.Get("X-Amz-Date"))
	switch {
	case request.Scheme != "https" || !stsHost.MatchString(request.Host) || request.Path != "/":
		return Caller{}, fmt.Errorf("the request is for %s://%s%s", request.Scheme, request.Host, request.Path)
	case query.Get("Action") != "GetCallerIdentity" || query.Get("Version") != "2011-06-15":
		return Caller{}, fmt.Errorf("the request asks for %s of %s", query.Get("Action"), query.Get("Version"))
	case err != nil:
		return Caller{}, fmt.Errorf("reading when the request was signed: %w", err)
	case now.Sub(made).Abs() > 15*time.Minute:
		return Caller{}, fmt.Errorf("the request was signed at %s", made)
	case len(scope) != 5:
		return Caller{}, fmt.Errorf("the request is signed for %s", query.Get("X-Amz-Credential"))
	}
	caller := Caller{AccessKey: scope[0], Region: scope[2], Session: query.Get("X-Amz-Security-Token")}
	key, known := secret(caller.AccessKey)
	if !known {
		return Caller{}, fmt.Errorf("the access key %q is nobody's", caller.AccessKey)
	}
	// All other parameters are the signature's, so that the request has none that a cluster does not expect.
	unsigned := url.Values{"Action": query["Action"], "Version": query["Version"], "X-Amz-Expires": query["X-Amz-Expires"]}
	again, err := http.NewRequest(http.MethodGet, "https://"+request.Host+"/?"+unsigned.Encode(), nil)
	if err != nil {
		return Caller{}, err
	}
	again.Header.Set("x-k8s-aws-id", cluster)
	credentials := aws.Credentials{AccessKeyID: caller.AccessKey, SecretAccessKey: key, SessionToken: caller.Session}
	want, _, err := v4.NewSigner().PresignHTTP(context.Background(), credentials, again, emptyHash, "sts", caller.Region, made)
	if err != nil || want != string(signed) {
		return Caller{}, errors.Join(errors.New("the signature is wrong"), err)
	}
	return caller, nil
}
