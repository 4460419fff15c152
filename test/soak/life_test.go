package soak_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/faultproxy"
	"github.com/nth-project/nth/test/internal/lab"
)

// cadence is how often nth looks at each document.
const cadence = 50 * time.Millisecond

// A life is a machine, what happens to it, and what must be true of it.
type life struct {
	soak   *soak
	number uint64
	// steady tells that nth is left to run, so that what it uses can be compared.
	steady bool
	// calm tells that nothing breaks in the present round, so that times can be promised.
	calm   bool
	random *rand.Rand
	round  int

	cp      *lab.ControlPlane
	node    *lab.Node
	imds    *imdstest.Server
	proxy   *faultproxy.Proxy
	machine *daemon.Machine
	options daemon.Options
	traits  traits
	// rules are those of the configuration, and inForce those that nth follows; deaf are the kinds for which it does not look.
	rules, inForce rules
	deaf           map[event.Kind]bool
	model          *model
	usage          usage

	nth    *daemon.Daemon   // nil while it does not run
	ended  []*daemon.Daemon // the last few that have
	tenure *tenure

	count int            // numbers what gets a name
	times []time.Time    // those in documents; no two are the same
	spent map[string]int // terminations that were withdrawn, by the round in which they were
	claim string         // nth-queue's, if the cordon is its
	// booted is when the machine was rebooted last.
	booted time.Time
	story  []string
	// from is the first of the round's moments, and toldBefore how many messages of nth there were before it.
	from, toldBefore int

	mu      sync.Mutex
	moments []lab.Moment
	told    []daemon.Entry // the messages of nth that say what came of an event
}

func newLife(t *testing.T, s *soak, number uint64) *life {
	t.Helper()
	l := &life{
		soak: s, number: number, steady: number == 0,
		random: rand.New(rand.NewPCG(s.seed, number)),
		cp:     lab.Shared(t), imds: imdstest.NewServer(), spent: map[string]int{},
	}
	t.Cleanup(l.imds.Close)
	t.Cleanup(func() { l.explain(t) })
	l.traits, l.rules = newTraits(l.random), firstRules(l.random)
	l.node = l.cp.AddNode(t)
	l.proxy = faultproxy.New(t, l.node)
	l.options = daemon.Options{Kubeconfig: l.proxy.Kubeconfig, IMDS: l.imds.URL, Cadence: cadence, Settings: l.rules.settings(l.traits)}
	l.machine = daemon.NewMachine(t, l.options)
	l.node.KubeletStarts(t, l.machine.BootID())
	l.node.KubeletIsReady(t)
	l.model = newModel()
	l.node.AddDaemonSet(t, "agent")
	l.node.AddMirrorPod(t, "static")
	if l.random.IntN(2) == 0 {
		l.node.AddDeployment(t, "web", 2, lab.Grace(time.Second))
	}
	if l.traits.Returning {
		l.node.AddDeployment(t, stubborn, 1, lab.Grace(time.Second), lab.Edit(func(template *corev1.PodTemplateSpec) {
			template.Spec.NodeName = l.node.Name
		}))
	}
	l.node.Observe(t, func(m lab.Moment) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.moments = append(l.moments, m)
	})
	t.Cleanup(func() { l.end() })
	l.note("the rules: %+v, the life: %+v", l.rules, l.traits)
	l.start(t)
	l.nth.WaitWatching(t, l.node.Name)
	return l
}

// chance tells whether something happens that does so in so many of a hundred cases.
func (l *life) chance(percent int) bool { return l.random.IntN(100) < percent }

// note adds a line to what is told of a life that ends badly.
func (l *life) note(format string, args ...any) {
	l.story = append(l.story, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// did notes and counts something that has happened.
func (l *life) did(what, format string, args ...any) {
	l.soak.toll.add(what)
	l.note(what+": "+format, args...)
}

// name returns a name that nothing else has.
func (l *life) name(prefix string) string {
	l.count++
	return fmt.Sprintf("%s-%d", prefix, l.count)
}

// start starts nth.
func (l *life) start(t *testing.T) {
	t.Helper()
	l.tenure = &tenure{TB: t}
	l.nth = l.machine.Start(l.tenure)
	l.nth.Follow(func(e daemon.Entry) {
		l.soak.toll.hear(e)
		if id := e.Fields[systemd.FieldMessageID]; id == systemd.Drained || id == systemd.DrainIncomplete {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.told = append(l.told, e)
		}
	})
	l.startWith()
}

// toldSoFar is what nth has said of what came of events.
func (l *life) toldSoFar() []daemon.Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.told)
}

// stubborn is the name of the controller that brings its pods back.
const stubborn = "stubborn"

// stopNTH ends nth, as it is asked to or by a kill.
func (l *life) stopNTH(t *testing.T, kill bool) {
	t.Helper()
	l.nth.MustRun(t)
	if kill {
		l.nth.Kill()
	} else {
		l.nth.WaitReady(t) // before, there is nobody to hear the signal
		l.nth.Stop(t)
	}
	l.end()
}

// end ends nth, if it runs, and what belongs to it.
func (l *life) end() {
	if l.nth == nil {
		return
	}
	l.tenure.end()
	l.ended = append(l.ended[max(0, len(l.ended)-1):], l.nth)
	l.nth = nil
}

// finish ends a life: what nth uses must not have grown.
func (l *life) finish(t *testing.T) {
	t.Helper()
	if l.steady {
		l.usage.judge(t)
	}
	l.stopNTH(t, false)
}

// heard returns what the observer of the node has told so far.
func (l *life) heard() []lab.Moment {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.moments)
}

const (
	// longStory and longJournal are how many lines are told of a life that ends badly.
	longStory   = 80
	longJournal = 150
)

// explain tells all that helps to understand a violation.
func (l *life) explain(t *testing.T) {
	if !t.Failed() {
		return
	}
	tail := func(lines []string, count int) string {
		return strings.Join(lines[max(0, len(lines)-count):], "\n")
	}
	t.Logf("NTH_SOAK_SEED=%d NTH_SOAK_LIFE=%d, round %d of node %s\n%s", l.soak.seed, l.number, l.round, l.node.Name, tail(l.story, longStory))
	record, err := os.ReadFile(filepath.Join(l.machine.StateDirectory(), "record.json"))
	t.Logf("the record (error: %v):\n%s", err, record)
	for _, d := range l.ended {
		var lines []string
		for _, e := range d.Logged("") {
			lines = append(lines, fmt.Sprintf("%s %-7s %s %s", e.Time.Format("15:04:05.000"), e.Level, e.Message, e.Fields["error"]))
		}
		t.Logf("nth, process %d, its status %q:\n%s", d.PID(), d.Status(), tail(lines, longJournal))
	}
}

// A tenure is the time of one process of nth. What it needs ends with it, and not with the life; and its journal is told
// by the life.
type tenure struct {
	testing.TB
	cleanups []func()
}

// Cleanup has f called at the end of the tenure.
func (p *tenure) Cleanup(f func()) { p.cleanups = append(p.cleanups, f) }

// Failed is false: the life tells what there is to tell.
func (p *tenure) Failed() bool { return false }

func (p *tenure) end() {
	for _, f := range slices.Backward(p.cleanups) {
		f()
	}
	p.cleanups = nil
}
