package drain_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/evict"
	"github.com/nth-project/nth/pkg/state"
)

func TestMain(m *testing.M) {
	if server := os.Getenv(fatNodeAt); server != "" {
		said, err := drainFatNode(server)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(said)
		return
	}
	os.Exit(apitest.RunTests(m))
}

var bubble, run, await = apitest.Bubble, apitest.Run, apitest.Await

// plenty is a deadline that no test comes near unless it fails.
const plenty = time.Hour

var claim = drain.Claim{Event: "event-1", Kind: "spot-interruption", BootID: "boot-1", Since: time.Unix(1700000000, 0).UTC()}

// trial is a guard that stands over the server's node, or stood.
type trial struct {
	t    *testing.T
	task *drain.Task
	goal drain.Goal
	// cancel stops it, and done is closed when it has stopped. began is when it was set, and end when its time is over.
	cancel     context.CancelFunc
	done       chan struct{}
	drained    chan struct{} // closed when it is reported for the first time that the node is drained
	began, end time.Time
	result     drain.Result

	mu       sync.Mutex
	reports  []drain.Progress
	emptied  time.Time
	adjusted int // how much had been reported when the goal changed last
}

// begin sets a guard that has plenty of time, and a deadline that is not hard.
func begin(t *testing.T, s *apitest.Server, opts drain.Options) *trial {
	t.Helper()
	return beginWithin(t, s, opts, false, plenty)
}

// beginWithin sets a guard with so much time; with 0, it has no deadline.
func beginWithin(t *testing.T, s *apitest.Server, opts drain.Options, hard bool, limit time.Duration) *trial {
	t.Helper()
	return start(t, s, opts, goalWithin(hard, limit))
}

// goalWithin is to drain for the event of the claim, which was met now.
func goalWithin(hard bool, limit time.Duration) drain.Goal {
	goal := drain.Goal{Generation: 1, Claim: claim, Cordon: true, Evict: true}
	goal.Claim.Since = time.Now().UTC()
	switch end := time.Now().Add(limit); {
	case limit == 0:
	case hard:
		goal.Hard, goal.TimeEnds = end, end
	default:
		goal.Soft, goal.TimeEnds = end, end
	}
	return goal
}

// start sets a guard, which stands until the test ends or it is canceled. Its time is over at its latest deadline, or else when
// it has had plenty.
func start(t *testing.T, s *apitest.Server, opts drain.Options, goal drain.Goal) *trial {
	t.Helper()
	return watchOver(t, drain.New(s.Client(), apitest.Node, opts), goal)
}

// guarded is a Node, or its dry run.
type guarded interface {
	Guard(ctx context.Context, task *drain.Task, tell func(drain.Progress))
}

func watchOver(t *testing.T, node guarded, goal drain.Goal) *trial {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &trial{t: t, goal: goal, cancel: cancel, done: make(chan struct{}), drained: make(chan struct{}), began: time.Now(), end: goal.Soft}
	if r.end.Before(goal.Hard) {
		r.end = goal.Hard
	}
	if r.end.IsZero() {
		r.end = time.Now().Add(plenty)
	}
	r.task = drain.NewTask(goal)
	go func() {
		defer close(r.done)
		node.Guard(ctx, r.task, r.tell)
	}()
	t.Cleanup(func() { cancel(); <-r.done })
	return r
}

// drained drains with plenty of time and fails unless nothing is left.
func drained(t *testing.T, s *apitest.Server, opts drain.Options) *trial {
	t.Helper()
	r := begin(t, s, opts)
	r.succeed()
	return r
}

// stop stops the guard, and waits for its end.
func (r *trial) stop() { r.cancel(); <-r.done }

// reported fails unless so many of a kind were reported, and of a pod if one is given.
func (r *trial) reported(n int, what state.TransitionKind, pod ...string) {
	r.t.Helper()
	if found := r.of(what, pod...); len(found) != n {
		r.t.Errorf("%s is reported as %+v; want %d times", what, found, n)
	}
}

// holding begins to drain the node of a pod that a budget holds until free is called.
func holding(t *testing.T, s *apitest.Server, p *corev1.Pod) (r *trial, free func()) {
	t.Helper()
	free = addHeld(s, p)
	r = begin(t, s, drain.Options{})
	r.await(state.PodHeld)
	return r, free
}

// adjust changes the goal.
func (r *trial) adjust(change func(*drain.Goal)) {
	change(&r.goal)
	r.mu.Lock()
	r.adjusted = len(r.reports)
	r.mu.Unlock()
	r.task.Adjust(r.goal)
}

