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
	// renewBefore is how long before its end a credential is replaced, or half of its life if that is shorter. It is longer
	// than the pauses of KeepWarm, so that no drain begins with a token that the API server has not seen yet: looking into a
	// new one takes it some time.
	renewBefore = 6 * time.Minute
	// shortLived is the life of a credential that is only replaced when it is used.
	shortLived = 20 * time.Second
	// leastLife is how long a credential is shown at least, whatever it says of its end: a plugin that says a moment that is past,
	// or the next second, by mistake or by another clock, would be run for each request, and a drain makes hundreds. Whether it
	// is good, the API server knows; it is replaced beside the requests after half of that.
	leastLife = 10 * time.Second
	// idle is how long after it was used last a credential is still replaced in time.
	idle = 15 * time.Minute
	// firstPause and longestPause are how long to wait after a failure before a credential is asked for again. They double
	// with each.
	firstPause, longestPause = time.Second, 10 * time.Second
	// patience is how long a fetch may take before requests go with a credential that was refused: one refusal may have been
	// wrong, and a plugin that hangs would take a good token away for as long as it does.
	patience = 5 * time.Second
)

// errRefused is why there is no credential while nothing has failed.
var errRefused = errors.New("the API server has refused the last ones")

// credential is what is shown to the API server.
type credential struct {
	plugin.Credential
	made time.Time
	by   string            // what has made it, in a few words
	road http.RoundTripper // to the API server, with the certificate if there is one
	// refused is that the API server did not believe it when it was last shown, and doubted that it believes it, and takes it
	// for somebody else's than it should.
	refused, doubted bool
}

// keeper keeps a credential that has to be fetched, and fetches another in time. There is one fetch at a time. No request
// waits for it that has a credential to go with, and none beyond its own context.
type keeper struct {
	// fetch makes a credential; refused tells that the API server did not believe the last one. It ends by itself in time.
	fetch func(ctx context.Context, refused bool) (credential, error)
	// other tells that a credential which was refused is followed by one that is had in another way.
	other bool
	// bare is the road without a certificate, and build makes one with a certificate. Each has connections of its own: what is
	// under way with another credential ends as it would have.
	bare  http.RoundTripper
	build func(*tls.Certificate) (http.RoundTripper, error)

	mu       sync.Mutex
	kept     *credential
	fetching *fetching // nil if nothing is being fetched
	failure  error     // of the last fetch
	again    time.Time // when the next one may begin
	used     time.Time
	// failures, refusals and doubts are how many there were in a row.
	failures, refusals, doubts int
}

// fetching is one fetch; the fields hold when done is closed.
type fetching struct {
	began      time.Time
	done       chan struct{}
	credential *credential
	err        error
}

// get returns a credential that is good for a while. One that was refused, or is about to expire, will do while there is no
// other; but shown, if not nil, has just been shown and refused, and another is waited for as long as ctx lasts.
func (k *keeper) get(ctx context.Context, shown *credential) (*credential, error) {
	k.mu.Lock()
	k.used = time.Now()
	kept, wanted := k.kept, k.kept.wanted()
	if wanted && time.Now().Before(kept.renewal()) {
		k.mu.Unlock()
		return kept, nil
	}
	begun, failure := k.begin(context.WithoutCancel(ctx)), k.failure
	if kept != nil && kept.ended() {
		kept = nil
	}
	patient := kept == nil || kept == shown || kept.doubted
	k.mu.Unlock()
	switch {
	case kept != nil && (wanted || begun == nil):
		return kept, nil
	case begun == nil:
		return nil, fmt.Errorf("getting credentials: %w", cmp.Or(failure, errRefused))
	}
	if patient {
		return begun.await(ctx, kept, shown)
	}
	waiting, stop := context.WithDeadline(ctx, begun.began.Add(patience))
	defer stop()
	return begun.await(waiting, kept, shown)
}

