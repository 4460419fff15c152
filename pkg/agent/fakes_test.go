package agent_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
)

// node is a Node whose guards, and whose other calls, go as they are told to. It minds that one of them is under way at a time.
type node struct {
	t    *testing.T
	tape *tape

	mu   sync.Mutex
	busy bool
	ways ways
	// guards counts those that were begun, and booted is what the last Uncordon was to wait for.
	guards int
	booted drain.Booted
}

// ways are how calls go.
type ways struct {
	guard    script
	uncordon func(ctx context.Context) (drain.UncordonResult, error)
	claim    func(ctx context.Context) (drain.Claim, bool, error)
}

// script is what a guard tells, and when. It may end before ctx does: then the guard stands and tells nothing more.
type script func(ctx context.Context, g *guard)

func newNode(t *testing.T, tp *tape) *node {
	return &node{t: t, tape: tp, ways: ways{
		guard:    empty,
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

func (n *node) toGuard(how script) { n.to(func(w *ways) { w.guard = how }) }

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

// enter begins what takes its time, and returns what ends it.
func (n *node) enter(what string) func() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.busy {
		n.t.Errorf("%s begins while other work is under way", what)
	}
	n.busy = true
	n.tape.add("%s", what)
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.busy = false
		what, _, _ := strings.Cut(what, " for ")
		n.tape.add("%s ended", what)
	}
}

func (n *node) Guard(goal drain.Goal, tell func(drain.Progress)) drain.Guard {
	return &guard{node: n, goal: goal, told: tell, adjusted: make(chan struct{}, 1)}
}

func (n *node) Uncordon(ctx context.Context, booted drain.Booted) (drain.UncordonResult, error) {
	what := "uncordon"
	if booted != nil {
		what += " when ready"
	}
	defer n.enter(what)()
	n.mu.Lock()
	n.booted = booted
	n.mu.Unlock()
	return n.now().uncordon(ctx)
}

// awaits tells whether the last Uncordon was to wait for the kubelet.
func (n *node) awaits() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.booted != nil
}

func (n *node) Claim(ctx context.Context) (drain.Claim, bool, error) { return n.now().claim(ctx) }

// guard is a Guard that tells what its script says.
type guard struct {
	node     *node
	told     func(drain.Progress)
	adjusted chan struct{}

	mu     sync.Mutex
	goal   drain.Goal
	state  drain.State
	result drain.Result
}

func (g *guard) Run(ctx context.Context) {
	g.node.mu.Lock()
	g.node.guards++
	g.node.mu.Unlock()
	defer g.node.enter("guard for " + inWords(g.wants()))()
	g.node.now().guard(ctx, g)
	for g.next(ctx) {
	}
}

func (g *guard) Adjust(goal drain.Goal) {
	g.mu.Lock()
	g.goal = goal
	g.mu.Unlock()
	g.node.tape.add("adjust to %s", inWords(goal))
	select {
	case g.adjusted <- struct{}{}:
	default:
	}
}

func (g *guard) Result() drain.Result {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.result
}

// wants is the goal as it is now.
func (g *guard) wants() drain.Goal {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.goal
}

// inWords is what is wanted for whom by when, counted from now.
func inWords(goal drain.Goal) string {
	words := strings.Join(goal.Events, ", ") + ": cordon"
	if goal.Evict {
		words = strings.Join(goal.Events, ", ") + ": drain"
	}
	if !goal.Hard.IsZero() {
		words += ", hard in " + time.Until(goal.Hard).String()
	}
	if !goal.Soft.IsZero() {
		words += ", soft in " + time.Until(goal.Soft).String()
	}
	if !goal.Reopened.IsZero() {
		words += ", reopened"
	}
	return words
}

// next waits until the goal has changed, and tells how the node stands then. It is false when ctx has ended.
func (g *guard) next(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-g.adjusted:
		g.mu.Lock()
		g.state.Drained = false
		g.mu.Unlock()
		g.say(drain.Progress{Kind: state.GoalChanged})
		return true
	}
}

