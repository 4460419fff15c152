package crash_test

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
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

// A lane is a machine on which one round follows the other.
type lane struct {
	node    *lab.Node
	imds    *imdstest.Server
	proxy   *faultproxy.Proxy
	machine *daemon.Machine
	kills   *atomic.Int64

	// steady is set where nth is never ended; descriptors are how many files it had open after each round.
	steady      bool
	whole       lab.TB // of all rounds
	descriptors []int

	// These begin again with each round.
	nth *daemon.Daemon
	due time.Time // the time in the notice

	mu      sync.Mutex
	count   int               // of what has happened
	seen    map[happening]int // on the node, by the API server
	removed map[string]int    // by pod, what nth said to have evicted or deleted
}

// A happening is something that the node, or a pod, went through.
type happening struct {
	what lab.Happening
	pod  string
}

func newLane(t *testing.T, kills *atomic.Int64) *lane {
	t.Helper()
	l := &lane{node: lab.Shared(t).AddNode(t), imds: imdstest.NewServer(), kills: kills, whole: t}
	t.Cleanup(l.imds.Close)
	l.proxy = faultproxy.New(t, l.node.Kubeconfig)
	l.machine = daemon.NewMachine(t, daemon.Options{
		Kubeconfig: l.proxy.Kubeconfig, IMDS: l.imds.URL, Cadence: 50 * time.Millisecond, Settings: settings,
	})
	l.node.AddDaemonSet(t, "agent")
	return l
}

// play plays a round. The first requirement that is not met ends it.
func (l *lane) play(t *testing.T, number int, plan plan) {
	t.Logf("the plan: %+v", plan)
	defer func() {
		if t.Failed() {
			t.Logf("the record: %+v", l.machine.Record(t))
		}
	}()
	quick, slow, late := fmt.Sprintf("quick-%d", number), fmt.Sprintf("slow-%d", number), fmt.Sprintf("late-%d", number)
	pods := []string{quick + "-0", quick + "-1", quick + "-2", slow + "-0", slow + "-1"}
	l.node.AddPods(t, quick, 3)
	l.node.AddPods(t, slow, 2, lab.Grace(time.Second), lab.GoesAtGrace())
	began := time.Now()
	l.observe(t)
	l.due = began.Add(time.Hour + time.Duration(number)*time.Minute).Truncate(time.Second) // no two notices are alike
	if l.nth == nil {
		l.start(t)
	}
	l.imds.SetSpot("terminate", l.due)

	l.pass(t, "the drain", plan.drain, plan.broken, func() bool { return l.phase(t) == state.Drained })
	l.node.WaitCordoned(t)
	for _, pod := range l.node.Pods(t) {
		if slices.Contains(pods, pod.Name) {
			t.Fatalf("pod %s is on the node, which nth says is drained", pod.Name)
		}
	}

	l.node.AddLatePod(t, late)
	l.pass(t, "the rest", plan.rest, plan.brokenLater, func() bool { return l.times(lab.PodGone, late) == 1 })
	l.pass(t, "some more looks", nil, trouble{}, l.hasLooked(3))
	if times := l.times(lab.Uncordoned, ""); times > 0 {
		t.Fatalf("the node was uncordoned %d times before the notice was withdrawn", times)
	}

	l.imds.ClearSpot()
	l.pass(t, "the withdrawal", plan.withdraw, trouble{}, func() bool { return l.phase(t) == state.Closed })
	l.end(t)
	l.judge(t, began, append(pods, late))
}

// judge judges the node after the withdrawal, and what nth has done since the round began: those pods had to go.
func (l *lane) judge(t *testing.T, began time.Time, pods []string) {
	t.Helper()
	l.node.WaitUncordoned(t)
	if claim, ok := l.node.Object(t).Annotations[cordonAnnotation]; ok {
		t.Errorf("nth's claim is left on the node: %s", claim)
	}
	lab.Await(t, "the uncordon is seen", func() bool { return l.times(lab.Uncordoned, "") >= 1 })
	for _, what := range []lab.Happening{lab.Cordoned, lab.Uncordoned} {
		if times := l.times(what, ""); times != 1 {
			t.Errorf("the node was %s %d times, want once", what, times)
		}
	}
	for _, request := range l.node.Requests(t) {
		if request.Removes() && request.At.After(began) && !slices.Contains(pods, request.Name) {
			t.Errorf("nth asked for the end of a pod that it must leave alone: %+v", request)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// An eviction that was under way when nth was killed may be asked for again, and changes nothing then.
	for pod, times := range l.removed {
		if times > 1 {
			t.Errorf("nth removed pod %s %d times, by its own words, want once", pod, times)
		}
	}
}

// observe begins to count what happens to the node.
func (l *lane) observe(t *testing.T) {
	t.Helper()
	l.happened(func() { l.seen, l.removed = map[happening]int{}, map[string]int{} })
	l.node.Observe(t, func(m lab.Moment) {
		l.happened(func() { l.seen[happening{m.What, m.Pod}]++ })
	})
}

// start starts nth, and counts what it says, the words of one that is killed later too.
func (l *lane) start(t *testing.T) {
	t.Helper()
	var until lab.TB = t
	if l.steady {
		until = l.whole
	}
	l.nth = l.machine.Start(until)
	l.nth.Follow(func(e daemon.Entry) {
		l.happened(func() {
			if id := e.Fields[systemd.FieldMessageID]; id == systemd.PodEvicted || id == systemd.PodDeleted {
				l.removed[e.Fields[systemd.FieldPod]]++
			}
		})
	})
	l.node.Booted(t, l.machine.BootID()) // The kubelet comes later.
}

// happened takes in that something has happened.
func (l *lane) happened(record func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	record()
	l.count++
}

// progress is how much has happened.
func (l *lane) progress() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

// times is how often something has happened, to the node or to a pod, in this round.
func (l *lane) times(what lab.Happening, pod string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen[happening{what, pod}]
}

// pass goes through a stage: it breaks things and kills nth as planned, starts it again, and returns when the stage is done.
func (l *lane) pass(t *testing.T, stage string, kills []kill, broken trouble, done func() bool) {
	t.Helper()
	broken.begin(l)
	for _, k := range kills {
		begin := l.progress()
		lab.Await(t, stage+" has come to a kill", func() bool { return l.progress() >= begin+k.after || done() })
		<-time.After(k.delay)
		l.nth.MustRun(t)
		if l.steady {
			continue
		}
		l.nth.Kill()
		l.kills.Add(1)
		if k.reboot {
			l.machine.Reboot(t)
		}
		l.start(t)
	}
	lab.Await(t, stage+" has ended", done)
}

// hasLooked returns a condition that holds once the nth that runs then has looked for the notice so many times more.
// Each start begins with a look of its own, so that a kill cannot make it hold too early by more than one.
func (l *lane) hasLooked(times int) func() bool {
	goal := l.imds.Requests().ByPath[spotDocument] + times
	return func() bool { return l.imds.Requests().ByPath[spotDocument] >= goal }
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