// joining begins another generation.
func joining(g *drain.Goal) { g.Generation, g.Claim.Event = g.Generation+1, "event-2" }

// now is what was reported of a kind since the goal changed.
func (r *trial) now(what state.TransitionKind) []drain.Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(r.reports[r.adjusted:]), func(p drain.Progress) bool { return p.Kind != what || p.Generation != r.goal.Generation })
}

func (r *trial) tell(p drain.Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.Kind == state.NodeEmpty {
		if p.Left > 0 || !p.State.Drained {
			r.t.Errorf("reported to be drained with %+v", p)
		}
		if !slices.ContainsFunc(r.reports, func(p drain.Progress) bool { return p.Kind == state.NodeEmpty }) {
			r.emptied = time.Now()
			close(r.drained)
		}
	}
	r.reports = append(r.reports, p)
}

// wait waits until it is reported that the node is drained, or the time is over, or the guard was stopped.
func (r *trial) wait() (drain.Result, error) {
	var err error
	select {
	case <-r.drained:
	case <-time.After(time.Until(r.end)):
		err = context.DeadlineExceeded
	case <-r.done:
		err = context.Canceled
	}
	r.result = r.task.Result()
	return r.result, err
}

func (r *trial) succeed() drain.Result {
	r.t.Helper()
	result, err := r.wait()
	if err != nil || len(result.Left) > 0 {
		r.t.Fatalf("the drain came to %+v, %v", result, err)
	}
	return result
}

// leave waits until a look has shown that operators want the node's pods left alone, and returns how far the guard has come.
func (r *trial) leave() drain.Result {
	r.t.Helper()
	await(r.t, "a look that shows that the node is to be left alone", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.reports) == 0 {
			return false
		}
		s := r.reports[len(r.reports)-1].State
		if s.MayNotEvict && s.Drained {
			r.t.Errorf("a node that is left alone is said to be drained: %+v", s)
		}
		return s.Looked && s.MayNotEvict
	})
	return r.task.Result()
}

// of returns what was reported of a kind, and of a pod if one is given.
func (r *trial) of(what state.TransitionKind, pod ...string) []drain.Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []drain.Progress
	for _, p := range r.reports {
		if p.Kind == what && (len(pod) == 0 || p.Pod == pod[0]) {
			found = append(found, p)
		}
	}
	return found
}

// last is what was reported last.
func (r *trial) last() drain.Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reports[len(r.reports)-1]
}

// drainedAt is when it was reported first that the node is drained.
func (r *trial) drainedAt() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.emptied
}

// await waits until something has been reported.
func (r *trial) await(what state.TransitionKind, pod ...string) {
	r.t.Helper()
	await(r.t, fmt.Sprintf("%s %s", what, strings.Join(pod, "")), func() bool { return len(r.of(what, pod...)) > 0 })
}

// Shapes of pods, and answers.
var (
	pod, grace, ownedBy, phase, annotated = apitest.RunningPod, apitest.Grace, apitest.OwnedBy, apitest.Phase, apitest.Annotated
	unmanaged, critical, mirror           = apitest.Unmanaged, apitest.Critical, apitest.Mirror
	withClaim, withScratch                = apitest.Claiming, apitest.Scratching
	gaps, slowly, accepted, pass          = apitest.Gaps, apitest.Slowly, apitest.Accepted, apitest.Pass
)

// addHeld adds a pod that a budget holds, until free is called.
func addHeld(s *apitest.Server, p *corev1.Pod) (free func()) { return s.AddHeld(p) }

// count is the number of requests of a kind so far.
func count(s *apitest.Server, words ...string) int { return len(s.Requests(words...)) }

// claimBy is a claim of a program, as it writes it.
func claimBy(writer string) string {
	theirs := claim
	theirs.Writer, theirs.Event = writer, "event-of-"+writer
	text, err := json.Marshal(theirs)
	if err != nil {
		panic(err)
	}
	return string(text)
}

func uncordoned(n *corev1.Node) { n.Spec.Unschedulable = false }

const ours = `{"event":"event-0","kind":"spot-interruption","boot_id":"boot-0","since":"2026-01-02T03:04:05Z"}`

// cordoned is a node that is unschedulable, with our annotation's text if there is one.
func cordoned(text string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Spec.Unschedulable = true
		if text != "" {
			n.Annotations[drain.CordonAnnotation] = text
		}
	}
}

