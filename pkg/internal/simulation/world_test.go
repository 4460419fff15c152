package simulation_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
)

// world is all that is around nth, and what is true in it. It lives in a bubble.
type world struct {
	server *apitest.Server
	dir    string
	start  time.Time
	random *rand.Rand

	mu     sync.Mutex
	story  []line1
	broken []violation
	// verdicts count how often each invariant was judged.
	verdicts map[invariant]int

	// The rules as they are, and what a drain goes by.
	rules     policy.Settings
	ruleSet   map[event.Kind]time.Time // when a kind's was changed last
	options   drain.Options
	documents map[event.Kind]*document
	notices   []*notice
	slept     atomic.Int64  // how long the machine has slept: the world's clock stops then
	offset    time.Duration // by how much the machine's clock is ahead of EC2's
	ahead     time.Duration // and by how much nth's was that began last
	stepped   bool          // nth's was another one in an earlier boot, or before the record was lost

	muted time.Time // until when nothing comes through the watches that are open

	boot     int
	booted   time.Time
	nth      *incarnation // nil while there is none
	all      []*incarnation
	running  sync.WaitGroup
	disk     []byte    // the record as it would be found after a power cut
	disks    []saved   // and as it was before
	keeps    bool      // all of them are kept
	hung     time.Time // until when the disk hangs
	full     bool      // nothing can be written
	identity time.Time // when the kubelet's credential is there
	rename   func()    // ends the guard that acts on the node by its present name; nil if none ever did
	forgot   time.Time // when the record was lost last
	started  int

	faults    []*fault
	troubled  time.Time // the end of what has kept nth from its work last
	disturbed time.Time // the end of what was disturbing last
	refused   time.Time // the end of the last time that something was refused for good

	cluster cluster
	ending  bool
}

// line1 is one line of the story.
type line1 struct {
	at   time.Duration
	text string
	args []any
}

// violation is an invariant that does not hold.
type violation struct {
	name invariant
	at   time.Duration
	text string
}

func newWorld(t testing.TB, dir string, seed uint64) *world {
	w := &world{
		dir: dir, start: time.Now(), booted: time.Now(), verdicts: map[invariant]int{}, random: rand.New(rand.NewPCG(seed, 1)),
		rules: defaults(), ruleSet: map[event.Kind]time.Time{}, documents: map[event.Kind]*document{},
		boot: 1, options: drain.Options{Margin: 5 * time.Second},
	}
	w.server = apitest.New(outlet{TB: t, world: w})
	w.cluster.init()
	for _, kind := range event.Kinds() {
		w.documents[kind] = &document{changed: make(chan struct{})}
	}
	w.server.SetBootID(w.bootID())
	return w
}

// instance is the machine's ID, and share how much later than the first of a fleet, which begins over spread, it begins by it.
const (
	instance      = "i-0a1b2c3d4e5f60718"
	spread, share = 20 * time.Second, 19 * time.Second
)

// defaults are the rules of the configuration, with shorter times.
func defaults() policy.Settings {
	const soon = 30 * time.Second
	return policy.Settings{
		event.SpotInterruption:        {Action: policy.Drain, Hibernate: policy.Cordon, Hard: true, Budget: 2 * time.Minute, WithdrawnAfter: soon},
		event.RebalanceRecommendation: {Action: policy.Notify, WithdrawnAfter: soon},
		event.ScheduledMaintenance: {
			Action: policy.Drain, Lead: 2 * time.Minute, Window: 3 * time.Minute, Spread: spread, WithdrawnAfter: 45 * time.Second,
			Codes: map[string]policy.When{
				"instance-stop": policy.Now, "instance-retirement": policy.Window, "system-reboot": policy.Lead, "instance-reboot": policy.Lead,
				"system-maintenance": policy.OnlyNotify, policy.OtherCodes: policy.OnlyNotify,
			},
		},
		event.ASGTermination: {Action: policy.Drain, Hard: true, Budget: 3 * time.Minute, WithdrawnAfter: soon},
		event.Shutdown:       {Action: policy.Drain, Hard: true},
	}
}

// outlet makes violations of what the server finds wrong.
type outlet struct {
	testing.TB
	world *world
}

// Errorf implements testing.TB.
func (o outlet) Errorf(format string, args ...any) {
	o.world.violated(asksWhatItMay, format, args...)
}

