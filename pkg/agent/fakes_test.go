package agent_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/record"
)

// node is a Node whose calls end as they are told to. It minds that there is one at a time.
type node struct {
	t    *testing.T
	tape *tape

	mu   sync.Mutex
	busy bool
	ways ways
}

// ways are how calls go.
type ways struct {
	cordon   func(ctx context.Context) (drain.CordonResult, error)
	drain    func(ctx context.Context, plan drain.Plan) (drain.Result, error)
	uncordon func(ctx context.Context) (drain.UncordonResult, error)
	claim    func(ctx context.Context) (drain.Claim, bool, error)
}

func newNode(t *testing.T, tp *tape) *node {
	return &node{t: t, tape: tp, ways: ways{
		cordon:   func(context.Context) (drain.CordonResult, error) { return drain.CordonSet, nil },
		drain:    empty,
		uncordon: func(context.Context) (drain.UncordonResult, error) { return drain.UncordonLifted, nil },
		claim:    func(context.Context) (drain.Claim, bool, error) { return drain.Claim{}, false, nil },
	}}
}

// to changes how calls go from now on.
func (n *node) to(change func(*ways)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change(&n.ways)
}

func (n *node) toCordon(how func(context.Context) (drain.CordonResult, error)) {
	n.to(func(w *ways) { w.cordon = how })
}

func (n *node) toDrain(how func(context.Context, drain.Plan) (drain.Result, error)) {
	n.to(func(w *ways) { w.drain = how })
}

func (n *node) toUncordon(how func(context.Context) (drain.UncordonResult, error)) {
	n.to(func(w *ways) { w.uncordon = how })
}

func (n *node) toClaim(how func(context.Context) (drain.Claim, bool, error)) {
	n.to(func(w *ways) { w.claim = how })
}

func (n *node) now() ways {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ways
}

// empty is the drain of a node that is drained at once.
func empty(context.Context, drain.Plan) (drain.Result, error) {
	return drain.Result{Cordon: drain.CordonSet}, nil
}

// stuck is the drain of a node with a pod that does not go.
func stuck(ctx context.Context, _ drain.Plan) (drain.Result, error) {
	<-ctx.Done()
	return drain.Result{
		Cordon: drain.CordonSet, Evicted: 2,
		Left: []string{"default/web-1"}, HeldBy: map[string]string{"default/web-1": "PDB default/web"},
	}, ctx.Err()
}

// fails is a drain that cannot be.
func fails(context.Context, drain.Plan) (drain.Result, error) {
	return drain.Result{}, errors.New("forbidden")
}

// enter begins a call and returns what ends it.
func (n *node) enter(format string, args ...any) func() {
	what := fmt.Sprintf(format, args...)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.busy {
		n.t.Errorf("%s begins while another step is in flight", what)
	}
	n.busy = true
	n.tape.add("%s", what)
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.busy = false
		n.tape.add("%s ended", what)
	}
}

func (n *node) Cordon(ctx context.Context, claim drain.Claim) (drain.CordonResult, error) {
	defer n.enter("cordon for %s", claim.Event)()
	if _, limited := ctx.Deadline(); limited {
		n.t.Error("a cordon has a deadline")
	}
	return n.now().cordon(ctx)
}

func (n *node) Drain(ctx context.Context, plan drain.Plan) (drain.Result, error) {
	limit := ""
	if deadline, limited := ctx.Deadline(); limited {
		limit = " in " + time.Until(deadline).String()
	}
	if plan.Hard {
		limit += " hard"
	}
	defer n.enter("drain for %s%s", plan.Claim.Event, limit)()
	return n.now().drain(ctx, plan)
}

func (n *node) Uncordon(ctx context.Context, ready bool) (drain.UncordonResult, error) {
	when := ""
	if ready {
		when = " when ready"
	}
	defer n.enter("uncordon%s", when)()
	return n.now().uncordon(ctx)
}

func (n *node) Claim(ctx context.Context) (drain.Claim, bool, error) { return n.now().claim(ctx) }

// memory is a Record that can be told to fail.
type memory struct {
	tape *tape

	mu      sync.Mutex
	entries []record.Entry
	err     error
}

// loses lets every Put fail from now on.
func (m *memory) loses(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

func (m *memory) Entries() []record.Entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.entries)
}

func (m *memory) Put(e record.Entry) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	text := fmt.Sprintf("put %s %s", e.Event.ID, e.Phase)
	if e.Ending != "" {
		text += " " + string(e.Ending)
	}
	m.tape.add("%s", text)
	i := slices.IndexFunc(m.entries, func(o record.Entry) bool { return o.Event.ID == e.Event.ID })
	if i < 0 {
		m.entries = append(m.entries, e)
	} else {
		m.entries[i] = e
	}
	return m.err
}

// service is a Service that remembers.
type service struct {
	tape *tape

	mu       sync.Mutex
	status   string
	slow     time.Duration // how long it takes to tell
	statuses int
	beats    int
	ready    bool
	stopping bool
}

func (s *service) Ready() { s.set(func() { s.ready = true }) }

func (s *service) Status(format string, args ...any) {
	s.set(func() { s.status, s.statuses = fmt.Sprintf(format, args...), s.statuses+1 })
	if s.slow > 0 {
		time.Sleep(s.slow)
	}
}

func (s *service) Stopping() { s.set(func() { s.stopping = true }) }

func (s *service) Beat() { s.set(func() { s.beats++ }) }

func (s *service) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *service) sentence() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// source is a Source that the test speaks through.
type source struct {
	sink event.Sink
	fail chan error
	last error // what it says when it was asked to end
}

func (s *source) Run(ctx context.Context, sink event.Sink) error {
	s.sink = sink
	select {
	case <-ctx.Done():
		return s.last
	case err := <-s.fail:
		return err
	}
}

// identity is an Identity that tells one thing at once, if it has a name or an error, and others when the test says so.
type identity struct {
	name string
	err  error
	tell func(node string, err error)
}

func (i *identity) KeepWarm(ctx context.Context, tell func(node string, err error)) {
	i.tell = tell
	if i.name != "" || i.err != nil {
		tell(i.name, i.err)
	}
	<-ctx.Done()
}
