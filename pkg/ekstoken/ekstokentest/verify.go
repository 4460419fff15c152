// Package ekstokentest verifies tokens as an EKS cluster and STS do, for tests. The signature is computed again, from
// nothing but the specification of AWS Signature Version 4.
package ekstokentest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
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

// allowedParameters are those that the cluster accepts, in lower case.
var allowedParameters = []string{
	"action", "version", "x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-expires", "x-amz-security-token",
	"x-amz-signature", "x-amz-signedheaders",
}

// Verify returns who made a token for the cluster. secret returns the secret key for an access key.
func Verify(token, cluster string, now time.Time, secret func(accessKey string) (string, bool)) (Caller, error) {
	encoded, found := strings.CutPrefix(token, "k8s-aws-v1.")
	if !found {
		return Caller{}, fmt.Errorf("the token begins with %.12q", token)
	}
	text, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		return Caller{}, fmt.Errorf("decoding the token: %w", err)
	}
	request, err := url.Parse(string(text))
	if err != nil {
		return Caller{}, fmt.Errorf("reading the token's request: %w", err)
	}
	query, err := url.ParseQuery(request.RawQuery)
	if err != nil {
		return Caller{}, fmt.Errorf("reading the token's request: %w", err)
	}
	if err := checkRequest(request, query, now); err != nil {
		return Caller{}, err
	}
	return checkSignature(request, query, cluster, secret)
}

// checkRequest checks what the cluster demands of a request before it sends it.
func checkRequest(request *url.URL, query url.Values, now time.Time) error {
	for name, values := range query {
		if !slices.Contains(allowedParameters, strings.ToLower(name)) || len(values) != 1 {
			return fmt.Errorf("the request has the parameter %s, %d times", name, len(values))
		}
	}
	made, err := time.Parse("20060102T150405Z", query.Get("X-Amz-Date"))
	switch {
	case request.Scheme != "https" || !stsHost.MatchString(request.Host) || request.Path != "/":
		return fmt.Errorf("the request is for %s://%s%s", request.Scheme, request.Host, request.Path)
	case query.Get("Action") != "GetCallerIdentity" || query.Get("Version") != "2011-06-15":
		return fmt.Errorf("the request asks for %s of %s", query.Get("Action"), query.Get("Version"))
	case !slices.Contains(strings.Split(query.Get("X-Amz-SignedHeaders"), ";"), "x-k8s-aws-id"):
		return fmt.Errorf("the signed headers are %s", query.Get("X-Amz-SignedHeaders"))
	case err != nil:
		return fmt.Errorf("reading when the request was signed: %w", err)
	case now.Sub(made).Abs() > 15*time.Minute:
		return fmt.Errorf("the request was signed at %s", made)
	}
	return nil
}

// checkSignature checks the signature, as STS does, of a request with the cluster's header.
func checkSignature(request *url.URL, query url.Values, cluster string, secret func(string) (string, bool)) (Caller, error) {
	scope := strings.Split(query.Get("X-Amz-Credential"), "/")
	if len(scope) != 5 || scope[3] != "sts" || scope[4] != "aws4_request" || query.Get("X-Amz-Algorithm") != "AWS4-HMAC-SHA256" {
		return Caller{}, fmt.Errorf("the request is signed for %s", query.Get("X-Amz-Credential"))
	}
	caller := Caller{AccessKey: scope[0], Region: scope[2], Session: query.Get("X-Amz-Security-Token")}
	key, known := secret(caller.AccessKey)
	if !known {
		return Caller{}, fmt.Errorf("the access key %q is nobody's", caller.AccessKey)
	}
	unsigned := url.Values{}
	for name, values := range query {
		if name != "X-Amz-Signature" {
			unsigned[name] = values
		}
	}
	canonical := strings.Join([]string{
		"GET", "/", strings.ReplaceAll(unsigned.Encode(), "+", "%20"),
		"host:" + request.Host, "x-k8s-aws-id:" + cluster, "", "host;x-k8s-aws-id", digest(""),
	}, "\n")
	toSign := strings.Join([]string{
		"AWS4-HMAC-SHA256", query.Get("X-Amz-Date"), strings.Join(scope[1:], "/"), digest(canonical),
	}, "\n")
	signature := []byte("AWS4" + key)
	for _, part := range append(scope[1:], toSign) {
		code := hmac.New(sha256.New, signature)
		code.Write([]byte(part))
		signature = code.Sum(nil)
	}
	if hex.EncodeToString(signature) != query.Get("X-Amz-Signature") {
		return Caller{}, errors.New("the signature is wrong")
	}
	return caller, nil
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}