// Helper implements testing.TB.
func (outlet) Helper() {}

func (w *world) bootID() string { return fmt.Sprintf("boot-%d", w.boot) }

// now is how old the world is.
func (w *world) now() time.Duration { return time.Since(w.start) }

// ec2 is EC2's clock.
func (w *world) ec2() time.Time { return time.Now().Add(time.Duration(w.slept.Load())) }

// uptime is how long the machine has run since it was booted, and slept. It belongs to who has the lock.
func (w *world) uptime() time.Duration { return time.Since(w.booted) }

// dice is a number below n.
func (w *world) dice(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.random.IntN(n)
}

// tell adds a line to the story.
func (w *world) tell(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told(format, args...)
}

// told is tell for who has the lock.
func (w *world) told(format string, args ...any) {
	w.story = append(w.story, line1{w.now(), format, args})
}

// violated notes that an invariant does not hold.
func (w *world) violated(name invariant, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.violatedNow(name, format, args...)
}

// violatedNow is violated for who has the lock.
func (w *world) violatedNow(name invariant, format string, args ...any) {
	if len(w.broken) > 20 {
		return
	}
	text := fmt.Sprintf(format, args...)
	w.told("VIOLATED %s: %s", name, text)
	w.broken = append(w.broken, violation{name: name, at: w.now(), text: text})
}

// tale is the story in words.
func (w *world) tale() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var text strings.Builder
	for _, l := range w.story {
		fmt.Fprintf(&text, "%9.3fs  %s\n", l.at.Seconds(), fmt.Sprintf(l.text, l.args...))
	}
	return text.String()
}

// disturb notes that something is not as usual for so long from now.
func (w *world) disturb(d time.Duration) {
	if end := time.Now().Add(d); end.After(w.disturbed) {
		w.disturbed = end
	}
}

// hinder notes that something may keep nth from its work for so long from now. It belongs to who has the lock.
func (w *world) hinder(d time.Duration) {
	if end := time.Now().Add(d); end.After(w.troubled) {
		w.troubled = end
	}
	w.disturb(d)
}

// document is what is announced of one kind: the metadata service's, or logind's word.
type document struct {
	changed chan struct{} // closed and replaced when it, or whether it can be read, changes
	deaf    time.Time     // until when it cannot be read
	since   time.Time     // and since when
	heard   time.Time     // when it could be read again last
}

func (w *world) documentChanged(kind event.Kind) {
	d := w.documents[kind]
	close(d.changed)
	d.changed = make(chan struct{})
}

// notice is something that is announced, or was.
type notice struct {
	name     string
	kind     event.Kind
	code     string
	deadline time.Time
	state    event.State
	listed   bool
	moving   bool // its time, and with it its ID, is made anew at each look
	looks    int
	boot     int // in which it was announced, or the last boot before that it is not over by

	changed   time.Time // anything about it, last
	announced time.Time // last
	seen      time.Time // when nth was told first, since it was announced
	said      time.Time // when nth was told last
	deadlined time.Time // when its deadline was moved last

	rebooted   time.Time     // the machine has been through a reboot since it was seen
	acted      bool          // and it was being acted upon then, for sure or not
	done       bool          // and surely so: nth had said that it was drained
	unsure     bool          // nobody can tell from here what it wants, until it ends
	vague      bool          // the record was lost since it was announced: when it was first seen may be remembered by the Node, or not
	outdated   bool          // nth may know it as it was before
	lifted     time.Time     // operators have lifted the cordon while it wanted it
	released   bool          // and nth has recorded that
	outcome    event.Outcome // what nth has said last that has come of it
	settled    time.Time     // nth has said that it got what it was due
	drained    string        // the incarnation's word that it is drained, in which boot
	drainedBy  int           // that incarnation's number
	drainedAs  string        // under which ID
	incomplete bool          // its time was over before that
	unlisted   time.Time     // since when it is not listed
	ended      time.Time     // when nth has recorded that it is over, or begun to take back what was done
	missed     time.Time     // when nth was first told a document that does not list it any more
	held       bool          // the node was surely closed for it when it was listed last
	watching   time.Time     // the deadline at which it is to be judged
	deafSince  time.Duration
}

// id is the event's name now. It belongs to who has the lock.
func (n *notice) id() string {
	if n.moving {
		return fmt.Sprintf("%s~%d", n.name, n.looks)
	}
	return n.name
}

