package policy_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// world is a machine, what is announced for it, its node, and an nth whose guard does what the goal says.
type world struct {
	t      *testing.T
	random *rand.Rand
	rules  policy.Settings

	now   time.Time
	up    time.Time // when this nth was started
	boot  int
	count int
	// truth is what is announced; what nth knows of it lies in known and failing. moving are the notices whose time and ID
	// are other ones at each look.
	truth     []event.Event
	moving    map[string]bool
	reachable bool
	calm      bool // nothing fails or crashes any more
	known     map[event.Kind][]event.Event
	failing   map[event.Kind]time.Time
	unwatched map[event.Kind]bool
	lastGood  time.Time
	// attested are the events that the last good look of this boot has found announced.
	attested map[string]bool
	record   *book
	// begun is since when each event is acted upon, as the world has seen it.
	begun map[string]time.Time

	// cordoned is the node's; ours tells whether it bears our annotation, which names an event and says since when.
	// refused: nth may not cordon it.
	cordoned, ours, refused bool
	claim                   event.Event
	claims                  []string // all that it is for
	claimed                 time.Time
	claimBoot               string
	// trouble is why the guard cannot close the node; empty if it can.
	trouble string
	// limited tells that people want the node's pods left alone.
	limited bool
	// goal is the one that the guard pursues, node what it has told under that goal of its events, and empty when the pods that have to
	// go will be gone.
	goal policy.Goal
	node policy.Node
	told []string
	// looked are the events for which it has been looked at.
	looked []string
	empty  time.Time
	log    []string
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		t: t, random: rand.New(rand.NewPCG(seed, 0)), rules: twoMinutes(), now: noon, reachable: true, record: newBook(nil),
		moving: map[string]bool{}, begun: map[string]time.Time{},
	}
	w.rules[event.ScheduledMaintenance] = fleet()[event.ScheduledMaintenance]
	w.rules = changed(w.rules, func(r *policy.Rule) { r.Window, r.Spread = 45*time.Minute, 5*time.Minute })
	w.setAction(event.RebalanceRecommendation, policy.Cordon)
	return w
}

func (w *world) bootID() string { return fmt.Sprint("boot-", w.boot) }

func (w *world) chance(percent int) bool { return w.random.IntN(100) < percent }

func (w *world) note(format string, args ...any) {
	w.log = append(w.log, w.now.Format("15:04:05.0 ")+fmt.Sprintf(format, args...))
}

// happen lets one thing happen to the machine, the node or nth.
func (w *world) happen() {
	switch n := w.random.IntN(24); {
	case n < 5:
		for range 1 + w.random.IntN(2) {
			w.announce()
		}
	case n < 8 && len(w.truth) > 0:
		w.withdraw(w.random.IntN(len(w.truth)))
	case n == 8 && len(w.truth) > 0:
		w.alter(w.random.IntN(len(w.truth)))
	case n == 9:
		w.reboot()
	case n == 10:
		w.restart()
	case n == 11:
		w.reachable = !w.reachable
		w.note("the metadata service is reachable: %t", w.reachable)
	case n < 14:
		w.interfere()
	case n == 14:
		w.configure()
	case n == 15 && w.chance(30):
		w.setBack()
	case n == 16 && w.chance(30):
		w.note("the record is lost")
		w.record, w.begun = newBook(nil), map[string]time.Time{}
		w.restart()
	default:
		w.now = w.now.Add(time.Duration(1+w.random.IntN(40)) * []time.Duration{time.Second, time.Minute}[w.random.IntN(2)])
	}
}

func (w *world) announce() {
	if w.count++; len(w.truth) > 6 {
		return // More at once show nothing that fewer do not.
	}
	id := func(kind string) string { return fmt.Sprint(kind, "-", w.count) }
	in := w.now.Sub(noon) + time.Duration(w.random.IntN(180)-10)*time.Minute
	code := []string{"instance-stop", "instance-retirement", "system-reboot", "instance-reboot", "system-maintenance", "other"}[w.random.IntN(6)]
	ev := []event.Event{
		spot(id("spot"), w.now.Sub(noon)+2*time.Minute), hibernation(id("hibernation"), w.now.Sub(noon)+2*time.Minute),
		spot(id("behind"), w.now.Sub(noon)+12*time.Minute), maintenance(id(code), code, in), maintenance(id(code), code, in),
		termination(id("termination")), rebalance(id("rebalance")), shutdown(id("shutdown"), w.now.Sub(noon)+5*time.Second),
	}[w.random.IntN(8)]
	if ev.Kind == event.SpotInterruption && w.chance(30) {
		w.moving[ev.ID] = true
	}
	if ev.Kind == event.ScheduledMaintenance && w.chance(80) { // Else the ID cannot be read.
		ev.Instance = "i-1234567890abcdef0"
	}
	w.truth = append(w.truth, ev)
	w.note("announced: %s", ev.ID)
}

func (w *world) withdraw(i int) {
	w.note("no longer announced: %s", w.truth[i].ID)
	w.truth = slices.Delete(w.truth, i, i+1)
}

// alter changes a maintenance event's state or time.
func (w *world) alter(i int) {
	ev := &w.truth[i]
	switch {
	case ev.Kind != event.ScheduledMaintenance || ev.State != event.Pending:
		return
	case w.chance(50):
		ev.State = []event.State{event.Canceled, event.Completed}[w.random.IntN(2)]
	default:
		ev.Deadline = w.now.Add(time.Duration(w.random.IntN(180)-10) * time.Minute)
	}
	w.note("altered: %s %s %s", ev.ID, ev.State, ev.Deadline.Format("15:04:05"))
}

