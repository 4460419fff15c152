package policy_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
)

// book is a record in memory.
type book struct {
	order []string
	byID  map[string]record.Entry
}

func newBook(entries []record.Entry) *book {
	b := &book{byID: map[string]record.Entry{}}
	b.put(entries...)
	return b
}

func (b *book) put(entries ...record.Entry) {
	for _, e := range entries {
		if _, met := b.byID[e.Event.ID]; !met {
			b.order = append(b.order, e.Event.ID)
		}
		b.byID[e.Event.ID] = e
	}
}

func (b *book) entries() []record.Entry {
	var all []record.Entry
	for _, id := range b.order {
		all = append(all, b.byID[id])
	}
	return all
}

// world is a machine, what is announced for it, its node, and an nth that takes the steps it is told to.
type world struct {
	t      *testing.T
	random *rand.Rand
	rules  policy.Settings

	now   time.Time
	boot  int
	count int
	// truth is what is announced; what nth knows of it lies in known and failing.
	truth     []event.Event
	reachable bool
	calm      bool // nothing fails or crashes any more
	known     map[event.Kind][]event.Event
	failing   map[event.Kind]time.Time
	lastGood  time.Time
	// attested are the events that the last good look of this boot has found announced.
	attested map[string]bool
	record   *book
	// cordoned is the node's; ours tells whether it bears our annotation.
	cordoned, ours bool
	log            []string
}

func newWorld(t *testing.T, seed uint64) *world {
	settings := withAction(event.RebalanceRecommendation, policy.Cordon)
	return &world{
		t: t, random: rand.New(rand.NewPCG(seed, 0)), rules: settings,
		now: noon, reachable: true, record: newBook(nil),
	}
}

func (w *world) bootID() string { return fmt.Sprint("boot-", w.boot) }

func (w *world) chance(percent int) bool { return w.random.IntN(100) < percent }

func (w *world) note(format string, args ...any) {
	w.log = append(w.log, w.now.Format("15:04:05.0 ")+fmt.Sprintf(format, args...))
}

// happen lets one thing happen to the machine, the node or nth.
func (w *world) happen() {
	switch n := w.random.IntN(20); {
	case n < 5:
		w.announce()
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
	case n == 12:
		w.interfere()
	default:
		w.now = w.now.Add(time.Duration(1+w.random.IntN(40)) * []time.Duration{time.Second, time.Minute}[w.random.IntN(2)])
	}
}

func (w *world) announce() {
	w.count++
	id := func(kind string) string { return fmt.Sprint(kind, "-", w.count) }
	in := w.now.Sub(noon) + time.Duration(1+w.random.IntN(180))*time.Minute
	code := []string{"instance-stop", "system-reboot", "instance-reboot", "system-maintenance", "other"}[w.random.IntN(5)]
	ev := []event.Event{
		spot(id("spot"), w.now.Sub(noon)+2*time.Minute), hibernation(id("hibernation"), w.now.Sub(noon)+2*time.Minute),
		maintenance(id(code), code, in), maintenance(id(code), code, in),
		termination(id("termination")), rebalance(id("rebalance")), shutdown(id("shutdown"), w.now.Sub(noon)+5*time.Second),
	}[w.random.IntN(7)]
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
		ev.Deadline = w.now.Add(time.Duration(1+w.random.IntN(180)) * time.Minute)
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

func (w *world) restart() {
	w.known, w.failing, w.lastGood = nil, nil, time.Time{}
	w.note("nth starts")
}

// interfere is what an admin does to the node: cordon it, make our cordon theirs, or lift it.
func (w *world) interfere() {
	switch w.random.IntN(3) {
	case 0:
		w.cordoned = true
	case 1:
		w.ours = false
	case 2:
		w.cordoned = false
	}
	w.note("an admin interferes: cordoned %t, ours %t", w.cordoned, w.ours)
}

// poll asks the metadata service.
func (w *world) poll() {
	if w.reachable {
		w.known, w.failing, w.lastGood = known(w.truth...), nil, w.now
		w.attested = map[string]bool{}
		for _, ev := range w.truth {
			w.attested[ev.ID] = true
		}
		return
	}
	w.failing = failing(w.lastGood)
}

func (w *world) situation() policy.Situation {
	return policy.Situation{
		Now: w.now, BootID: w.bootID(), Known: w.known, Failing: w.failing, Past: w.record.entries(),
	}
}

// take takes a step as the agent does, perfectly or not.
func (w *world) take(step policy.Step) {
	e := w.record.byID[step.Event.ID]
	e.Error, e.Changed = "", w.now
	e.Phase = map[policy.Action]record.Phase{
		policy.Drain: record.Draining, policy.Cordon: record.Cordoning, policy.Uncordon: record.Undoing,
	}[step.Action]
	if step.Action != policy.Uncordon {
		e.Cordon, e.ActedFor, e.BootID = true, step.Event.Deadline, w.bootID()
	}
	w.record.put(e)
	w.note("%s", describeStep(step))
	if !w.calm && w.chance(10) {
		w.restart() // killed before
		return
	}
	if !w.calm && w.chance(10) {
		e.Error, e.Failures = "refused", e.Failures+1
		w.record.put(e)
		return
	}
	lifted, foreign := w.act(step)
	if !w.calm && w.chance(10) {
		w.restart() // killed after
		return
	}
	w.settle(step, e, lifted, foreign)
}

// act does to the node what the step says, under the rules of pkg/drain.
func (w *world) act(step policy.Step) (lifted, foreign bool) {
	switch {
	case step.Action == policy.Uncordon && w.ours:
		lifted, w.cordoned, w.ours = w.cordoned, false, false
	case step.Action == policy.Uncordon:
	case w.cordoned:
		foreign = !w.ours
	default:
		w.cordoned, w.ours = true, true
	}
	return lifted, foreign
}

func (w *world) settle(step policy.Step, e record.Entry, lifted, foreign bool) {
	e.Failures = 0
	switch {
	case step.Action == policy.Drain:
		e.Phase, e.Cordon, e.CordonedAt = record.Drained, !foreign, w.now
	case step.Action == policy.Cordon:
		e.Phase, e.Cordon, e.CordonedAt = record.Cordoned, !foreign, w.now
	case step.Ending == "":
		e.Phase, e.Cordon = record.Seen, false
	default:
		e.Phase, e.Cordon, e.Ending = record.Closed, false, step.Ending
	}
	w.record.put(e)
	if step.Action != policy.Uncordon {
		return
	}
	for _, other := range w.record.entries() {
		if other.Cordon {
			other.Cordon = false
			if lifted && w.rules.Stands(w.situation(), other) {
				other.Phase = record.Seen
			}
			w.record.put(other)
		}
	}
}