// say tells something, with how the node stands.
func (g *guard) say(p drain.Progress) {
	g.mu.Lock()
	p.Goal, p.State = g.goal.Number, g.state
	g.mu.Unlock()
	g.told(p)
}

// becomes tells something of the node that changes how it stands.
func (g *guard) becomes(change func(*drain.State), p drain.Progress) {
	g.mu.Lock()
	change(&g.state)
	g.mu.Unlock()
	g.say(p)
}

// close cordons the node.
func (g *guard) close() { g.closeAs(state.NodeClosed, drain.CordonSet) }

// closeAs finds, or makes, the node unschedulable.
func (g *guard) closeAs(what state.TransitionKind, how drain.CordonResult) {
	g.did(drain.Result{Cordon: how})
	g.becomes(func(s *drain.State) { *s = drain.State{Closed: true, Ours: how != drain.CordonForeign, Seen: true} },
		drain.Progress{Kind: what, Detail: string(how)})
}

// drain tells that the node is drained.
func (g *guard) drain() {
	g.becomes(func(s *drain.State) { s.Drained = true }, drain.Progress{Kind: state.NodeEmpty})
}

// limit tells what a look at the Node has shown of whether people want its pods left alone.
func (g *guard) limit(limited bool) {
	g.becomes(func(s *drain.State) { s.Looked, s.Limited, s.Drained = true, limited, s.Drained && !limited }, drain.Progress{Kind: state.GoalChanged})
}

// did is how far it has come.
func (g *guard) did(r drain.Result) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.result = r
}

// rest lets time pass, and tells whether it did: ctx may end before.
func rest(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// pods tells several things in a row.
func (g *guard) pods(told ...drain.Progress) {
	for _, p := range told {
		g.say(p)
	}
}

// empty guards a node that is drained as soon as it is closed.
func empty(ctx context.Context, g *guard) {
	g.close()
	emptied(ctx, g)
}

// emptied guards a node that is closed already and on which nothing is left.
func emptied(ctx context.Context, g *guard) {
	for again := true; again; again = g.next(ctx) {
		if g.wants().Evict {
			g.drain()
		}
	}
}

// stuck guards a node with a pod that does not go.
func stuck(_ context.Context, g *guard) {
	g.close()
	g.did(drain.Result{
		Cordon: drain.CordonSet, Evicted: 2,
		Left: []string{"default/web-1"}, HeldBy: map[string]string{"default/web-1": "PDB default/web"},
	})
}

// after guards a node that is closed at once, and drained so much later.
func after(d time.Duration) script {
	return func(ctx context.Context, g *guard) {
		g.close()
		if rest(ctx, d) {
			emptied(ctx, g)
		}
	}
}

// forbidden guards a node whose cordon is refused for good.
func forbidden(ctx context.Context, g *guard) {
	for pause := 2 * time.Second; ; pause = min(2*pause, time.Minute) {
		g.becomes(func(s *drain.State) { s.Trouble = "forbidden" }, drain.Progress{Kind: state.NodeUnclosable, Detail: "forbidden"})
		if !rest(ctx, pause) {
			return
		}
	}
}

// memory is a Record that can be told to fail, or to take its time.
type memory struct {
	tape *tape
	// released is closed when the disk hangs no more.
	released chan struct{}
	writes   sync.WaitGroup

	mu      sync.Mutex
	entries []state.Entry
	count   int // of Puts
	err     error
	hangs   time.Duration
}

// puts is how often something was put.
func (m *memory) puts() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.count
}

// hangsFor lets every Put take so long from now on.
func (m *memory) hangsFor(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hangs = d
}

// loses lets every Put fail from now on.
func (m *memory) loses(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

func (m *memory) Entries() []state.Entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.entries)
}

