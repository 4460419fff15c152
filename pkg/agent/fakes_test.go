package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
)

// node is a Node whose calls go as the test says. It sees to it that one of them is under way at a time.
type node struct {
	t    *testing.T
	tape *tape

	mu   sync.Mutex
	busy bool
	ways ways
	// goals are those that guards began with or were adjusted to.
	goals []drain.Goal
}

// ways are how calls go.
type ways struct {
	guard    script
	uncordon func(ctx context.Context) (drain.UncordonResult, error)
	claim    func(ctx context.Context) (drain.Claim, bool, error)
}

// script is what a guard reports, and when. If it ends before ctx does, the guard stays and reports nothing more.
type script func(ctx context.Context, g *guard)

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

// enter begins a call, and returns what ends it.
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

func (n *node) Guard(ctx context.Context, task *drain.Task, report func(drain.Progress)) {
	g := &guard{node: n, task: task, report: report, adjusted: make(chan struct{}, 1)}
	task.SetResult(func() drain.Result { g.mu.Lock(); defer g.mu.Unlock(); return g.result })
	n.noteGoal(task.Goal())
	defer n.enter("guard for " + inWords(task.Goal()))()
	watching, stop := context.WithCancel(ctx)
	defer stop()
	go g.watch(watching)
	n.now().guard(ctx, g)
	for g.next(ctx) {
	}
}

// watch notes when the goal is adjusted, whatever the script waits for, and wakes next.
func (g *guard) watch(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.task.Changed():
		}
		g.node.noteGoal(g.wants())
		g.node.tape.add("adjust to %s", inWords(g.wants()))
		select {
		case g.adjusted <- struct{}{}:
		default:
		}
	}
}

func (n *node) noteGoal(goal drain.Goal) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.goals = append(n.goals, goal)
}

// firstAndLast are goals of the guards.
func (n *node) firstAndLast() (first, last drain.Goal) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.goals[0], n.goals[len(n.goals)-1]
}

func (n *node) Uncordon(ctx context.Context, _ drain.Booted) (drain.UncordonResult, error) {
	defer n.enter("uncordon")()
	return n.now().uncordon(ctx)
}

func (n *node) Claim(ctx context.Context) (drain.Claim, bool, error) { return n.now().claim(ctx) }

// guard is a Guard that reports what its script says.
type guard struct {
	node     *node
	task     *drain.Task
	report   func(drain.Progress)
	adjusted chan struct{}

	mu     sync.Mutex
	state  drain.State
	result drain.Result
}

// wants is the goal as it is now.
func (g *guard) wants() drain.Goal { return g.task.Goal() }

// inWords is a goal with its times counted from now.
func inWords(goal drain.Goal) string {
	words := strings.Join(goal.Claim.Events, ", ") + ": cordon"
	if goal.Evict {
		words = strings.Join(goal.Claim.Events, ", ") + ": drain"
	}
	if !goal.Hard.IsZero() {
		words += ", hard in " + time.Until(goal.Hard).String()
	}
	if !goal.Soft.IsZero() {
		words += ", soft in " + time.Until(goal.Soft).String()
	}
	if !goal.Before.IsZero() {
		words += ", reopened"
	}
	return words
}

// next waits until the goal has changed, and reports how the node is then. It is false when ctx has ended.
func (g *guard) next(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-g.adjusted:
		g.becomes(func(s *drain.State) { s.Drained = false }, drain.Progress{Kind: state.StateChanged})
		return true
	}
}

// say reports something, with how the node is.
func (g *guard) say(all ...drain.Progress) {
	for _, p := range all {
		g.mu.Lock()
		p.Generation, p.State = g.task.Goal().Generation, g.state
		g.mu.Unlock()
		g.report(p)
	}
}

// becomes reports something that changes how the node is.
func (g *guard) becomes(change func(*drain.State), p drain.Progress) {
	g.mu.Lock()
	change(&g.state)
	g.mu.Unlock()
	g.say(p)
}

// close cordons the node.
func (g *guard) close() { g.closeAs(state.NodeCordoned, drain.CordonSet) }

// closeAs finds, or makes, the node unschedulable.
func (g *guard) closeAs(what state.TransitionKind, how drain.CordonResult) {
	g.did(drain.Result{Cordon: how})
	g.becomes(func(s *drain.State) { *s = drain.State{Cordoned: true, Ours: how != drain.CordonForeign, UID: "node"} },
		drain.Progress{Kind: what, Detail: string(how)})
}

// drain reports that the node is drained.
func (g *guard) drain() {
	g.becomes(func(s *drain.State) { s.Drained = true }, drain.Progress{Kind: state.NodeEmpty})
}

// open reports that an operator has uncordoned the node.
func (g *guard) open() {
	g.becomes(func(s *drain.State) { s.Cordoned, s.Uncordoned = false, true }, drain.Progress{Kind: state.NodeUncordoned, Claim: g.wants().Claim})
}

// limit reports what a look at the Node has shown of its annotation.
func (g *guard) limit(limited bool) {
	g.becomes(func(s *drain.State) { s.Looked, s.MayNotEvict, s.Drained = true, limited, s.Drained && !limited }, drain.Progress{Kind: state.StateChanged})
}