// toCordon is a goal of a node that is closed and keeps its pods, for an event that was met before our claim was written.
func toCordon() drain.Goal {
	goal := goalWithin(false, 0)
	goal.Evict = false
	return goal
}

// looked waits until a guard has seen the Node, and returns how it is cordoned.
func (r *trial) looked() drain.CordonResult {
	r.t.Helper()
	await(r.t, "a look at the Node", func() bool {
		return len(r.of(state.NodeCordoned))+len(r.of(state.CordonFound))+len(r.of(state.NodeUncordoned))+len(r.of(state.NodeOptedOut)) > 0
	})
	return r.task.Result().Cordon
}

// setBy is what the API server remembers of who has set a node's cordon, and of a kubelet that has set other things.
func setBy(managers ...string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.ManagedFields = []metav1.ManagedFieldsEntry{
			{Manager: "kubelet", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{}},"f:spec":{"f:providerID":{}}}`)},
		}
		for _, manager := range managers {
			n.ManagedFields = append(n.ManagedFields, metav1.ManagedFieldsEntry{Manager: manager, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:unschedulable":{}}}`)})
		}
	}
}

// thisBoot tells of the boot ID of the claim that it is the present one.
func thisBoot(id string) bool { return id == claim.BootID }

func within(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

func asking(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		n.Annotations[key] = value
	}
}

func inUse(names ...corev1.UniqueVolumeName) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Status.VolumesInUse = names }
}

// numbered waits until something has been reported since the goal changed, and returns the last.
func (r *trial) numbered(what state.TransitionKind) drain.Progress {
	r.t.Helper()
	var reported []drain.Progress
	await(r.t, string(what)+" under the last goal", func() bool { reported = r.now(what); return len(reported) > 0 })
	return reported[len(reported)-1]
}

func TestGoal(t *testing.T) {
	t.Parallel()
	run(t, "each is reported", func(t *testing.T, s *apitest.Server) {
		r, free := holding(t, s, pod("a"))
		r.adjust(func(g *drain.Goal) { g.Generation++ })
		await(t, "that the node was looked at", func() bool { return r.numbered(state.StateChanged).State.Cordoned })
		if reported := r.of(state.StateChanged)[0]; reported.State.Drained || reported.State.Cordoned || !reported.State.Ours || reported.Left != 1 || reported.Total != 1 {
			t.Errorf("reported %+v; nobody has looked yet for this event", reported)
		}
		free()
		r.succeed()
		if reported := r.of(state.NodeEmpty); len(reported) != 1 || reported[0].Generation != 2 {
			t.Errorf("reported %+v", reported)
		}
		// A drained node is drained for the next event, too, and for that one it is reported.
		r.adjust(func(g *drain.Goal) { g.Generation, g.Hard = g.Generation+1, time.Now().Add(time.Minute) })
		if reported := r.numbered(state.NodeEmpty); !reported.State.Drained || reported.Total != 1 || count(s, "delete") > 0 {
			t.Errorf("reported %+v", reported)
		}
		r.reported(4, state.StateChanged)
	})
	run(t, "from cordon to drain, and back", func(t *testing.T, s *apitest.Server) {
		free := addHeld(s, pod("a"))
		s.AddPod(pod("b"), 0)
		goal := toCordon()
		r := start(t, s, drain.Options{LoadBalancerWait: 30 * time.Second}, goal)
		r.await(state.NodeCordoned)
		time.Sleep(time.Minute)
		if count(s, "evict", "list", "watch") != 0 || len(r.of(state.NodeEmpty)) != 0 {
			t.Errorf("a cordon has made %d requests for pods", count(s, "evict", "list", "watch"))
		}
		r.adjust(func(g *drain.Goal) { g.Evict = true })
		began := time.Now()
		r.await(state.PodGone, "default/b")
		r.await(state.PodHeld)
		if after := time.Since(began).Truncate(time.Second); after != 30*time.Second {
			t.Errorf("evicted after %s", after)
		}
		r.adjust(func(g *drain.Goal) { g.Evict = false })
		if reported := r.numbered(state.StateChanged); reported.State.Drained || reported.Left != 0 {
			t.Errorf("reported %+v", reported)
		}
		asked := count(s, "evict")
		free()
		time.Sleep(time.Minute)
		if n := count(s, "evict"); n != asked || !s.HasPod("default/a") || len(r.of(state.NodeEmpty)) != 0 {
			t.Errorf("%d evictions under a goal that keeps pods", n-asked)
		}
		r.adjust(func(g *drain.Goal) { g.Evict = true })
		if result := r.succeed(); result.Evicted != 2 || r.last().Total != 2 {
			t.Errorf("the result is %+v, reported %+v", result, r.last())
		}
	})
	// A drain that continues is not begun again.
	run(t, "a change delays evictions no longer", func(t *testing.T, s *apitest.Server) {
		s.AddPod(pod("a"), 0)
		r := begin(t, s, drain.Options{LoadBalancerWait: time.Minute})
		time.Sleep(30 * time.Second)
		r.adjust(func(g *drain.Goal) { g.Soft = g.Soft.Add(time.Hour) })
		time.Sleep(15 * time.Second)
		r.adjust(func(g *drain.Goal) { g.Generation++ })
		r.succeed()
		if after := s.Requests("evict")[0].At.Sub(r.began); after != time.Minute || len(r.of(state.EvictionsDelayed)) != 1 {
			t.Errorf("evicted after %s, and reported %+v", after, r.of(state.EvictionsDelayed))
		}
	})
}

