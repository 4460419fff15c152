package node_test

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/host"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/node"
)

// The kubelet's graceful shutdown: what it has for all pods, and what it keeps of that for critical ones.
const (
	shutdownGrace = 30 * time.Second
	criticalGrace = 10 * time.Second
	ordinaryGrace = shutdownGrace - criticalGrace
)

// A kind is a sort of pod that is on the nodes, by the first part of its name.
type kind struct {
	name  string
	grace time.Duration // asked for
	ends  string        // how long it takes, or "never"
}

var (
	quick    = kind{"quick", 30 * time.Second, "0s"}       // ends at once
	slow     = kind{"slow", 25 * time.Second, "5s"}        // ends by itself, within any grace
	stubborn = kind{"stubborn", 24 * time.Second, "never"} // asks for more than the kubelet has for it
	guarded  = kind{"guarded", 15 * time.Second, "3s"}     // two, of which a budget wants one
	critical = kind{"critical", 20 * time.Second, "2s"}    // of the highest priority
	agent    = kind{"agent", 15 * time.Second, "2s"}       // of a DaemonSet
	kinds    = []kind{quick, slow, stubborn, guarded, critical, agent}
)

// populate puts pods of every kind on the node, and waits until their processes can hear.
func populate(t *testing.T, n *node.Node) {
	t.Helper()
	options := func(k kind, more ...lab.Option) []lab.Option {
		return append([]lab.Option{node.Ends(k.ends), lab.Grace(k.grace)}, more...)
	}
	n.Node.AddDeployment(t, quick.name, 2, options(quick)...)
	n.Node.AddPod(t, slow.name, options(slow)...)
	n.Node.AddPod(t, stubborn.name, options(stubborn)...)
	n.Node.AddDeployment(t, guarded.name, 2, options(guarded, lab.MinAvailable(1))...)
	n.Node.AddPod(t, critical.name, options(critical, lab.Edit(func(template *corev1.PodTemplateSpec) {
		template.Spec.PriorityClassName = "system-node-critical"
	}))...)
	n.Node.AddDaemonSet(t, agent.name, options(agent)...)
	for _, pod := range n.Node.Pods(t) {
		lab.Await(t, pod.Name+" serves", func() bool { return n.Life(t, pod.Name).Address != "" })
	}
}

// An end is what is known of the end of a pod.
type end struct {
	kind
	node.Life
	pod     string
	moved   string        // what nth has said of it
	movedAt time.Time     // zero if it has not
	shut    time.Duration // the grace that the kubelet's shutdown gave it; -1 if that did not end it
	shutAt  time.Time
	given   []time.Duration // the graces with which the kubelet has killed the container, in this order
}

// powerOff powers the machine off.
func powerOff(t *testing.T, n *node.Node) { t.Helper(); n.PowerOff(t) }

// press presses the power button, when nth answers that.
func press(t *testing.T, n *node.Node) {
	t.Helper()
	n.AwaitLock(t, "nth", "handle-power-key")
	n.PressPower(t)
}

// goDown has the machine go down, logs how each pod has ended, and returns that.
func goDown(t *testing.T, n *node.Node, down func(*testing.T, *node.Node)) (ends []end) {
	t.Helper()
	pods := n.Node.Pods(t)
	began := time.Now()
	down(t, n)
	n.WaitOff(t)
	t.Logf("the machine was down after %.1f s", time.Since(began).Seconds())
	for _, pod := range pods {
		e := end{pod: pod.Name, Life: n.Life(t, pod.Name), shut: -1}
		e.kind = kinds[slices.IndexFunc(kinds, func(k kind) bool { return strings.HasPrefix(pod.Name, k.name) })]
		name := pod.Namespace + "/" + pod.Name
		e.askNth(t, n, name)
		e.askKubelet(t, n, name)
		ends = append(ends, e)
		since := func(when time.Time) float64 { return max(0, when.Sub(began).Seconds()) }
		t.Logf("%s: %q by nth at %.1f s, by the kubelet's shutdown with %s at %.1f s; SIGTERM at %.1f s, %s; killed with %v",
			e.pod, e.moved, since(e.movedAt), e.shut, since(e.shutAt), since(e.Terminated), e.Life, e.given)
	}
	return ends
}

// askNth looks into the journal for what nth has done with the pod.
func (e *end) askNth(t *testing.T, n *node.Node, name string) {
	t.Helper()
	for id, what := range map[string]string{systemd.PodEvicted: "evicted", systemd.PodDeleted: "deleted"} {
		for _, entry := range n.Journal(t, "MESSAGE_ID="+id, systemd.FieldPod+"="+name) {
			e.moved, e.movedAt = what, at(t, entry["__REALTIME_TIMESTAMP"])
		}
	}
}

var gracePeriod = regexp.MustCompile(`gracePeriod=(\d+)`)

// askKubelet looks into the journal for what the kubelet has done with the pod.
func (e *end) askKubelet(t *testing.T, n *node.Node, name string) {
	t.Helper()
	for _, entry := range n.Journal(t, "--unit=kubelet") {
		said := entry.Message()
		found := gracePeriod.FindStringSubmatch(said)
		if found == nil || !strings.Contains(said, strconv.Quote(name)) {
			continue
		}
		seconds, _ := strconv.Atoi(found[1]) // they are digits
		grace := time.Duration(seconds) * time.Second
		switch {
		case strings.Contains(said, `"Shutdown manager killing pod with gracePeriod"`):
			e.shut, e.shutAt = grace, at(t, entry["__REALTIME_TIMESTAMP"])
		case strings.Contains(said, `"Killing container with a grace period"`):
			e.given = append(e.given, grace)
		}
	}
}

