package simulation_test

import (
	"context"
	"fmt"
	"github.com/nth-project/nth/pkg/evict"
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

// world is everything around nth, and the truth by which nth is judged. It lives in a synctest bubble, whose clock is the world's clock.
//
// mu guards all fields that change. A method with Locked in its name needs it; so do the methods that judge, and those of notice and cluster.
type world struct {
	server *apitest.Server
	dir    string
	start  time.Time
	random *rand.Rand

	mu     sync.Mutex
	story  []storyLine
	broken []violation
	// verdicts count how often each invariant was judged.
	verdicts map[invariant]int

	rules     policy.Settings
	ruleSet   map[event.Kind]time.Time // when the rule of a kind was changed last
	options   drain.Options            // for the next incarnation
	documents map[event.Kind]*document
	notices   []*notice
	slept     atomic.Int64  // for how long the machine has slept in all; the world's clock stops then
	offset    time.Duration // by how much the machine's clock is ahead of EC2's
	ahead     time.Duration // by how much the clock of the last incarnation is ahead of EC2's
	stepped   bool          // ahead was different in an earlier boot, or before the record was lost

	muted time.Time // until when open watches deliver nothing

	boot     int
	booted   time.Time
	nth      *incarnation   // nil while no process runs
	all      []*incarnation // also those that have ended
	running  sync.WaitGroup
	disk     []byte    // the record that a power cut would leave
	hung     time.Time // until when the disk hangs
	full     bool      // every write to the disk fails
	identity time.Time // from when on the kubelet's credential exists
	rename   func()    // ends the guard that uses the present name of the node; nil before the first guard
	forgot   time.Time // when the record was lost or put back last
	started  int       // how many incarnations have begun

	faults    []*fault
	troubled  time.Time // until when something has kept nth from its work
	disturbed time.Time // until when something was happening
	refused   time.Time // until when nth may pause after a refusal for good

	cluster cluster
	ending  bool // no incarnation begins any more
}

// storyLine is one line of the story, which is formatted only if it is printed.
type storyLine struct {
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
		boot: 1, options: drain.Options{Options: evict.Options{Margin: 5 * time.Second}},
	}
	w.server = apitest.New(outlet{TB: t, world: w})
	w.cluster.init()
	for _, kind := range event.Kinds() {
		w.documents[kind] = &document{changed: make(chan struct{})}
	}
	w.server.SetBootID(w.bootID())
	return w
}

// instance is the machine's ID. Maintenance of a fleet begins spread over a time, and this instance begins share after the first.
const (
	instance      = "i-0a1b2c3d4e5f60718"
	spread, share = 20 * time.Second, 19 * time.Second
)

// defaults are the default rules, with shorter times.
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

// outlet is the testing.TB of the fake API server. It makes each error that the server reports a violation.
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

// now is the time since the history began.
func (w *world) now() time.Duration { return time.Since(w.start) }

// ec2 is EC2's clock.
func (w *world) ec2() time.Time { return time.Now().Add(time.Duration(w.slept.Load())) }

// uptime is for how long the machine has been up, including sleep.
func (w *world) uptime() time.Duration { return time.Since(w.booted) }

// dice returns a random number below n.
func (w *world) dice(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.random.IntN(n)
}

// note adds a line to the story.
func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noteLocked(format, args...)
}

// noteLocked is note with the lock held.
func (w *world) noteLocked(format string, args ...any) {
	w.story = append(w.story, storyLine{w.now(), format, args})
}

// violated records that an invariant does not hold.
func (w *world) violated(name invariant, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.violatedLocked(name, format, args...)
}

// violatedLocked is violated with the lock held.
func (w *world) violatedLocked(name invariant, format string, args ...any) {
	if len(w.broken) > 20 { // More would say the same.
		return
	}
	text := fmt.Sprintf(format, args...)
	w.noteLocked("VIOLATED %s: %s", name, text)
	w.broken = append(w.broken, violation{name: name, at: w.now(), text: text})
}

// tale returns the story as text.
func (w *world) tale() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var text strings.Builder
	for _, l := range w.story {
		fmt.Fprintf(&text, "%9.3fs  %s\n", l.at.Seconds(), fmt.Sprintf(l.text, l.args...))
	}
	return text.String()
}

// disturbLocked records that something happens for a time from now: nth may still be reacting to it.
func (w *world) disturbLocked(d time.Duration) {
	if end := time.Now().Add(d); end.After(w.disturbed) {
		w.disturbed = end
	}
}

// disturb is disturbLocked without the lock.
func (w *world) disturb(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.disturbLocked(d)
}

// change changes what is true of the Node and its pods, which disturbs nth.
func (w *world) change(do func(*cluster)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	do(&w.cluster)
	w.disturbLocked(0)
}

// hinderLocked records that something may keep nth from its work for a time from now.
func (w *world) hinderLocked(d time.Duration) {
	if end := time.Now().Add(d); end.After(w.troubled) {
		w.troubled = end
	}
	w.disturbLocked(d)
}

// hinder is hinderLocked without the lock.
func (w *world) hinder(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hinderLocked(d)
}

// document is where the events of one kind are announced: a document of the metadata service, or logind.
type document struct {
	changed  chan struct{} // closed and replaced when the document changes, or whether it can be read
	deaf     time.Time     // until when it cannot be read
	since    time.Time     // since when it cannot be read
	readable time.Time     // when the last outage ended, or will end
}

