package identity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// renewBefore is how long before its expiry a credential is renewed, or half of its lifetime if that is shorter. It is
	// longer than kube.WarmUp, so that no drain begins with a token that the API server has not verified yet, which takes time.
	renewBefore = 6 * time.Minute
	// minLifetime is how long a credential is used at least, whatever its expiry says. A plugin whose credential has expired
	// already, by mistake or because of clock skew, would otherwise run for each request, and a drain makes hundreds.
	minLifetime = 10 * time.Second
	// firstBackoff and maxBackoff are the backoff after failures. It doubles with each. The identity must work by the next notice.
	firstBackoff, maxBackoff = time.Second, 10 * time.Second
	// replaceTimeout is how long a request waits for a new credential before it uses one that was refused: that may have been
	// a mistake, and a plugin that hangs must not make a good token unusable.
	replaceTimeout = 5 * time.Second
)

// errRefused is the error while no new credential may be made yet, since the API server has refused the last ones.
var errRefused = errors.New("the API server has refused the last ones")

// credential authenticates requests to the API server.
type credential struct {
	token   string            // "" if the credential is a client certificate only
	through http.RoundTripper // presents the client certificate; nil if the credential has none
	expires time.Time         // zero if the credential has no expiry
	source  string            // what has made the credential, in a few words
	made    time.Time
	refused bool // the API server answered the last request with 401
}

// hasExpired reports whether the credential is of no use any more.
func (c *credential) hasExpired() bool { return !c.expires.IsZero() && !time.Now().Before(c.expires) }

// isFresh reports whether the credential need not be replaced yet.
func (c *credential) isFresh() bool {
	return !c.refused && (c.expires.IsZero() || time.Now().Before(c.expires.Add(-min(renewBefore, c.expires.Sub(c.made)/2))))
}

// keeper keeps a credential that a plugin or Options.Token makes, and renews that in time: KeepWarm asks for it at least once in kube.WarmUp.
// The keeper makes one credential at a time. A request waits for a new one only if the keeper has none to use, and no longer than its context.
type keeper struct {
	// create makes a credential. refused is true if the API server has refused the one that is kept. create has a time limit of its own.
	create func(ctx context.Context, refused bool) (credential, error)

	mu        sync.Mutex
	kept      *credential // the last one that was made; nil before that
	making    *making     // the one that is being made; nil if there is none
	failure   error       // of the last call of create
	notBefore time.Time   // when create may be called again
	failures  int         // how often create has failed, in a row
	refusals  int         // how many credentials in a row the API server has refused
}

// making is a credential that is being made. When done is closed, either credential or err is set.
type making struct {
	began      time.Time
	done       chan struct{}
	credential *credential
	err        error
}

// get returns a credential for a request. If refused is not nil, the API server has just refused that one to this request, and get waits for
// another one as long as ctx lasts. If no better one comes, get returns one that was refused or is about to expire.
func (k *keeper) get(ctx context.Context, refused *credential) (*credential, error) {
	k.mu.Lock()
	kept := k.kept
	if kept != nil && kept.hasExpired() {
		kept = nil
	}
	if kept != nil && kept.isFresh() {
		k.mu.Unlock()
		return kept, nil
	}
	usable := kept != nil && !kept.refused
	m, failure := k.begin(context.WithoutCancel(ctx)), k.failure // Other requests wait for it, too, so it outlasts this one.
	k.mu.Unlock()
	switch {
	case usable || kept != nil && m == nil: // m, if any, renews it in the background.
		return kept, nil
	case m == nil: // The last attempt failed, and it is too early for another one.
		return nil, fmt.Errorf("getting credentials: %w", cmp.Or(failure, errRefused))
	case kept == refused: // There is none, or this request tried it in vain: wait for the one that is being made.
		kept = nil
	default: // Another request's credential was refused: if no new one comes soon, this request tries with the old one.
		limited, cancel := context.WithDeadline(ctx, m.began.Add(replaceTimeout))
		defer cancel()
		ctx = limited
	}
	var err error
	select {
	case <-m.done:
		if m.err == nil {
			return m.credential, nil
		}
		err = m.err
		kept = cmp.Or(kept, refused) // The refused one is still better than none.
	case <-ctx.Done():
		err = fmt.Errorf("nothing has come yet: %w", ctx.Err())
	}
	if kept != nil {
		return kept, nil
	}
	return nil, fmt.Errorf("getting credentials: %w", err)
}

// begin begins to make a credential, unless one is being made, and returns that. It returns nil during a backoff. The caller holds k.mu.
func (k *keeper) begin(ctx context.Context) *making {
	if k.making != nil || time.Now().Before(k.notBefore) {
		return k.making
	}
	m := &making{began: time.Now(), done: make(chan struct{})}
	k.making = m
	refused := k.kept != nil && k.kept.refused
	go func() {
		c, err := k.create(ctx, refused)
		k.mu.Lock()
		defer k.mu.Unlock()
		k.finish(m, c, err)
		close(m.done)
	}()
	return m
}

// finish keeps the credential that create has made, or sets a backoff if create has failed. The caller holds k.mu.
func (k *keeper) finish(m *making, c credential, err error) {
	k.making, k.failure, m.err = nil, err, err
	if err != nil {
		k.failures++
		k.notBefore = time.Now().Add(backoff(k.failures))
		return
	}
	c.made = time.Now()
	// An expiry that is too early would have a plugin run for each request.
	if earliest := c.made.Add(minLifetime); !c.expires.IsZero() && c.expires.Before(earliest) {
		c.expires = earliest
	}
	k.kept, m.credential, k.failures, k.notBefore = &c, &c, 0, time.Time{}
	if k.refusals > 0 { // A refused credential is replaced at once the first time. From then on, there is a backoff.
		k.notBefore = c.made.Add(backoff(k.refusals))
	}
}

// recordAnswer remembers whether the API server has accepted a credential. If the API server accepts one that it had refused, the refusal was a
// mistake.
func (k *keeper) recordAnswer(c *credential, accepted bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case c != k.kept: // The credential was replaced in the meantime: the answer no longer matters.
	case accepted:
		c.refused, k.refusals = false, 0
	case !c.refused:
		c.refused = true
		k.refusals++
	}
}

// source describes what has made the credential that is kept; "" if there is none yet.
func (k *keeper) source() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kept == nil {
		return ""
	}
	return k.kept.source
}

// backoff returns the time to wait after that many failures in a row. It varies by a quarter more or less: the plugins of a whole fleet ask the
// same service.
func backoff(failures int) time.Duration {
	pause := min(firstBackoff<<min(failures-1, 10), maxBackoff) // The limit of 10 keeps the shift from overflowing.
	return wait.Jitter(pause*3/4, 2.0/3)
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
	if err != nil && request.Context().Err() != nil {
		_ = response.Body.Close() // The caller gets the error in place of the 401: its context has ended.
		return nil, err
	}
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

// send makes a request with a credential, and lets the keeper know whether the API server has accepted that.
func (a authenticated) send(request *http.Request, c *credential) (*http.Response, error) {
	request = utilnet.CloneRequest(request)
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	response, err := cmp.Or(c.through, a.next).RoundTrip(request)
	if err == nil {
		a.keeper.recordAnswer(c, response.StatusCode != http.StatusUnauthorized)
	}
	return response, err
}