func (m *memory) Put(written func(error), entries ...state.Entry) {
	m.mu.Lock()
	m.count++
	for _, e := range entries {
		i := slices.IndexFunc(m.entries, func(o state.Entry) bool { return o.Event.ID == e.Event.ID })
		if i < 0 {
			i = len(m.entries)
			m.entries = append(m.entries, state.Entry{})
		}
		if news := newsOf(m.entries[i], e); news != "" {
			m.tape.add("%s", strings.TrimSpace("put "+e.Event.ID+" "+string(e.Phase)+news))
		}
		m.entries[i] = e
	}
	err, hangs := m.err, m.hangs
	m.mu.Unlock()
	if hangs == 0 {
		written(err)
		return
	}
	m.writes.Go(func() {
		select {
		case <-time.After(hangs):
		case <-m.released:
		}
		written(err)
	})
}

// newsOf is what an entry says that it did not say before; empty if that is bookkeeping.
func newsOf(before, e state.Entry) string {
	switch {
	case before.Phase != e.Phase && e.Ending != "":
		return " " + string(e.Ending)
	case before.Phase != e.Phase:
		return " "
	case before.Missing.IsZero() != e.Missing.IsZero():
		return map[bool]string{true: ", back", false: ", missing"}[e.Missing.IsZero()]
	case before.Reopened != e.Reopened:
		return ", reopened"
	case before.Error != e.Error:
		return ": " + e.Error
	case !before.Event.Deadline.Equal(e.Event.Deadline) || before.Event.State != e.Event.State:
		return ", changed"
	}
	return ""
}

func (m *memory) Flush(ctx context.Context) error {
	written := make(chan struct{})
	go func() {
		m.writes.Wait()
		close(written)
	}()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-written:
	}
	m.mu.Lock()
	defer m.mu.Unlock()
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
	var slow time.Duration
	s.set(func() { s.status, s.statuses, slow = fmt.Sprintf(format, args...), s.statuses+1, s.slow })
	if slow > 0 {
		time.Sleep(slow)
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

// waiting is an uncordon that comes to nothing.
func waiting(ctx context.Context) (drain.UncordonResult, error) { return "", wait(ctx) }

// noClaim is what a Node says that cannot be asked.
func noClaim(context.Context) (drain.Claim, bool, error) {
	return drain.Claim{}, false, errors.New("connection refused")
}

// nothing guards a node and tells nothing.
func nothing(ctx context.Context, _ *guard) { <-ctx.Done() }

// glimpse guards a node that was there once, and tells no more of it.
func glimpse(ctx context.Context, g *guard) {
	g.becomes(func(s *drain.State) { s.Seen = true }, drain.Progress{Kind: state.GoalChanged})
	g.becomes(func(s *drain.State) { s.Seen = false }, drain.Progress{Kind: state.GoalChanged})
	<-ctx.Done()
}

// orders is a Node that writes down what its guards are to do, and of each whether the node was left alone as it began.
type orders struct {
	*node
	mu      sync.Mutex
	goals   []drain.Goal
	limited []bool
}

func (o *orders) Guard(goal drain.Goal, tell func(drain.Progress)) drain.Guard {
	o.note(goal)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.limited = append(o.limited, goal.Limited)
	return &ordered{Guard: o.node.Guard(goal, tell), orders: o}
}

func (o *orders) note(goal drain.Goal) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.goals = append(o.goals, goal)
}

// begun is whether each guard began with a node that was left alone.
func (o *orders) begun() []bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.limited)
}

// seen is whether each goal said that there has been a Node.
func (o *orders) seen() []bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	var all []bool
	for _, goal := range o.goals {
		all = append(all, goal.NodeSeen)
	}
	return all
}

type ordered struct {
	drain.Guard
	orders *orders
}

func (o *ordered) Adjust(goal drain.Goal) {
	o.orders.note(goal)
	o.Guard.Adjust(goal)
}
