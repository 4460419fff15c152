package imds_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds"
	"github.com/nth-project/nth/pkg/internal/pipetest"
)

// bubble runs f while a source polls the service, on a network and a clock of their own: an hour of polling takes no
// time, and a duration measured in it is exact.
func bubble(t *testing.T, opts imds.Options, ec2 http.Handler, f func(t *testing.T, sink *sink)) {
	t.Helper()
	inBubble(t, opts, ec2, func(t *testing.T, source *imds.Source) { run(t, source, f) })
}

// run runs f while the source runs.
func run(t *testing.T, source *imds.Source, f func(t *testing.T, sink *sink)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	found := &sink{}
	var running sync.WaitGroup
	running.Go(func() { source.Run(ctx, found) })
	defer func() {
		stopped := time.Now()
		cancel()
		running.Wait()
		if took := time.Since(stopped); took > 0 {
			t.Errorf("Run took %s to end", took)
		}
	}()
	f(t, found)
}

// inBubble runs f with a source that is not running.
func inBubble(t *testing.T, opts imds.Options, ec2 http.Handler, f func(t *testing.T, source *imds.Source)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		server := pipetest.Serve(ec2)
		defer server.Close()
		source := newSource(t, opts)
		source.DialWith(server.Dial)
		f(t, source)
	})
}

// newSource makes a source with what every source has. Without kinds, it polls for all.
func newSource(t *testing.T, opts imds.Options) *imds.Source {
	t.Helper()
	opts.Endpoint, opts.BootID = "http://169.254.169.254", cmp.Or(opts.BootID, "boot-1")
	opts.Interval = cmp.Or(opts.Interval, 500*time.Millisecond)
	if opts.Kinds == nil {
		opts.Kinds = imdsKinds
	}
	source, err := imds.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return source
}

// answer is what the service says to one request. The zero value is EC2's 404.
type answer struct {
	status int // 0: 200 if there is a body
	body   string
	header http.Header
	hang   bool
}

// service is the barest of metadata services, and says what it is told to: what the real one would never say is what
// most tests are about. Paths are those below /latest/meta-data/; "token" is the session token's.
type service struct {
	mu      sync.Mutex
	answers map[string]answer
	asked   map[string][]time.Time
	now     map[string]int // requests under way
	most    map[string]int // the most of them at once
	bare    []string       // documents that were asked for without a token
}

// serve makes a service with the documents.
func serve(documents map[string]string) *service {
	s := &service{
		answers: map[string]answer{}, asked: map[string][]time.Time{}, now: map[string]int{}, most: map[string]int{},
	}
	for path, body := range documents {
		s.answers[path] = answer{status: 200, body: body}
	}
	return s
}

// say changes what the service answers for a path.
func (s *service) say(path string, a answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[path] = a
}

// unsay makes a document absent.
func (s *service) unsay(path string) { s.say(path, answer{}) }

// times returns when a path was asked for.
func (s *service) times(path string) []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked[path])
}

// atOnce returns for each path the most requests that were under way at once.
func (s *service) atOnce() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.most)
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/latest/meta-data/"), "/latest/")
	if path == "api/token" {
		path = "token"
	}
	time.Sleep(time.Millisecond) // the way there; a request that was given up before this one has left by then
	a := s.enter(path, r)
	defer s.leave(path)
	switch {
	case a.hang:
		<-r.Context().Done()
		return
	case a.status == 0 && a.body == "" && path == "token":
		w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", r.Header.Get("X-Aws-Ec2-Metadata-Token-Ttl-Seconds"))
		_, _ = fmt.Fprint(w, "a-token")
		return
	case a.status == 0 && a.body == "":
		a = answer{status: http.StatusNotFound, body: "<html>404 - Not Found</html>"}
	case a.status == 0:
		a.status = http.StatusOK
	}
	for name, values := range a.header {
		w.Header()[name] = values
	}
	w.WriteHeader(a.status)
	_, _ = fmt.Fprint(w, a.body)
}

func (s *service) enter(path string, r *http.Request) answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[path] = append(s.asked[path], time.Now())
	s.now[path]++
	s.most[path] = max(s.most[path], s.now[path])
	if path != "token" && r.Header.Get("X-Aws-Ec2-Metadata-Token") == "" {
		s.bare = append(s.bare, path)
	}
	return s.answers[path]
}

func (s *service) leave(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now[path]--
}

// sink keeps what a source delivers.
type sink struct {
	mu    sync.Mutex
	heard []delivery
}

// delivery is a snapshot or, if err is set, trouble.
type delivery struct {
	kind   event.Kind
	events []event.Event
	err    error
	at     time.Time
	clock  time.Time
	within time.Duration
}

func (s *sink) Snapshot(snapshot event.Snapshot) {
	s.keep(delivery{kind: snapshot.Kind, events: snapshot.Events, clock: snapshot.Clock, within: snapshot.Within})
}

func (s *sink) Trouble(kind event.Kind, err error) { s.keep(delivery{kind: kind, err: err}) }

func (s *sink) keep(d delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d.at = time.Now()
	s.heard = append(s.heard, d)
}

// of returns what was delivered for a kind: its snapshots and its troubles.
func (s *sink) of(kind event.Kind) (snapshots, troubles []delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.heard {
		switch {
		case d.kind != kind:
		case d.err != nil:
			troubles = append(troubles, d)
		default:
			snapshots = append(snapshots, d)
		}
	}
	return snapshots, troubles
}

// last returns the newest snapshot of a kind; ok is false if there has been none.
func (s *sink) last(kind event.Kind) (events []event.Event, ok bool) {
	snapshots, _ := s.of(kind)
	if len(snapshots) == 0 {
		return nil, false
	}
	return snapshots[len(snapshots)-1].events, true
}