// at reads a time of the journal, in microseconds.
func at(t *testing.T, text string) time.Time {
	t.Helper()
	micros, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatalf("reading a time of the journal: %v", err)
	}
	return time.UnixMicro(micros)
}

// start boots a node with pods, and has another take those that are evicted. The kubelet and nth, if they are to, have
// taken their locks.
func start(t *testing.T, o node.Options) *node.Node {
	t.Helper()
	n := node.Start(t, lab.Shared(t), o)
	if o.ShutdownGrace > 0 {
		n.AwaitLock(t, "kubelet", "shutdown")
	}
	if o.Nth {
		n.AwaitLock(t, "nth", "shutdown")
	}
	populate(t, n)
	n.Node.AddSpare(t)
	return n
}

// find returns the ends of the pods of a kind.
func find(ends []end, k kind) (found []end) {
	for _, e := range ends {
		if e.kind == k {
			found = append(found, e)
		}
	}
	return found
}

// The kubelet and nth hear of the shutdown at the same moment. What the kubelet ends, it does not leave to nth, whatever
// the budget and the grace say.
func TestShutdown_KubeletAndNthTakeTheKubeletsTime(t *testing.T) {
	t.Parallel()
	n := start(t, node.Options{ShutdownGrace: shutdownGrace, CriticalGrace: criticalGrace, Nth: true})
	ends := goDown(t, n, powerOff)
	for _, e := range ends {
		if want := min(e.grace, ordinaryGrace); e.kind != critical && e.shut != want {
			t.Errorf("the kubelet's shutdown gave %s %s, want %s", e.pod, e.shut, want)
		}
		if e.kind == agent && e.moved != "" {
			t.Errorf("nth has %s %s, which is of a DaemonSet", e.moved, e.pod)
		}
	}
	mustBeKilled(t, find(ends, stubborn)[0])
	// The budget grants nth one of them, and the other when there is another in its place.
	if !slices.ContainsFunc(find(ends, guarded), func(e end) bool { return e.movedAt.IsZero() || e.shutAt.Before(e.movedAt) }) {
		t.Error("the kubelet has ended no pod of those with a budget before nth was granted its eviction")
	}
	for _, k := range []kind{slow, stubborn} {
		if e := find(ends, k)[0]; e.moved != "evicted" {
			t.Errorf("%s was %q by nth, want it to be evicted", e.pod, e.moved)
		}
	}
}

// A power-off with nth alone, and EC2's press of the button, which nth answers: logind, and so the kubelet, hears of the shutdown when the
// node is drained.
func TestShutdown_ThatIsNthsEvictsWithWholeGrace(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		options node.Options
		down    func(*testing.T, *node.Node)
	}{
		"nth alone":        {node.Options{Nth: true}, powerOff},
		"the power button": {node.Options{ShutdownGrace: shutdownGrace, CriticalGrace: criticalGrace, Nth: true, Button: true}, press},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ends := goDown(t, start(t, c.options), c.down)
			for _, e := range ends {
				switch {
				case e.kind == agent && c.options.ShutdownGrace > 0:
					if e.shut < min(e.grace, ordinaryGrace) {
						t.Errorf("the kubelet's shutdown gave %s %s, want %s", e.pod, e.shut, min(e.grace, ordinaryGrace))
					}
				case e.shut >= 0:
					t.Errorf("the kubelet's shutdown ended %s, want it to find nothing left", e.pod)
				case e.kind != agent && (e.moved != "evicted" || !slices.Equal(e.given, []time.Duration{e.grace})):
					t.Errorf("%s was %q by nth, and killed with %s, want it to be evicted with its %s", e.pod, e.moved, e.given, e.grace)
				}
			}
			mustBeKilled(t, find(ends, stubborn)[0])
		})
	}
}

// The kubelet writes its file where logind grants less than it wants, and so where nth's is not there yet. It does not
// take it back.
func TestShutdown_DelayIsTheKubeletsWhileItsFileIsThere(t *testing.T) {
	t.Parallel()
	n := node.Start(t, lab.Shared(t), node.Options{ShutdownGrace: shutdownGrace, CriticalGrace: criticalGrace})
	n.AwaitLock(t, "kubelet", "shutdown")
	n.Install(t, host.Older)
	n.WaitWatching(t)
	mustGrant(t, n, shutdownGrace)
	const line = "warn  shutdown    logind delays a shutdown by only 30s, even if pods are left: 80-nth.conf, which sets 2m30s, "
	if said := n.Run(t, "nth", "check"); !strings.Contains(said, line) {
		t.Errorf("nth check says\n%s\nwant a line that begins with %q", said, line)
	}

	n.Run(t, "rm", "/etc/systemd/logind.conf.d/99-kubelet.conf")
	n.Run(t, "systemctl", "restart", "systemd-logind")
	mustGrant(t, n, 150*time.Second)
	n.AwaitLock(t, "nth", "shutdown")
	n.AwaitLock(t, "kubelet", "shutdown")
	if said := n.Run(t, "nth", "check"); strings.Contains(said, "warn  shutdown    logind lets it be held") {
		t.Errorf("nth check still says\n%s", said)
	}
}

// mustGrant fails the test unless logind lets a shutdown be held for so long.
func mustGrant(t *testing.T, n *node.Node, want time.Duration) {
	t.Helper()
	if said := n.Logind(t, "InhibitDelayMaxUSec"); said != fmt.Sprintf("t %d", want.Microseconds()) {
		t.Errorf("logind grants %q, want %s", said, want)
	}
}

// mustBeKilled fails the test unless the pod has lived on after SIGTERM until it was killed. With which grace is what the kubelet logs.
func mustBeKilled(t *testing.T, e end) {
	t.Helper()
	if e.Itself || e.Terminated.IsZero() {
		t.Errorf("%s was %s, want it to be killed", e.pod, e.Life)
	}
}
