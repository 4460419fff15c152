package evict_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/evict"
	"github.com/nth-project/nth/pkg/loop"
	"github.com/nth-project/nth/pkg/state"
)

func TestMain(m *testing.M) { os.Exit(apitest.RunTests(m)) }

var run, await = apitest.Run, apitest.Await

// plenty is a deadline that no test comes near unless it fails.
const plenty = time.Hour

// Shapes of pods, and answers.
var (
	pod, grace, ownedBy, phase, ending, annotated = apitest.RunningPod, apitest.Grace, apitest.OwnedBy, apitest.Phase, apitest.Terminating, apitest.Annotated
	unmanaged, critical, mirror                   = apitest.Unmanaged, apitest.Critical, apitest.Mirror
	withEmptyDir                                  = apitest.EmptyDir
	gaps, slowly, accepted, pass                  = apitest.Gaps, apitest.Slowly, apitest.Accepted, apitest.Pass
)

// report is what a Drain was reported.
type report struct {
	Kind        state.TransitionKind
	Pod, Detail string
	Total, Left int
}

// result is what was done.
type result struct {
	Evicted, Deleted, Skipped int
	Left                      []string
	HeldBy                    map[string]string
}

// trial is a drain of the server's pods: of a node that is closed, and at which every look returns at once.
type trial struct {
	t     *testing.T
	woken chan struct{} // wakes the loop
	loop  *loop.Loop
	pods  *evict.Pods
	goal  evict.Terms // as the test has set it
	began time.Time

	terms         evict.Terms // the loop's
	met, emptyFor int
	next          []func()

	mu      sync.Mutex
	reports []report
}

// terms are those of a drain that begins now and has so much time; 0 for no deadline.
func terms(hard bool, limit time.Duration) evict.Terms {
	terms := evict.Terms{Evict: true, From: time.Now(), Cordoned: true}
	switch end := time.Now().Add(limit); {
	case limit == 0:
	case hard:
		terms.Hard = end
	default:
		terms.Soft = end
	}
	return terms
}

// delayed are such terms, with evictions that begin after a while.
func delayed(by time.Duration, hard bool, limit time.Duration) evict.Terms {
	terms := terms(hard, limit)
	terms.From = time.Now().Add(by)
	return terms
}

// begin begins a drain that has plenty of time, and a deadline that is not hard.
func begin(t *testing.T, s *apitest.Server, opts evict.Options) *trial {
	t.Helper()
	return start(t, s, opts, terms(false, plenty))
}

func beginWithin(t *testing.T, s *apitest.Server, opts evict.Options, hard bool, limit time.Duration) *trial {
	t.Helper()
	return start(t, s, opts, terms(hard, limit))
}

// start begins a drain, which lasts until the test ends.
func start(t *testing.T, s *apitest.Server, opts evict.Options, terms evict.Terms) *trial {
	t.Helper()
	woken := make(chan struct{}, 1)
	r := &trial{t: t, loop: loop.New(woken), woken: woken, goal: terms, terms: terms, met: 1, began: time.Now()}
	r.pods = evict.New(s.Client().CoreV1().RESTClient(), apitest.Node, opts).Pods(r.loop, r)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.loop.Run(ctx, r.turn)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return r
}

// turn is a turn of the loop, as a guard's.
func (r *trial) turn(post func()) (wake time.Time, after func()) {
	for _, do := range r.next {
		do()
	}
	if r.next = nil; post != nil {
		post()
	}
	r.pods.Begin()
	wake = r.pods.Act(time.Now())
	if r.pods.Synced() && r.pods.Counts().Left == 0 && r.emptyFor != r.met {
		proven, again := r.pods.Prove(r.met, time.Now())
		if wake = loop.Soonest(wake, again); proven {
			r.emptyFor = r.met
			r.Report(state.NodeEmpty, nil, "")
		}
	}
	return wake, func() {}
}

// Terms implements evict.Drain.
func (r *trial) Terms() evict.Terms {
	terms := r.terms
	terms.Looked = 1 // Nobody looks at the Node here, and no pod waits for that.
	return terms
}

// Look implements evict.Drain.
func (r *trial) Look() int { return 1 }

// Met implements evict.Drain.
func (r *trial) Met(pod *corev1.Pod, fresh bool) {
	r.met++
	if fresh {
		r.Report(state.PodArrived, pod, "")
	}
}

// Report implements evict.Drain.
func (r *trial) Report(what state.TransitionKind, pod *corev1.Pod, detail string) {
	counts := r.pods.Counts()
	reported := report{Kind: what, Detail: detail, Total: counts.Total, Left: counts.Left}
	if pod != nil {
		reported.Pod = evict.Name(pod)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reports = append(r.reports, reported)
}

// do has the loop do something in its next turn.
func (r *trial) do(what func()) {
	r.loop.Lock()
	r.next = append(r.next, what)
	r.loop.Unlock()
	loop.Nudge(r.woken)
}

// adjust changes the terms.
func (r *trial) adjust(change func(*evict.Terms)) {
	change(&r.goal)
	goal := r.goal
	r.do(func() {
		r.terms = goal
		r.pods.Rejudge()
	})
}

// join begins another generation.
func (r *trial) join() { r.do(func() { r.met++; r.pods.Restart(); r.pods.Rejudge() }) }

// result returns how far it has come.
func (r *trial) result() result {
	r.loop.Lock()
	defer r.loop.Unlock()
	counts, held := r.pods.Counts(), r.pods.Left()
	left := slices.Sorted(maps.Keys(held))
	maps.DeleteFunc(held, func(_, by string) bool { return by == "" })
	return result{counts.Evicted, counts.Deleted, counts.Skipped, left, held}
}

// of returns what was reported of a kind, and of a pod if one is given.
func (r *trial) of(what state.TransitionKind, pod ...string) []report {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []report
	for _, p := range r.reports {
		if p.Kind == what && (len(pod) == 0 || p.Pod == pod[0]) {
			found = append(found, p)
		}
	}
	return found
}

// reported fails unless so many of a kind were reported, and of a pod if one is given.
func (r *trial) reported(n int, what state.TransitionKind, pod ...string) {
	r.t.Helper()
	if found := r.of(what, pod...); len(found) != n {
		r.t.Errorf("%s is reported as %+v; want %d times", what, found, n)
	}
}

// await waits until something was reported.
func (r *trial) await(what state.TransitionKind, pod ...string) {
	r.t.Helper()
	await(r.t, fmt.Sprintf("%s %s", what, strings.Join(pod, "")), func() bool { return len(r.of(what, pod...)) > 0 })
}

// succeed waits until no pod is left, and returns how it came to that.
func (r *trial) succeed() result {
	r.t.Helper()
	r.await(state.NodeEmpty)
	return r.result()
}

// drained drains with plenty of time.
func drained(t *testing.T, s *apitest.Server, opts evict.Options) *trial {
	t.Helper()
	r := begin(t, s, opts)
	r.succeed()
	return r
}

// count is the number of requests of a kind so far.
func count(s *apitest.Server, words ...string) int { return len(s.Requests(words...)) }