// documentChanged has all sources look at the document of a kind.
func (w *world) documentChanged(kind event.Kind) {
	d := w.documents[kind]
	close(d.changed)
	d.changed = make(chan struct{})
}

// notice is an event that is announced, or was.
type notice struct {
	name     string
	kind     event.Kind
	code     string
	deadline time.Time
	state    event.State
	listed   bool // its document has it now
	boot     int  // the number of the boot in which it was announced

	changed   time.Time // when anything about it changed last
	announced time.Time // when it was announced last
	firstSeen time.Time // when nth first saw it since then
	lastSeen  time.Time // when nth saw it last
	deadlined time.Time // when its deadline was set or moved last

	// What nth is known to know, or not.
	unsure   bool      // what nth wants for it cannot be known, until it ends
	vague    bool      // the record of it was lost: nth may count from another time than firstSeen
	outdated bool      // nth may know it as it was earlier, from an old record
	rebooted time.Time // when the machine was rebooted last since nth saw it; zero if it was not
	acted    bool      // nth may have been acting on it at that reboot
	done     bool      // nth had reported it drained before that reboot
	lifted   time.Time // when operators uncordoned the node that was closed for it
	released bool      // nth has recorded that

	requests  int       // how many reboots nth has requested for it
	requested time.Time // by the record, the last of them

	// What nth has reported and recorded.
	outcome    event.Outcome // reported last
	settled    time.Time     // when an outcome was first reported
	drained    string        // the boot ID in which it was recorded as drained; "" if it is not
	drainedBy  int           // the number of the incarnation that recorded that
	incomplete bool          // it was recorded as incomplete
	ended      time.Time     // when it was recorded as over, or as being undone

	unlisted  time.Time     // since when its document does not have it
	missed    time.Time     // when nth first looked since then
	held      bool          // the node was surely closed for it when it was listed last
	watching  time.Time     // the deadline at which it will be judged
	deafSince time.Duration // for how long its document could not be read since it was unlisted
}

// snapshot returns what a look at the document of a kind finds, and notes in the notices that nth has looked.
func (w *world) snapshot(kind event.Kind) []event.Event {
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
		n.missed, n.lastSeen = time.Time{}, time.Now()
		ev := event.Event{ID: n.name, Kind: kind, Code: n.code, State: n.state, Deadline: n.deadline.UTC()}
		if kind == event.ScheduledMaintenance {
			ev.Instance = instance
		}
		if n.deadline.IsZero() {
			ev.Deadline = time.Time{}
		} else if !kind.Local() && kind != event.ASGTermination { // EC2 dates these by its own clock, which runs on while the machine sleeps.
			ev.Deadline = ev.Deadline.Add(time.Duration(w.slept.Load()))
		}
		events = append(events, ev)
		if n.firstSeen.IsZero() {
			n.firstSeen = time.Now()
			w.watchDeadline(n)
			w.noteLocked("nth sees %s", ev.ID)
		}
	}
	return events
}

// of returns the latest notice of an event's ID; nil if nothing in the world has announced it, such as the label of a lost cordon.
func (w *world) of(id string) *notice {
	for i := len(w.notices) - 1; i >= 0; i-- {
		if w.notices[i].name == id {
			return w.notices[i]
		}
	}
	return nil
}

// source is an agent.Source: it delivers the document of one kind to one incarnation.
type source struct {
	world *world
	nth   *incarnation
	kind  event.Kind
}

// cadence is the longest time from a change of the document to the look that finds it.
func (s source) cadence() time.Duration {
	switch s.kind {
	case event.Shutdown:
		return 10 * time.Millisecond
	case event.RebalanceRecommendation, event.ScheduledMaintenance:
		return 3 * time.Second
	}
	return 500 * time.Millisecond
}

// Run implements agent.Source. It looks within cadence after each change, and at least once a minute. More looks would find nothing else.
func (s source) Run(ctx context.Context, sink event.Sink) {
	w := s.world
	for {
		pause := time.Duration(w.dice(int(s.cadence()/time.Millisecond)+1)) * time.Millisecond
		if !w.pause(ctx, pause) {
			return
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
			events := w.snapshot(s.kind)
			if s.nth.firstLook[s.kind].IsZero() {
				s.nth.firstLook[s.kind] = time.Now()
			}
			w.mu.Unlock()
			found := event.Snapshot{Kind: s.kind, Events: events}
			if !s.kind.Local() { // EC2's answers have a date, in whole seconds.
				found.Clock, found.Within = seconds(w.ec2()), time.Second
			}
			sink.Snapshot(found)
		}
		t := time.NewTimer(again)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-changed:
			t.Stop()
		case <-t.C:
		}
	}
}

// statePath is the state directory of an incarnation.
func (w *world) statePath(number int) string { return filepath.Join(w.dir, fmt.Sprint(number)) }

// saveDiskLocked keeps what is on the disk now, for the next incarnation.
func (w *world) saveDiskLocked(i *incarnation) {
	if time.Now().Before(w.hung) {
		return // Nothing has reached the disk since it began to hang.
	}
	if text, err := os.ReadFile(filepath.Join(w.statePath(i.number), "record.json")); err == nil {
		w.disk = text
	}
}

// onNode returns the pods on the node.
func (w *world) onNode() []*corev1.Pod {
	var pods []*corev1.Pod
	for _, pod := range w.server.Pods() {
		if pod.Spec.NodeName == apitest.Node {
			pods = append(pods, pod)
		}
	}
	return pods
}
