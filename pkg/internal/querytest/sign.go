package querytest

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
)

// authorization is the header of a request that is signed with version 4.
var authorization = regexp.MustCompile(
	`^AWS4-HMAC-SHA256 Credential=([A-Z0-9]{16,})/(\d{8})/([a-z0-9-]+)/([a-z0-9-]+)/aws4_request, SignedHeaders=([a-z0-9;-]+), Signature=[0-9a-f]{64}$`)

// dated is the form of X-Amz-Date, and tolerance how far it may be from now.
const (
	dated     = "20060102T150405Z"
	tolerance = 5 * time.Minute
)

// checkSignature tells what keeps a request from being well signed for a service, and whose it is. The credentials of a role bring a
// session token, so there must be one. The signature itself is not checked.
func checkSignature(r *http.Request, of string, now time.Time) (credential string, problem *Failure) {
	incomplete := func(format string, args ...any) (string, *Failure) {
		return credential, &Failure{http.StatusForbidden, "IncompleteSignature", fmt.Sprintf(format, args...)}
	}
	fields := authorization.FindStringSubmatch(r.Header.Get("Authorization"))
	if fields == nil {
		return "", &Failure{http.StatusForbidden, "MissingAuthenticationToken", "the request has no well-formed signature"}
	}
	credential = fields[1]
	day, service, signed := fields[2], fields[4], strings.Split(fields[5], ";")
	at, err := time.Parse(dated, r.Header.Get("X-Amz-Date"))
	switch {
	case err != nil:
		return incomplete("X-Amz-Date is %q", r.Header.Get("X-Amz-Date"))
	case !strings.HasPrefix(r.Header.Get("X-Amz-Date"), day):
		return incomplete("the scope is of %s, the request of %s", day, r.Header.Get("X-Amz-Date"))
	case service != of:
		return incomplete("the scope is the service %s", service)
	case now.Sub(at).Abs() > tolerance:
		return credential, &Failure{http.StatusBadRequest, "RequestExpired", "the request is of " + at.String()}
	case r.Header.Get("X-Amz-Security-Token") == "":
		return credential, &Failure{http.StatusForbidden, "InvalidClientTokenId", "the security token is missing"}
	}
	for _, header := range []string{"host", "x-amz-date", "x-amz-security-token"} {
		if !slices.Contains(signed, header) {
			return incomplete("the header %s is not signed", header)
		}
	}
	return credential, nil
}
