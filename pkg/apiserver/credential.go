package apiserver

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/nth-project/nth/pkg/plugin"
)

const (
	// renewBefore is how long before its expiry a credential is renewed, or half of its lifetime if that is shorter. It is
	// longer than the interval of Kubelet.KeepWarm, so that no drain begins with a token that the API server has not verified
	// yet, which takes time.
	renewBefore = 6 * time.Minute
	// shortLived is the lifetime below which a credential is renewed only when it is used.
	shortLived = 20 * time.Second
	// minLifetime is how long a credential is used at least, whatever its expiry says. A plugin whose credential has expired
	// already, or does so within a second, by mistake or because of clock skew, would otherwise run for each request, and a
	// drain makes hundreds. Whether the credential is valid is for the API server to say; it is renewed after half of this time.
	minLifetime = 10 * time.Second
	// idle is how long after its last use a credential is still renewed in advance.
	idle = 15 * time.Minute
	// firstBackoff and maxBackoff are the backoff after fetches that failed. It doubles with each.
	firstBackoff, maxBackoff = time.Second, 10 * time.Second
	// refetchTimeout is how long a request waits for a new credential before it uses one that was refused: that may have been
	// a mistake, and a plugin that hangs must not make a good token unusable.
	refetchTimeout = 5 * time.Second
)

// errRefused is why there is no credential if no fetch has failed.
var errRefused = errors.New("the API server has refused the last ones")

