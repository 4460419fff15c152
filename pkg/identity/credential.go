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

// runPause is the shortest time between two runs of a plugin: a drain makes hundreds of requests, and an expiry may be wrong.
const runPause = 10 * time.Second

// credential is a token that authenticates requests to the API server.
type credential struct {
	token   string
	expires time.Time // zero if the token has no expiry
	renew   time.Time // when the token is half as old as it may become
}

// passed reports whether a time is over; the zero time never is.
func passed(t time.Time) bool { return !t.IsZero() && !time.Now().Before(t) }

// keeper keeps a credential that an exec plugin makes, and renews it in time: KeepWarm asks for it at least once in kube.WarmUp. One credential
// is made at a time. A request waits for it only if the keeper has none to use, and no longer than its context.
type keeper struct {
	// create makes a credential. It has a time limit of its own.
	create func(context.Context) (credential, error)

	kept   atomic.Pointer[credential] // the last one that was made
	making singleflight.Group
	// Only renew uses these: when create was called last, and its error.
	called  time.Time
	failure error
}

// get returns a credential for a request. If refused is not nil, the API server has just refused that one to this request.
func (k *keeper) get(ctx context.Context, refused *credential) (*credential, error) {
	kept := k.kept.Load()
	usable := kept != nil && kept != refused && !passed(kept.expires)
	if usable && !passed(kept.renew) {
		return kept, nil
	}
	// Other requests wait for it, too, so it outlasts this one.
	made := k.making.DoChan("", func() (any, error) { return k.renew(context.WithoutCancel(ctx)) })
	if usable { // It is renewed in the background.
		return kept, nil
	}
	select {
	case result := <-made:
		if result.Err != nil {
			return nil, fmt.Errorf("getting credentials: %w", result.Err)
		}
		return result.Val.(*credential), nil //nolint:forcetypeassert // renew returns no other type.
	case <-ctx.Done():
		return nil, fmt.Errorf("getting credentials: nothing has come yet: %w", ctx.Err())
	}
}

// renew makes a credential and keeps it. Within runPause, it returns the last result again.
func (k *keeper) renew(ctx context.Context) (any, error) {
	if !k.called.IsZero() && time.Since(k.called) < runPause {
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

// authenticated is a transport that adds the keeper's credential to each request.
type authenticated struct {
	next   http.RoundTripper
	keeper *keeper
}

var _ utilnet.RoundTripperWrapper = authenticated{}

// WrappedRoundTripper lets Kubernetes' libraries find the transport that has the connections, for example to close idle ones.
func (a authenticated) WrappedRoundTripper() http.RoundTripper { return a.next }

// RoundTrip implements http.RoundTripper. A request whose credential is refused is repeated once with another credential,
// unless its body can be read only once.
func (a authenticated) RoundTrip(request *http.Request) (*http.Response, error) {
	c, err := a.keeper.get(request.Context(), nil)
	if err != nil {
		if request.Body != nil {
			_ = request.Body.Close() // as a RoundTripper must
		}
		return nil, err
	}
	response, err := a.send(request, c)
	if err != nil || response.StatusCode != http.StatusUnauthorized || request.Body != nil && request.GetBody == nil {
		return response, err
	}
	other, err := a.keeper.get(request.Context(), c)
	repeated := request.Clone(request.Context())
	if err == nil && request.GetBody != nil {
		repeated.Body, err = request.GetBody()
	}
	if err != nil || other == c {
		return response, nil //nolint:nilerr // There is no other credential, or the body is lost: the caller gets the 401.
	}
	_ = response.Body.Close() // It is replaced.
	return a.send(repeated, other)
}

// send makes a request with a credential.
func (a authenticated) send(request *http.Request, c *credential) (*http.Response, error) {
	request = utilnet.CloneRequest(request)
	request.Header.Set("Authorization", "Bearer "+c.token)
	return a.next.RoundTrip(request)
}