// await returns what is fetched or, when ctx ends or the fetch fails, what is kept, if that was not shown in vain.
func (f *fetching) await(ctx context.Context, kept, shown *credential) (*credential, error) {
	select {
	case <-f.done:
	case <-ctx.Done():
		if kept != nil && kept != shown {
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

// begin fetches a credential, unless that is being done, and returns the fetch; nil while a pause lasts. It is called with
// the lock held.
func (k *keeper) begin(ctx context.Context) *fetching {
	if k.fetching != nil {
		return k.fetching
	}
	if time.Now().Before(k.again) {
		return nil
	}
	f := &fetching{began: time.Now(), done: make(chan struct{})}
	k.fetching = f
	refused := k.kept != nil && !k.kept.wanted()
	go func() {
		c, err := k.fetch(ctx, refused)
		if err == nil {
			c.road, err = k.road(c.Certificate)
		}
		k.end(ctx, f, c, err)
	}()
	return f
}

// road returns the one for a certificate: that of the credential before, if it had the same.
func (k *keeper) road(certificate *tls.Certificate) (http.RoundTripper, error) {
	if certificate == nil {
		return k.bare, nil
	}
	k.mu.Lock()
	before := k.kept
	k.mu.Unlock()
	if before != nil && sameCertificate(before.Certificate, certificate) {
		return before.road, nil
	}
	return k.build(certificate)
}

// end takes over what was fetched, and sees to it that it is replaced in time.
func (k *keeper) end(ctx context.Context, f *fetching, c credential, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	defer close(f.done)
	k.fetching, k.failure, f.err = nil, err, err
	if err != nil {
		k.failures++
		pause := pauseAfter(k.failures)
		k.again = time.Now().Add(pause)
		time.AfterFunc(pause, func() { k.ahead(ctx) })
		return
	}
	c.made = time.Now()
	if least := c.made.Add(leastLife); !c.Expires.IsZero() && c.Expires.Before(least) {
		c.Expires = least
	}
	f.credential = &c
	if k.kept != nil && !sameCertificate(k.kept.Certificate, c.Certificate) {
		go utilnet.CloseIdleConnectionsFor(k.kept.road)
	}
	k.kept, k.failures, k.again = &c, 0, time.Time{}
	if in := max(k.refusals, k.doubts); in > 0 {
		k.again = time.Now().Add(pauseAfter(in))
	}
	if !c.Expires.IsZero() && c.Expires.Sub(c.made) >= shortLived {
		time.AfterFunc(time.Until(c.renewal()), func() { k.ahead(ctx) })
	}
}

// ahead replaces a credential that is still used before it expires.
func (k *keeper) ahead(ctx context.Context) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kept != nil && time.Since(k.used) < idle && !k.kept.ended() && !time.Now().Before(k.kept.renewal()) {
		k.begin(ctx)
	}
}

// answered takes note of whether the API server has believed a credential. After one that it has not, another is asked for
// at once; if it believes that no more, after a pause. What it believes later was refused wrongly.
func (k *keeper) answered(c *credential, believed bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case c != k.kept:
	case believed:
		c.refused, k.refusals = false, 0
	case !c.refused:
		c.refused = true
		k.refusals++
	}
}

// doubt is for a credential that the API server has believed, and that is not the one that is wanted. It tells whether it is
// the first of these.
func (k *keeper) doubt() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.kept.wanted() {
		return false
	}
	k.kept.doubted = true
	k.doubts++
	return k.doubts == 1
}

// proof says what has made the credential; "" if there is none yet.
func (k *keeper) proof() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kept == nil {
		return ""
	}
	return k.kept.by
}

// wanted tells whether the credential is one to go with. It is called with the lock held.
func (c *credential) wanted() bool { return c != nil && !c.refused && !c.doubted }

// ended tells whether the credential is good no more.
func (c *credential) ended() bool { return !c.Expires.IsZero() && !time.Now().Before(c.Expires) }

// renewal is when the credential should be replaced; far away if it does not expire.
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

// pauseAfter is how long to wait after that many failures in a row, within a quarter to either side: what a plugin asks is
// asked by a whole fleet.
func pauseAfter(failures int) time.Duration {
	pause := min(firstPause<<min(failures-1, 10), longestPause)
	return wait.Jitter(pause*3/4, 2.0/3)
}

// refusalSize is the most that is kept of what the API server says when it refuses a credential.
const refusalSize = 64 << 10

// authenticated shows the API server the credential with each request.
type authenticated struct{ keeper *keeper }

var _ utilnet.RoundTripperWrapper = authenticated{}

// WrappedRoundTripper lets client-go find the connections behind, those without a certificate.
func (a authenticated) WrappedRoundTripper() http.RoundTripper { return a.keeper.bare }

// RoundTrip is the road's. Where a credential is refused, the request is made once more with another, unless its body can be
// read but once.
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
		return response, nil //nolint:nilerr // the answer stands
	}
	end(response)
	other, err := a.keeper.get(request.Context(), c)
	if err != nil && request.Context().Err() != nil {
		return nil, err
	}
	if err != nil || other == c {
		return response, nil //nolint:nilerr // the answer stands
	}
	return a.send(repeated, other)
}

// send makes the request with that credential.
func (a authenticated) send(request *http.Request, c *credential) (*http.Response, error) {
	if c.Token != "" {
		request = utilnet.CloneRequest(request)
		request.Header.Set("Authorization", "Bearer "+c.Token)
	}
	response, err := c.road.RoundTrip(request)
	if err == nil {
		a.keeper.answered(c, response.StatusCode != http.StatusUnauthorized)
	}
	return response, err
}

