package identity

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
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
	// shortLived is the lifetime below which a credential is renewed only when it is used.
	shortLived = 20 * time.Second
	// minLifetime is how long a credential is used at least, whatever its expiry says. A plugin whose credential has expired
	// already, or does so within a second, by mistake or because of clock skew, would otherwise run for each request, and a
	// drain makes hundreds. Whether the credential is valid is for the API server to say; it is renewed after half of this time.
	minLifetime = 10 * time.Second
	// idle is how long after its last use a credential is still renewed in advance.
	idle = 15 * time.Minute
	// firstBackoff and maxBackoff are the backoff after failures. It doubles with each. The identity must work by the next notice.
	firstBackoff, maxBackoff = time.Second, 10 * time.Second
	// refetchTimeout is how long a request waits for a new credential before it uses one that was refused: that may have been
	// a mistake, and a plugin that hangs must not make a good token unusable.
	refetchTimeout = 5 * time.Second
)

// errRefused is why there is no credential if no fetch has failed.
var errRefused = errors.New("the API server has refused the last ones")

// credential authenticates requests to the API server.
type credential struct {
	secret
	made      time.Time
	source    string            // what has made it, in a few words
	transport http.RoundTripper // presents the client certificate, if there is one
	// refused is set if the API server answered the last request with 401, and doubted if it took the credential for that of
	// another user than expected.
	refused, doubted bool
}

// keeper keeps a credential that has to be fetched, and renews it in time. There is one fetch at a time. No request waits for
// it longer than its own context, nor at all if there is a credential to use.
type keeper struct {
	// fetch makes a credential; refused tells that the API server refused the last one. It has a timeout of its own.
	fetch func(ctx context.Context, refused bool) (credential, error)
	// alternates is set if a credential that was refused is followed by one that is obtained in another way.
	alternates bool
	// plain is the transport without a client certificate, and build makes one with a certificate. Each has connections of its
	// own, so that requests in flight with another credential are not affected.
	plain http.RoundTripper
	build func(*tls.Certificate) (http.RoundTripper, error)

	mu        sync.Mutex
	kept      *credential
	fetching  *fetching // nil if nothing is being fetched
	failure   error     // of the last fetch
	notBefore time.Time // when the next fetch may begin
	used      time.Time
	// failures, refusals and doubts count those in a row.
	failures, refusals, doubts int
}

// fetching is one fetch. The credential or the error is set when done is closed.
type fetching struct {
	began      time.Time
	done       chan struct{}
	credential *credential
	err        error
}

// get returns a credential. If there is no better one, that may be one that was refused or is about to expire. If refused is
// not nil, the API server has just refused it, and get waits for another as long as ctx lasts.
func (k *keeper) get(ctx context.Context, refused *credential) (*credential, error) {
	k.mu.Lock()
	k.used = time.Now()
	kept, usable := k.kept, k.kept.usable()
	if usable && time.Now().Before(kept.renewal()) {
		k.mu.Unlock()
		return kept, nil
	}
	fetch, failure := k.begin(context.WithoutCancel(ctx)), k.failure
	if kept != nil && kept.hasExpired() {
		kept = nil
	}
	waits := kept == nil || kept == refused || kept.doubted
	k.mu.Unlock()
	switch {
	case kept != nil && (usable || fetch == nil):
		return kept, nil
	case fetch == nil:
		return nil, fmt.Errorf("getting credentials: %w", cmp.Or(failure, errRefused))
	}
	if !waits {
		limited, cancel := context.WithDeadline(ctx, fetch.began.Add(refetchTimeout))
		defer cancel()
		ctx = limited
	}
	return fetch.await(ctx, kept, refused)
}

// await returns the credential that is being fetched. If ctx ends or the fetch fails, it returns the one that is kept.
func (f *fetching) await(ctx context.Context, kept, refused *credential) (*credential, error) {
	select {
	case <-f.done:
	case <-ctx.Done():
		if kept != nil && kept != refused {
			return kept, nil
		}
		return nil, fmt.Errorf("getting credentials: nothing has come yet: %w", ctx.Err())
	}
	switch {
	case f.err == nil:
		return f.credential, nil
	case kept != nil:
		return kept, nil
	}
	return nil, fmt.Errorf("getting credentials: %w", f.err)
}

// begin returns the fetch that is under way, or begins one; nil during a backoff. k.mu is held.
func (k *keeper) begin(ctx context.Context) *fetching {
	if k.fetching != nil {
		return k.fetching
	}
	if time.Now().Before(k.notBefore) {
		return nil
	}
	f := &fetching{began: time.Now(), done: make(chan struct{})}
	k.fetching = f
	refused := k.kept != nil && !k.kept.usable()
	go func() {
		c, err := k.fetch(ctx, refused)
		if err == nil {
			c.transport, err = k.transportFor(c.certificate)
		}
		k.end(ctx, f, c, err)
	}()
	return f
}

// transportFor returns the transport for a certificate: that of the last credential, if it has the same certificate.
func (k *keeper) transportFor(certificate *tls.Certificate) (http.RoundTripper, error) {
	if certificate == nil {
		return k.plain, nil
	}
	k.mu.Lock()
	last := k.kept
	k.mu.Unlock()
	if last != nil && sameCertificate(last.certificate, certificate) {
		return last.transport, nil
	}
	return k.build(certificate)
}