// credential authenticates requests to the API server.
type credential struct {
	plugin.Credential
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
	if kept != nil && kept.expired() {
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
			c.transport, err = k.transportFor(c.Certificate)
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
	if last != nil && sameCertificate(last.Certificate, certificate) {
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
	if earliest := c.made.Add(minLifetime); !c.Expires.IsZero() && c.Expires.Before(earliest) {
		c.Expires = earliest
	}
	f.credential = &c
	if k.kept != nil && !sameCertificate(k.kept.Certificate, c.Certificate) {
		go utilnet.CloseIdleConnectionsFor(k.kept.transport)
	}
	k.kept, k.failures, k.notBefore = &c, 0, time.Time{}
	if inVain := max(k.refusals, k.doubts); inVain > 0 {
		k.notBefore = time.Now().Add(backoff(inVain))
	}
	if !c.Expires.IsZero() && c.Expires.Sub(c.made) >= shortLived {
		time.AfterFunc(time.Until(c.renewal()), func() { k.renew(ctx) })
	}
}

// renew fetches another credential before the one that is in use expires.
func (k *keeper) renew(ctx context.Context) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kept != nil && time.Since(k.used) < idle && !k.kept.expired() && !time.Now().Before(k.kept.renewal()) {
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

// usable reports whether there is a credential that was not refused. The keeper's mu is held.
func (c *credential) usable() bool { return c != nil && !c.refused && !c.doubted }

func (c *credential) expired() bool { return !c.Expires.IsZero() && !time.Now().Before(c.Expires) }

// renewal returns when the credential should be renewed: in the distant future if it does not expire.
func (c *credential) renewal() time.Time {
	if c.Expires.IsZero() {
		return c.made.AddDate(100, 0, 0)
	}
	return c.Expires.Add(-min(renewBefore, c.Expires.Sub(c.made)/2))
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
	if c.Token != "" {
		request = utilnet.CloneRequest(request)
		request.Header.Set("Authorization", "Bearer "+c.Token)
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

// tokenTimeout is how long Options.Token may take. It requests credentials from the metadata service, and nothing else.
const tokenTimeout = 5 * time.Second

// newKeeper returns the keeper of the credential that the kubeconfig's exec plugin or Options.Token makes, nil if there is
// none, and describes the credential that is configured.
func newKeeper(config *rest.Config, opts Options) (k *keeper, configured string, err error) {
	exec := config.ExecProvider
	if static := staticCredential(config); static != "" || exec == nil {
		return nil, cmp.Or(static, "nothing"), nil // a static credential takes precedence over a plugin
	}
	run, err := plugin.New(config, opts.Launch, opts.Environment)
	if err != nil {
		return nil, "", err
	}
	fromPlugin := source{name: "the exec plugin " + run.Name(), timeout: plugin.Timeout, make: run.Run}
	if opts.Token == nil {
		return &keeper{fetch: fromPlugin.fetch}, fromPlugin.name, nil
	}
	cluster, region, err := eksCluster(exec)
	if err != nil && opts.Fallback {
		return &keeper{fetch: fromPlugin.fetch}, fromPlugin.name, nil
	}
	if err != nil {
		return nil, "", err
	}
	own := source{
		name:    fmt.Sprintf("a token for the EKS cluster %s, of %s,", cluster, cmp.Or(opts.Role, "the instance's role")),
		timeout: tokenTimeout,
		make: func(ctx context.Context) (plugin.Credential, error) {
			token, expires, err := opts.Token(ctx, cluster, region)
			return plugin.Credential{Token: token, Expires: expires}, err
		},
	}
	if !opts.Fallback {
		return &keeper{fetch: own.fetch}, own.name, nil
	}
	return &keeper{fetch: (&either{first: own, second: fromPlugin}).fetch, alternates: true}, own.name, nil
}

// source is one way to obtain a credential.
type source struct {
	name    string
	timeout time.Duration
	make    func(ctx context.Context) (plugin.Credential, error)
}

func (s source) fetch(ctx context.Context, _ bool) (credential, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	c, err := s.make(ctx)
	return credential{Credential: c, source: s.name}, err
}

// either obtains a credential from the first source, or from the second if that fails. When a credential was refused, the two
// change places.
type either struct{ first, second source }

func (e *either) fetch(ctx context.Context, refused bool) (credential, error) {
	if refused {
		e.first, e.second = e.second, e.first
	}
	c, err := e.first.fetch(ctx, false)
	if err == nil {
		return c, nil
	}
	c, otherErr := e.second.fetch(ctx, false)
	if otherErr != nil {
		return c, fmt.Errorf("%w; %w", err, otherErr)
	}
	c.source = fmt.Sprintf("%s (%s)", c.source, OneLine(err))
	return c, nil
}

// errNeedsPlugin is why Options.Token cannot replace a plugin.
var errNeedsPlugin = errors.New("and has to be run")

// eksCluster reads from the command line of an exec plugin for EKS, "aws eks get-token" or "aws-iam-authenticator token",
// which cluster it makes tokens for. It is an error if the plugin has other arguments, such as the name of another role.
func eksCluster(exec *api.ExecConfig) (cluster, region string, err error) {
	name := filepath.Base(exec.Command)
	var defaultRegion string
	subcommand := map[string]string{"aws": "eks get-token", "aws-iam-authenticator": "token"}[name]
	for _, variable := range exec.Env {
		switch variable.Name {
		case "AWS_REGION":
			region = variable.Value
		case "AWS_DEFAULT_REGION": // AWS_REGION takes precedence
			defaultRegion = variable.Value
		case "AWS_STS_REGIONAL_ENDPOINTS": // tokens name regional endpoints in any case
		default:
			return "", "", fmt.Errorf("the exec plugin %s is given the variable %s, %w", name, variable.Name, errNeedsPlugin)
		}
	}
	region = cmp.Or(region, defaultRegion)
	var words []string
	for i := 0; i < len(exec.Args); i++ {
		flag, value, hasValue := strings.Cut(exec.Args[i], "=")
		if !strings.HasPrefix(flag, "-") {
			words = append(words, exec.Args[i])
			continue
		}
		if !hasValue && i+1 < len(exec.Args) {
			i++
			value = exec.Args[i]
		}
		switch flag {
		case "-i", "--cluster-id", "--cluster-name":
			cluster = value
		case "--region":
			region = value
		case "--output": // JSON, as no kubelet understands anything else
		default:
			return "", "", fmt.Errorf("the exec plugin %s is called with %s, %w", name, flag, errNeedsPlugin)
		}
	}
	if subcommand == "" || strings.Join(words, " ") != subcommand {
		return "", "", fmt.Errorf("the exec plugin %s is none of those that make tokens for EKS, %w", name, errNeedsPlugin)
	}
	if cluster == "" {
		return "", "", fmt.Errorf("the exec plugin %s is called for no cluster", name)
	}
	return cluster, region, nil
}