// end reads what is left of an answer and lets its connection go: another credential may take a while to come. The answer can
// still be read, as far as there was one.
func end(response *http.Response) {
	text, _ := io.ReadAll(io.LimitReader(response.Body, refusalSize)) // What is missing is words for people.
	_ = response.Body.Close()                                         // It was read.
	response.Body, response.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
}

// makeLimit is how long it may take to make a token, if there is a plugin to be run after that. The metadata service is
// asked for credentials, and nobody else.
const makeLimit = 5 * time.Second

// fetched returns the keeper of the credential that the kubeconfig's exec plugin, or what the options put in its place, has
// to fetch, nil if there is none; and says what is to prove the identity.
func fetched(config *rest.Config, opts Options) (k *keeper, proof string, err error) {
	exec := config.ExecProvider
	if own := inKubeconfig(config); own != "" || exec == nil {
		return nil, cmp.Or(own, "nothing"), nil // what stands in the kubeconfig goes before a plugin
	}
	run, err := plugin.New(config, opts.Launch, opts.Environment)
	if err != nil {
		return nil, "", err
	}
	running := source{by: "the exec plugin " + run.Name(), limit: plugin.Limit, make: run.Run}
	if opts.Token == nil {
		return &keeper{fetch: running.fetch}, running.by, nil
	}
	cluster, region, err := eksCluster(exec)
	if err != nil && opts.Fallback {
		return &keeper{fetch: running.fetch}, running.by, nil
	}
	if err != nil {
		return nil, "", err
	}
	made := source{
		by:    fmt.Sprintf("a token for the EKS cluster %s, of %s,", cluster, cmp.Or(opts.Role, "the instance's role")),
		limit: makeLimit,
		make: func(ctx context.Context) (plugin.Credential, error) {
			token, expires, err := opts.Token(ctx, cluster, region)
			return plugin.Credential{Token: token, Expires: expires}, err
		},
	}
	if !opts.Fallback {
		return &keeper{fetch: made.fetch}, made.by, nil
	}
	return &keeper{fetch: (&either{first: made, second: running}).fetch, other: true}, made.by, nil
}

// source is one way to have a credential.
type source struct {
	by    string
	limit time.Duration
	make  func(ctx context.Context) (plugin.Credential, error)
}

func (s source) fetch(ctx context.Context, _ bool) (credential, error) {
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	c, err := s.make(ctx)
	return credential{Credential: c, by: s.by}, err
}

// either has a credential in one way, or in another where that fails. One that was refused is followed by one that was had
// in the other way.
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
	c.by = fmt.Sprintf("%s (%s)", c.by, OneLine(err))
	return c, nil
}

// errMore is why a plugin has to be run.
var errMore = errors.New("and has to be run")

// eksCluster reads from the command line of an exec plugin for EKS, "aws eks get-token" or "aws-iam-authenticator token",
// which cluster it makes tokens for. A plugin that is told anything else, another identity for one, is an error.
func eksCluster(exec *api.ExecConfig) (cluster, region string, err error) {
	name := filepath.Base(exec.Command)
	var fallback string
	words := map[string]string{"aws": "eks get-token", "aws-iam-authenticator": "token"}[name]
	for _, variable := range exec.Env {
		switch variable.Name {
		case "AWS_REGION":
			region = variable.Value
		case "AWS_DEFAULT_REGION": // counts where the other is not there
			fallback = variable.Value
		case "AWS_STS_REGIONAL_ENDPOINTS": // regional ones are asked in any case
		default:
			return "", "", fmt.Errorf("the exec plugin %s is given the variable %s, %w", name, variable.Name, errMore)
		}
	}
	region = cmp.Or(region, fallback)
	var said []string
	for i := 0; i < len(exec.Args); i++ {
		flag, value, whole := strings.Cut(exec.Args[i], "=")
		if !strings.HasPrefix(flag, "-") {
			said = append(said, exec.Args[i])
			continue
		}
		if i++; whole {
			i--
		} else if i < len(exec.Args) {
			value = exec.Args[i]
		}
		switch flag {
		case "-i", "--cluster-id", "--cluster-name":
			cluster = value
		case "--region":
			region = value
		case "--output": // is JSON, or else no kubelet would understand it
		default:
			return "", "", fmt.Errorf("the exec plugin %s is called with %s, %w", name, flag, errMore)
		}
	}
	if words == "" || strings.Join(said, " ") != words {
		return "", "", fmt.Errorf("the exec plugin %s is none of those that make tokens for EKS, %w", name, errMore)
	}
	if cluster == "" {
		return "", "", fmt.Errorf("the exec plugin %s is called for no cluster", name)
	}
	return cluster, region, nil
}