// snapshot is what a look at a document finds. The deadline of a shutdown is a span, whatever the machine's clock says.
func (w *world) snapshot(kind event.Kind) ([]event.Event, *notice) {
	events := []event.Event{}
	for _, n := range w.notices {
		if n.kind != kind {
			continue
		}
		if !n.listed {
			if n.missed.IsZero() {
				n.missed = time.Now()
			}
			continue
		}
		n.missed, n.said = time.Time{}, time.Now()
		if n.moving {
			n.looks++
		}
		ev := event.Event{ID: n.id(), Kind: kind, Code: n.code, State: n.state, Deadline: n.deadline.UTC()}
		if kind == event.ScheduledMaintenance {
			ev.Instance = instance
		}
		if n.moving {
			ev.Deadline = seconds(time.Now().Add(2 * time.Minute)).UTC() // what counts is the first
		}
		if n.deadline.IsZero() {
			ev.Deadline = time.Time{}
		} else if !kind.Local() && kind != event.ASGTermination {
			ev.Deadline = ev.Deadline.Add(time.Duration(w.slept.Load()))
		}
		events = append(events, ev)
		if n.seen.IsZero() {
			n.seen = time.Now()
			w.watchDeadline(n)
			w.told("nth is told of %s", ev.ID)
		}
	}
	return events, nil
}

// of is the notice of an event's ID.
func (w *world) of(id string) *notice {
	id, _, _ = strings.Cut(id, "~")
	for i := len(w.notices) - 1; i >= 0; i-- {
		if w.notices[i].name == id {
			return w.notices[i]
		}
	}
	return nil
}

// source tells one incarnation of one document.
type source struct {
	world *world
	nth   *incarnation
	kind  event.Kind
}

// cadence is how long after a change a document is looked at, at most.
func (s source) cadence() time.Duration {
	switch s.kind {
	case event.Shutdown:
		return 10 * time.Millisecond
	case event.RebalanceRecommendation, event.ScheduledMaintenance:
		return 3 * time.Second
	}
	return 500 * time.Millisecond
}

// Run implements agent.Source. It looks soon after anything has changed, which is all that a poll would find, and now and
// then besides.
func (s source) Run(ctx context.Context, sink event.Sink) error {
	w := s.world
	for {
		pause := time.Duration(w.dice(int(s.cadence()/time.Millisecond)+1)) * time.Millisecond
		if !w.lie(ctx, pause) {
			return nil
		}
		w.mu.Lock()
		d := w.documents[s.kind]
		changed, deaf := d.changed, time.Until(d.deaf)
		again := time.Minute
		if deaf > 0 {
			w.mu.Unlock()
			sink.Trouble(s.kind, fmt.Errorf("no answer"))
			again = min(deaf, 5*time.Second)
		} else {
			events, _ := w.snapshot(s.kind)
			for _, n := range w.notices {
				if n.moving && n.listed && n.kind == s.kind {
					again = 5 * time.Second
				}
			}
			w.nthTold(s.nth, s.kind)
			w.mu.Unlock()
			s := event.Snapshot{Kind: s.kind, Events: events}
			if !s.Kind.Local() {
				s.Clock, s.Within = seconds(w.ec2()), time.Second
			}
			sink.Snapshot(s)
		}
		t := time.NewTimer(again)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-changed:
			t.Stop()
		case <-t.C:
		}
	}
}

// statePath is where an incarnation has its record.
func (w *world) statePath(number int) string { return filepath.Join(w.dir, fmt.Sprint(number)) }

// power is what is on the disk, as a power cut now would leave it. It belongs to who has the lock.
func (w *world) power(i *incarnation) {
	if time.Now().Before(w.hung) {
		return // as it was when the disk began to hang
	}
	if text, err := os.ReadFile(filepath.Join(w.statePath(i.number), "record.json")); err == nil {
		w.disk = text
		if w.keeps {
			w.disks = append(w.disks, saved{at: time.Now(), text: text})
		}
	}
}

// saved is a record as it was on the disk.
type saved struct {
	at   time.Time
	text []byte
}

// hasDrainedPods are the pods on the node.
func (w *world) onNode() []*corev1.Pod {
	var pods []*corev1.Pod
	for _, pod := range w.server.Pods() {
		if pod.Spec.NodeName == apitest.Node {
			pods = append(pods, pod)
		}
	}
	return pods
}