func TestDrained_UnderAnotherGoal(t *testing.T) {
	t.Parallel()
	late := func(s *apitest.Server) { s.AddPod(pod("late"), 0) }
	// A watch that has been silent tells nothing of the pods that came meanwhile, and the Node is as it was.
	for name, c := range map[string]struct {
		happen func(*apitest.Server)
		adjust func(*drain.Goal)
	}{
		"an event joins, by a newer list": {late, joining},
		"by what is in that":              {func(s *apitest.Server) { s.ChangePod("default/kept", func(p *corev1.Pod) { p.Annotations = nil }) }, joining},
		"a deadline moves":                {late, func(g *drain.Goal) { g.Soft = g.Soft.Add(time.Minute) }},
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			s.AddPod(pod("kept", annotated(evict.Annotation, evict.Never)), 0)
			s.Answer("watch pods", apitest.Silence())
			r := drained(t, s, drain.Options{})
			c.happen(s)
			r.adjust(c.adjust)
			await(t, "that it is drained again", func() bool { return r.numbered(state.NodeEmpty).State.Drained })
			if gone := count(s, "evict"); gone != 1 {
				t.Errorf("drained after %d evictions, want 1", gone)
			}
		})
	}
	// Operators have opened the node, of which nobody knows: it can be read no more.
	run(t, "not while looks fail", func(t *testing.T, s *apitest.Server) {
		r := drained(t, s, drain.Options{})
		s.UncordonAs("kubectl")
		s.Always("get node", apitest.Unavailable())
		r.adjust(func(g *drain.Goal) { joining(g); g.Hard = time.Now().Add(2 * time.Minute) })
		time.Sleep(time.Minute)
		if reported := r.now(state.NodeEmpty); len(reported) > 0 {
			t.Errorf("reported to be drained for another event, without a look since: %+v", reported)
		}
	})
}

// What the policy makes of it depends on what stands in the way.
func TestGoal_ReportsTrouble(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		upset   func(*apitest.Server)
		trouble string
		looked  bool // what is reported of the Node is what is on it
	}{
		"nothing is in the way":            {func(*apitest.Server) {}, "", true},
		"a failure that has lasted":        {func(s *apitest.Server) { s.Always("get node", apitest.Unavailable()) }, `cannot cordon node "node-1": 503 Service Unavailable: not ready`, false},
		"a refusal to read the Node":       {func(s *apitest.Server) { s.Always("get node", apitest.Forbidden("no looks here")) }, `cannot cordon node "node-1": 403 Forbidden: no looks here`, false},
		"a refusal to close it":            {func(s *apitest.Server) { s.Always("patch", apitest.Forbidden("no cordons here")) }, `cannot cordon node "node-1": 403 Forbidden: no cordons here`, true},
		"there is no Node, which it takes": {func(s *apitest.Server) { s.RemoveNode() }, "", true},
		"a refusal to read the Node that is closed": {func(s *apitest.Server) {
			time.AfterFunc(5*time.Second, func() { s.Always("get node", apitest.Forbidden("no looks here")) })
		}, "", true},
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			c.upset(s)
			r := begin(t, s, drain.Options{})
			time.Sleep(30 * time.Second)
			r.adjust(func(g *drain.Goal) { g.Soft = g.Soft.Add(time.Hour) })
			if reported := r.numbered(state.StateChanged); reported.State.Trouble != c.trouble || reported.State.Looked != c.looked {
				t.Errorf("reported %+v", reported)
			}
		})
	}
}