// end takes over the result of a fetch, and schedules the next one.
func (k *keeper) end(ctx context.Context, f *fetching, c credential, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	defer close(f.done)
	k.fetching, k.failure, f.err = nil, err, err
	if err != nil {
		k.failures++
		pause := backoff(k.failures)
		k.notBefore = time.Now().Add(pause)
		time.AfterFunc(pause, func() { k.renew(ctx) })
		return
	}
	c.made = time.Now()
	if earliest := c.made.Add(minLifetime); !c.expires.IsZero() && c.expires.Before(earliest) {
		c.expires = earliest
	}
	f.credential = &c
	if k.kept != nil && !sameCertificate(k.kept.certificate, c.certificate) {
		go utilnet.CloseIdleConnectionsFor(k.kept.transport)
	}
	k.kept, k.failures, k.notBefore = &c, 0, time.Time{}
	if inVain := max(k.refusals, k.doubts); inVain > 0 {
		k.notBefore = time.Now().Add(backoff(inVain))
	}
	if !c.expires.IsZero() && c.expires.Sub(c.made) >= shortLived {
		time.AfterFunc(time.Until(c.renewal()), func() { k.renew(ctx) })
	}
}

// renew fetches another credential before the one that is in use expires.
func (k *keeper) renew(ctx context.Context) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kept != nil && time.Since(k.used) < idle && !k.kept.hasExpired() && !time.Now().Before(k.kept.renewal()) {
		k.begin(ctx)
	}
}

// noteAnswer notes whether the API server has accepted a credential. The first one that is refused is replaced at once, the
// following ones after a backoff. A credential that is accepted later was refused by mistake.
func (k *keeper) noteAnswer(c *credential, accepted bool) {
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

// doubt notes that the API server takes the credential for that of another user than expected. It reports whether this is
// the first such credential in a row.
func (k *keeper) doubt() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.kept.usable() {
		return false
	}
	k.kept.doubted = true
	k.doubts++
	return k.doubts == 1
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

// certificate returns the client certificate in the credential; nil if there is none.
func (k *keeper) certificate() *x509.Certificate {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kept == nil || k.kept.certificate == nil {
		return nil
	}
	return k.kept.certificate.Leaf
}

// usable reports whether there is a credential that was not refused. The keeper's mu is held.
func (c *credential) usable() bool { return c != nil && !c.refused && !c.doubted }

func (c *credential) hasExpired() bool { return !c.expires.IsZero() && !time.Now().Before(c.expires) }

// renewal returns when the credential should be renewed: in the distant future if it does not expire.
func (c *credential) renewal() time.Time {
	if c.expires.IsZero() {
		return c.made.AddDate(100, 0, 0)
	}
	return c.expires.Add(-min(renewBefore, c.expires.Sub(c.made)/2))
}

func sameCertificate(a, b *tls.Certificate) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Leaf.Equal(b.Leaf)
}

// backoff is the time to wait after that many failures in a row, with a jitter of a quarter more or less: the plugins of a
// whole fleet ask the same service.
func backoff(failures int) time.Duration {
	pause := min(firstBackoff<<min(failures-1, 10), maxBackoff)
	return wait.Jitter(pause*3/4, 2.0/3)
}

// refusalLimit is the most that is kept of the body of a 401 response, in bytes.
const refusalLimit = 64 << 10

// authenticated adds the credential to each request.
type authenticated struct{ keeper *keeper }

var _ utilnet.RoundTripperWrapper = authenticated{}

// WrappedRoundTripper lets client-go find the connections that have no client certificate.
func (a authenticated) WrappedRoundTripper() http.RoundTripper { return a.keeper.plain }

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
	if err != nil || response.StatusCode != http.StatusUnauthorized {
		return response, err
	}
	repeated := request.Clone(request.Context())
	if request.GetBody != nil {
		repeated.Body, err = request.GetBody()
	}
	if err != nil || request.Body != nil && request.GetBody == nil {
		return response, nil //nolint:nilerr // the 401 stands
	}
	bufferBody(response)
	other, err := a.keeper.get(request.Context(), c)
	if err != nil && request.Context().Err() != nil {
		return nil, err
	}
	if err != nil || other == c {
		return response, nil //nolint:nilerr // the 401 stands
	}
	return a.send(repeated, other)
}

// send makes a request with a credential.
func (a authenticated) send(request *http.Request, c *credential) (*http.Response, error) {
	if c.token != "" {
		request = utilnet.CloneRequest(request)
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	response, err := c.transport.RoundTrip(request)
	if err == nil {
		a.keeper.noteAnswer(c, response.StatusCode != http.StatusUnauthorized)
	}
	return response, err
}

// bufferBody reads the body of a response and frees its connection, because it may take a while to get another credential.
func bufferBody(response *http.Response) {
	text, _ := io.ReadAll(io.LimitReader(response.Body, refusalLimit)) // the rest is text for a user
	_ = response.Body.Close()
	response.Body, response.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
}