// reboot ends what a boot ends. A list may lag behind.
func (w *world) reboot() {
	w.boot++
	w.attested = nil
	w.now = w.now.Add(time.Minute)
	w.truth = slices.DeleteFunc(w.truth, func(ev event.Event) bool {
		over := !ev.Deadline.IsZero() && ev.Deadline.Before(w.now)
		return ev.Kind == event.ASGTermination || ev.Kind == event.Shutdown || over && w.chance(70)
	})
	w.note("rebooted")
	w.restart()
}

// restart begins anew with what is on disk and on the Node. Nobody looks for what is ignored, and for shutdowns only where
// logind answers.
func (w *world) restart() {
	w.known, w.failing, w.lastGood = nil, nil, time.Time{}
	w.goal, w.node, w.trouble, w.looked = policy.Goal{}, policy.Node{}, "", nil
	w.unwatched = map[event.Kind]bool{}
	for kind, rule := range w.rules {
		w.unwatched[kind] = rule.Action == policy.Ignore || kind == event.Shutdown && w.chance(20)
	}
	w.up = w.now
	w.note("nth starts")
	w.adopt()
}

// adopt takes a claim into the record that it does not know of, as pkg/agent does.
func (w *world) adopt() {
	if _, met := policy.Find(w.record.entries(), w.claim.ID); met || !w.ours || !w.cordoned {
		return
	}
	w.note("adopted: %s", w.claim.ID)
	w.record.put(state.Entry{
		Event: event.Event{ID: w.claim.ID, Kind: w.claim.Kind}, Phase: state.Cordoned, BootID: w.claimBoot, OnNode: true,
		FirstSeen: w.claimed, Changed: w.now, CordonedAt: w.claimed, Missing: w.now,
	})
}

// interfere is what others do to the node: an admin cordons it, makes our cordon theirs, or lifts it; a claim appears of a
// kind that this nth does not know; the API server refuses, or no longer.
func (w *world) interfere() {
	switch w.random.IntN(7) {
	case 6:
		w.limited = !w.limited
		w.node.Drained = false
	case 0:
		w.ours = w.ours && w.cordoned
		w.cordoned = true
	case 1:
		w.ours = false
	case 2, 3:
		w.cordoned = false
	case 4:
		w.refused = !w.refused
	case 5:
		if !w.cordoned && len(w.goal.Events) == 0 {
			w.count++
			w.cordoned, w.ours, w.claim = true, true, event.Event{ID: fmt.Sprint("claim-", w.count), Kind: event.StateChange}
			w.claims, w.claimed, w.claimBoot = []string{w.claim.ID}, w.now, w.bootID()
			w.restart()
		}
	}
	w.note("somebody interferes: cordoned %t, ours %t, refused %t, limited %t", w.cordoned, w.ours, w.refused, w.limited)
}

// configure changes what is done for a kind. What was ignored is only looked for after a restart.
func (w *world) configure() {
	kind := event.Kinds()[w.random.IntN(len(event.Kinds()))]
	w.setAction(kind, []policy.Action{policy.Ignore, policy.Notify, policy.Cordon, policy.Drain, policy.Drain}[w.random.IntN(5)])
	if w.chance(50) {
		w.restart()
	}
}

func (w *world) setAction(kind event.Kind, action policy.Action) {
	w.rules = maps.Clone(w.rules)
	rule := w.rules[kind]
	rule.Action = action
	w.rules[kind] = rule
	w.note("%s is now to %s", kind, action)
}

// setBack sets the clock back while nth does not run, so that nobody moves what is counted from it.
func (w *world) setBack() {
	w.now = w.now.Add(-time.Duration(1+w.random.IntN(60)) * time.Minute)
	for id, t := range w.begun {
		w.begun[id] = earlier(t, w.now)
	}
	w.claimed, w.empty = earlier(w.claimed, w.now), earlier(w.empty, w.now)
	w.note("the clock is set back")
	w.restart()
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// poll asks the metadata service.
func (w *world) poll() {
	if !w.reachable {
		w.failing = failing(w.lastGood)
		return
	}
	w.known, w.failing, w.lastGood, w.attested = map[event.Kind][]event.Event{}, nil, w.now, map[string]bool{}
	said := known(w.truth...)
	for _, kind := range event.Kinds() {
		if w.unwatched[kind] {
			continue
		}
		for i, ev := range said[kind] {
			if w.moving[ev.ID] {
				said[kind][i].ID = fmt.Sprint(ev.ID, "@", w.now.Unix())
				said[kind][i].Deadline = w.now.Add(2 * time.Minute)
			}
		}
		w.known[kind] = policy.Recognize(w.record.entries(), w.bootID(), event.Snapshot{Kind: kind, Events: said[kind]})
		for _, ev := range w.known[kind] {
			w.attested[ev.ID] = true
		}
	}
}

// forget drops what is over and no longer announced, as pkg/record does in time.
func (w *world) forget() {
	kept := slices.DeleteFunc(w.record.entries(), func(e state.Entry) bool { return e.Phase == state.Closed && !w.attested[e.Event.ID] })
	w.record = newBook(kept)
}

func (w *world) situation() policy.Situation {
	return policy.Situation{
		Now: w.now, BootID: w.bootID(), Up: w.now.Sub(w.up), Known: w.known, Failing: w.failing, Unwatched: w.unwatched,
		Past: w.record.entries(), Node: w.node, LookedFor: w.looked, Limited: w.limited,
	}
}
