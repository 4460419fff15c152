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

// errRefused is why there is no credential if none could not be made.
var errRefused = errors.New("the API server has refused the last ones")

// credential authenticates requests to the API server.
type credential struct {
	token   string            // "" if there is none
	through http.RoundTripper // presents the client certificate; nil if there is none
	expires time.Time         // zero if it does not say
	source  string            // what has made it, in a few words
	made    time.Time
	refused bool // the API server answered the last request with 401
}

func (c *credential) hasExpired() bool { return !c.expires.IsZero() && !time.Now().Before(c.expires) }

// isFresh reports whether the credential need not be replaced yet.
func (c *credential) isFresh() bool {
	return !c.refused && (c.expires.IsZero() || time.Now().Before(c.expires.Add(-min(renewBefore, c.expires.Sub(c.made)/2))))
}

// keeper keeps a credential that has to be made, and renews it in time: KeepWarm uses it at least once in kube.WarmUp. One is made at
// a time. No request waits for it longer than its own context, nor at all if there is a credential to use.
type keeper struct {
	// create makes a credential; refused reports that the API server refused the last one. It has a time limit of its own.
	create func(ctx context.Context, refused bool) (credential, error)

	mu        sync.Mutex
	kept      *credential
	making    *making // nil if none is being made
	failure   error   // of the last attempt
	notBefore time.Time
	failures  int // in a row, of create
	refusals  int // in a row, of what it has made
}

// making is a credential that is being made. When done is closed, one of the two is set.
type making struct {
	began      time.Time
	done       chan struct{}
	credential *credential
	err        error
}

// get returns a credential: one that was refused or is about to expire, if there is no better one. If refused is not nil, the API
// server has just refused it, and get waits for another one as long as ctx lasts.
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
	m, failure := k.begin(context.WithoutCancel(ctx)), k.failure
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
		kept = cmp.Or(kept, refused)
	case <-ctx.Done():
		err = fmt.Errorf("nothing has come yet: %w", ctx.Err())
	}
	if kept != nil {
		return kept, nil
	}
	return nil, fmt.Errorf("getting credentials: %w", err)
}

// begin returns the credential that is being made, or begins to make one; nil during a backoff. k.mu is held.
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
		k.take(m, c, err)
		close(m.done)
	}()
	return m
}

// take takes over what was made. k.mu is held.
func (k *keeper) take(m *making, c credential, err error) {
	k.making, k.failure, m.err = nil, err, err
	if err != nil {
		k.failures++
		k.notBefore = time.Now().Add(backoff(k.failures))
		return
	}
	c.made = time.Now()
	if earliest := c.made.Add(minLifetime); !c.expires.IsZero() && c.expires.Before(earliest) {
		c.expires = earliest
	}
	k.kept, m.credential, k.failures, k.notBefore = &c, &c, 0, time.Time{}
	if k.refusals > 0 { // The first one that is refused is replaced at once.
		k.notBefore = c.made.Add(backoff(k.refusals))
	}
}

// note remembers whether the API server has accepted the credential that is kept; what it says about an earlier one no longer matters.
// If it accepts one that it had refused, the refusal was a mistake.
func (k *keeper) note(c *credential, accepted bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case c != k.kept:
	case accepted:
		c.refused, k.refusals = false, 0
	case !c.refused:
		c.refused = true
		k.refusals++
	}
}

// source describes what has made the credential; "" if there is none yet.
func (k *keeper) source() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kept == nil {
		return ""
	}
	return k.kept.source
}

// backoff is the time to wait after that many failures in a row, with a jitter of a quarter more or less: the plugins of a
// whole fleet ask the same service.
func backoff(failures int) time.Duration {
	pause := min(firstBackoff<<min(failures-1, 10), maxBackoff)
	return wait.Jitter(pause*3/4, 2.0/3)
}

// authenticated adds the credential to each request.
type authenticated struct {
	next   http.RoundTripper
	keeper *keeper
}

var _ utilnet.RoundTripperWrapper = authenticated{}

// WrappedRoundTripper lets client-go find the connections.
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
		_ = response.Body.Close()
		return nil, err
	}
	repeated := request.Clone(request.Context())
	if err == nil && request.GetBody != nil {
		repeated.Body, err = request.GetBody()
	}
	if err != nil || other == c {
		return response, nil //nolint:nilerr // the 401 stands
	}
	_ = response.Body.Close() // It is replaced.
	return a.send(repeated, other)
}

// send makes a request with a credential.
func (a authenticated) send(request *http.Request, c *credential) (*http.Response, error) {
	request = utilnet.CloneRequest(request)
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	response, err := cmp.Or(c.through, a.next).RoundTrip(request)
	if err == nil {
		a.keeper.note(c, response.StatusCode != http.StatusUnauthorized)
	}
	return response, err
}
