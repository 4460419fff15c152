package identity

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// runPause is the shortest time between two runs of an exec plugin. A drain makes hundreds of requests, and the plugin may print an expiry that has
// passed already.
const runPause = 10 * time.Second

// credential is a token that authenticates requests to the API server.
type credential struct {
	token   string
	expires time.Time // zero if the token has no expiry
	renew   time.Time // when to get the next token: half the time to the expiry; zero if the token has no expiry
}

// passed reports whether a time has come; the zero time never does.
func passed(t time.Time) bool { return !t.IsZero() && !time.Now().Before(t) }

// keeper keeps the last credential that an exec plugin has made, and renews that before it expires. KeepWarm sends a request at least once in
// kube.WarmUp, so that the keeper gets the chance to do so.
//
// The plugin runs once at a time. A request waits for the plugin only if the keeper has no usable credential, and no longer than the request's
// context.
type keeper struct {
	// create runs the exec plugin to make a credential. It has a time limit of its own.
	create func(context.Context) (credential, error)

	kept   atomic.Pointer[credential] // the last credential that was made; nil before the first
	making singleflight.Group         // runs renew, once at a time
	// Only renew uses these: when create last returned, and its error.
	called  time.Time
	failure error
}

// get returns a credential for a request.
func (k *keeper) get(ctx context.Context) (*credential, error) {
	kept := k.kept.Load()
	usable := kept != nil && !passed(kept.expires)
	if usable && !passed(kept.renew) {
		return kept, nil
	}
	// Other requests wait for the same run of the plugin, so the end of this request must not end that run.
	made := k.making.DoChan("", func() (any, error) { return k.renew(context.WithoutCancel(ctx)) })
	if usable { // The plugin runs in the background.
		return kept, nil
	}
	select {
	case result := <-made:
		if result.Err != nil {
			return nil, fmt.Errorf("getting a token for the API server: %w", result.Err)
		}
		return result.Val.(*credential), nil //nolint:forcetypeassert // renew returns no other type.
	case <-ctx.Done():
		return nil, fmt.Errorf("getting a token for the API server: the exec plugin did not end in time%.0w", ctx.Err()) // %.0w wraps it without its text.
	}
}

// renew makes a credential and keeps it. Within runPause after the last run of the plugin, renew returns the result of that run again. The result
// is a *credential, as an any for singleflight.
func (k *keeper) renew(ctx context.Context) (any, error) {
	if time.Since(k.called) < runPause {
		return k.kept.Load(), k.failure
	}
	c, err := k.create(ctx)
	k.called, k.failure = time.Now(), err
	if err != nil {
		return nil, err
	}
	if !c.expires.IsZero() {
		c.renew = k.called.Add(c.expires.Sub(k.called) / 2)
	}
	k.kept.Store(&c)
	return &c, nil
}

// refuse takes a credential that the API server has refused. The next request makes the exec plugin run. Until that has made another credential,
// the refused one is still sent: the API server may refuse for a while what is valid.
func (k *keeper) refuse(c *credential) {
	k.kept.CompareAndSwap(c, &credential{token: c.token, expires: c.expires, renew: time.Now()})
}

// authenticated is a transport that adds the keeper's credential to each request.
type authenticated struct {
	next   http.RoundTripper
	keeper *keeper
}

var _ utilnet.RoundTripperWrapper = authenticated{}

// WrappedRoundTripper lets Kubernetes' libraries find the transport that has the connections, for example to close idle ones.
func (a authenticated) WrappedRoundTripper() http.RoundTripper { return a.next }

// RoundTrip implements http.RoundTripper. If the API server refuses the credential (401), the caller gets that answer: see refuse.
func (a authenticated) RoundTrip(request *http.Request) (*http.Response, error) {
	c, err := a.keeper.get(request.Context())
	if err != nil {
		if request.Body != nil {
			_ = request.Body.Close() // A RoundTripper must close the body, also after an error.
		}
		return nil, err
	}
	request = utilnet.CloneRequest(request)
	request.Header.Set("Authorization", "Bearer "+c.token)
	response, err := a.next.RoundTrip(request)
	if err == nil && response.StatusCode == http.StatusUnauthorized {
		a.keeper.refuse(c)
	}
	return response, err
}