// did sets the result so far.
func (g *guard) did(r drain.Result) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.result = r
}

// rest lets time pass, and reports whether it did: ctx may end before.
func rest(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// The scripts.

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
		g.becomes(func(s *drain.State) { s.Trouble = "forbidden" }, drain.Progress{Kind: state.NodeCordonFailed, Detail: "forbidden"})
		if !rest(ctx, pause) {
			return
		}
	}
}

// reports guards a node and reports this, with no cordon.
func reports(all ...drain.Progress) script {
	return func(_ context.Context, g *guard) { g.say(all...) }
}

// The ways of an uncordon and of the claim.

func lifts(context.Context) (drain.UncordonResult, error) { return drain.UncordonLifted, nil }

// refused is an uncordon that the API server refuses.
func refused(context.Context) (drain.UncordonResult, error) { return "", errors.New("forbidden") }

// hangs is an uncordon that does not end by itself.
func hangs(ctx context.Context) (drain.UncordonResult, error) {
	<-ctx.Done()
	return "", ctx.Err()
}

// claims is a Node that bears this claim of nth's; none if it is nil.
func claims(claim *drain.Claim) func(context.Context) (drain.Claim, bool, error) {
	return func(context.Context) (drain.Claim, bool, error) {
		if claim == nil {
			return drain.Claim{}, false, nil
		}
		return *claim, true, nil
	}
}

// unanswered is a Node that cannot be read.
func unanswered(context.Context) (drain.Claim, bool, error) {
	return drain.Claim{}, false, errors.New("connection refused")
}

// memory is a Record that can fail, or take its time. It fails for an entry that cannot be encoded.
type memory struct {
	tape *tape
	// released is closed when the disk no longer hangs.
	released chan struct{}
	writes   sync.WaitGroup

	mu      sync.Mutex
	entries []state.Entry
	puts    atomic.Int32
	err     error         // of every Put
	hangs   time.Duration // how long every Put takes
}

// set changes or reads what the test may know.
func (m *memory) set(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

func (m *memory) Entries() []state.Entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.entries)
}

func (m *memory) Put(written func(error), entries ...state.Entry) {
	m.mu.Lock()
	m.puts.Add(1)
	err, hangs := m.err, m.hangs
	for _, e := range entries {
		if _, bad := json.Marshal(e); bad != nil {
			err = bad
		}
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
	case before.Released() != e.Released():
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
	mu       sync.Mutex
	status   string
	slow     time.Duration // how long Status takes
	statuses int
	beats    int
	ready    bool
	stopping bool
}

func (s *service) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *service) Ready()    { s.set(func() { s.ready = true }) }
func (s *service) Stopping() { s.set(func() { s.stopping = true }) }
func (s *service) Beat()     { s.set(func() { s.beats++ }) }

func (s *service) Status(format string, args ...any) {
	var slow time.Duration
	s.set(func() { s.status, s.statuses, slow = fmt.Sprintf(format, args...), s.statuses+1, s.slow })
	if slow > 0 {
		time.Sleep(slow)
	}
}

func (s *service) sentence() (sentence string) {
	s.set(func() { sentence = s.status })
	return sentence
}

// counts are how often the watchdog was fed, and how often a status was shown.
func (s *service) counts() (beats, statuses int) {
	s.set(func() { beats, statuses = s.beats, s.statuses })
	return beats, statuses
}

// source is a Source, and a HealthChecker, that the test speaks through.
type source struct {
	sink event.Sink

	mu      sync.Mutex
	stalled error
}

func (s *source) Run(ctx context.Context, sink event.Sink) {
	s.sink = sink
	<-ctx.Done()
}

func (s *source) Stalled() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stalled
}

func (s *source) stall(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stalled = err
}

// identity is an Identity that reports one thing at once, if it has a name or an error, and others when the test says so.
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

// ear is a Listener that writes down what it hears.
type ear struct {
	tape

	all []state.Transition
}

func (e *ear) OnTransition(h state.Transition) {
	line := fmt.Sprintf("%s %s", h.Kind, h.Entry.Event.ID)
	if h.Action != "" {
		line += fmt.Sprintf(" %s after %s", h.Action, h.Took)
	}
	if h.Pod != "" {
		line += fmt.Sprintf(" %s (%s) %d of %d", h.Pod, h.PodUID, h.Left, h.Total)
	}
	if h.Err != nil {
		line += ": " + h.Err.Error()
	}
	e.add("%s", strings.TrimSpace(line+" "+h.Detail))
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, h)
}

// find is the first transition of a kind.
func (e *ear) find(kind state.TransitionKind) state.Transition {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, h := range e.all {
		if h.Kind == kind {
			return h
		}
	}
	return state.Transition{}
}

// board is a StatusWriter that remembers.
type board struct {
	mu    sync.Mutex
	shown state.Status
}

func (b *board) Show(s state.Status) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shown = s
}

func (b *board) last() state.Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.shown
}
