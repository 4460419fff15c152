package crash_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/faultproxy"
	"github.com/nth-project/nth/test/internal/lab"
)

// cordonAnnotation is the key under which nth says whose cordon it is (docs/node-contract.md).
const cordonAnnotation = "nth-project.github.io/cordon"

// spotDocument is the path at which nth looks for the notice.
const spotDocument = "/latest/meta-data/spot/instance-action"

// settings let a withdrawal count almost at once, but not within the same look.
const settings = "[imds]\nwithdrawn_after = \"100ms\"\n"

// patience bounds every wait.
const patience = time.Minute

// A lane is a machine on which one round follows the other.
type lane struct {
	node    *lab.Node
	imds    *imdstest.Server
	proxy   *faultproxy.Proxy
	machine *daemon.Machine
	kills   *toll
	bootID  string // that the kubelet has reported

	// steady is set where nth is never ended; descriptors are how many files it had open after each round.
	steady      bool
	whole       lab.TB // of all rounds
	descriptors []int

	// These begin anew with each round.
	nth *daemon.Daemon
	due time.Time // the time in the notice

	mu      sync.Mutex
	happens chan struct{}
	count   int // of what has happened
	seenNow []lab.Moment
	removed map[string]int // by pod, what nth said to have evicted or deleted
}

func newLane(t *testing.T, kills *toll) *lane {
	t.Helper()
	l := &lane{node: lab.Shared(t).AddNode(t), imds: imdstest.NewServer(), kills: kills, happens: make(chan struct{}), whole: t}
	t.Cleanup(l.imds.Close)
	l.proxy = faultproxy.New(t, l.node.Kubeconfig)
	l.machine = daemon.NewMachine(t, daemon.Options{
		Kubeconfig: l.proxy.Kubeconfig, IMDS: l.imds.URL, Cadence: 50 * time.Millisecond, Settings: settings,
	})
	l.node.AddDaemonSet(t, "agent")
	return l
}

// observe begins to remember what happens to the node.
func (l *lane) observe(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	l.seenNow, l.removed = nil, map[string]int{}
	l.mu.Unlock()
	l.node.Observe(t, func(m lab.Moment) {
		l.mu.Lock()
		l.seenNow = append(l.seenNow, m)
		l.mu.Unlock()
		l.happened()
	})
}

// start starts nth, and counts what it says.
func (l *lane) start(t *testing.T) {
	t.Helper()
	var until lab.TB = t
	if l.steady {
		until = l.whole
	}
	l.nth = l.machine.Start(until)
	l.nth.Follow(l.heard)
	if l.machine.BootID() != l.bootID { // The kubelet comes later.
		l.bootID = l.machine.BootID()
		l.node.KubeletStarts(t, l.bootID)
	}
	l.node.KubeletIsReady(t)
}

// heard takes in what nth says, the words of one that is killed later too.
func (l *lane) heard(e daemon.Entry) {
	if id := e.Fields[systemd.FieldMessageID]; id == systemd.PodEvicted || id == systemd.PodDeleted {
		l.mu.Lock()
		l.removed[e.Fields[systemd.FieldPod]]++
		l.mu.Unlock()
	}
	l.happened()
}

// saidToRemove counts how often nth has said in this round that the API server accepted the removal of a pod.
func (l *lane) saidToRemove(pod string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.removed[l.node.Namespace+"/"+pod]
}

func (l *lane) happened() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count++
	close(l.happens)
	l.happens = make(chan struct{})
}

func (l *lane) progress() (int, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count, l.happens
}

func (l *lane) moments() []lab.Moment {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.seenNow)
}

// seen counts how often something has happened, to the node or to a pod, in this round.
func (l *lane) seen(what lab.Happening, pod string) int {
	count := 0
	for _, m := range l.moments() {
		if m.What == what && m.Pod == pod {
			count++
		}
	}
	return count
}

// pass goes through a stage: it breaks things and kills nth as planned, starts it again, and returns when the stage is done.
func (l *lane) pass(t *testing.T, stage string, kills []kill, broken trouble, done func() bool) {
	t.Helper()
	broken.begin(l)
	for _, k := range kills {
		begin, _ := l.progress()
		l.waitFor(t, stage+" to come to a kill", func() bool {
			now, _ := l.progress()
			return now >= begin+k.after || done()
		})
		<-time.After(k.delay)
		l.nth.MustRun(t)
		if l.steady {
			continue
		}
		l.nth.Kill()
		l.kills.count(l.phase(t))
		if k.reboot {
			l.machine.Reboot(t)
		}
		l.start(t)
	}
	l.waitFor(t, stage+" to end", done)
}

// hasLooked returns a condition that holds once the nth that runs then has looked for the notice so many times more.
// Each start begins with a look of its own, so that a kill cannot make it hold too early by more than one.
func (l *lane) hasLooked(times int) func() bool {
	goal := l.imds.Requests().ByPath[spotDocument] + times
	return func() bool { return l.imds.Requests().ByPath[spotDocument] >= goal }
}

// waitFor waits until a condition holds, which is judged anew when something has happened, and now and then: what nth
// writes on its disk cannot be watched.
func (l *lane) waitFor(t *testing.T, what string, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		_, happens := l.progress()
		if condition() {
			return
		}
		select {
		case <-happens:
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("waiting for %s: %v; the status is %q, the record %+v", what, ctx.Err(), l.nth.Status(), l.machine.Record(t))
		}
	}
}

// slack is how many connections may come and go between two looks.
const slack = 5

// end ends nth, or sees to it that it uses no more than after the first round if it is to run on.
func (l *lane) end(t *testing.T) {
	t.Helper()
	l.nth.WaitReady(t)
	if !l.steady {
		l.nth.Stop(t)
		l.nth = nil
		return
	}
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", l.nth.PID()))
	if err != nil {
		t.Fatalf("counting nth's open files: %v", err)
	}
	l.descriptors = append(l.descriptors, len(open))
	if len(open) > l.descriptors[0]+slack {
		t.Errorf("after each round nth had %v open files, want no growth", l.descriptors)
	}
}

// phase is how far nth has come with the notice, by its record on disk; empty if it has not met it.
func (l *lane) phase(t *testing.T) state.Phase {
	t.Helper()
	for _, e := range l.machine.Record(t) {
		if e.Event.Deadline.Equal(l.due) {
			return e.Phase
		}
	}
	return ""
}
