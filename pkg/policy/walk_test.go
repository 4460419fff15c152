package policy_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "walk from this seed only")
	walksFlag = flag.Uint64("walks", 30, "how many seeds to walk from")
)

// TestWhateverHappensTheRulesHold walks through random announcements, withdrawals, reboots, crashes, outages and admins,
// and looks at every decision on the way. A walk that fails names its seed and tells its story.
func TestWhateverHappensTheRulesHold(t *testing.T) {
	t.Parallel()
	first, last := uint64(1), *walksFlag
	if *seedFlag != 0 {
		first, last = *seedFlag, *seedFlag
	}
	for seed := first; seed <= last; seed++ {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, seed)
			defer func() {
				if t.Failed() {
					t.Logf("seed %d\n%s", seed, strings.Join(w.log[max(0, len(w.log)-60):], "\n"))
				}
			}()
			for range 150 {
				w.happen()
				w.rest()
				if w.poll(); t.Failed() {
					return
				}
				w.rest()
				w.checkNode()
			}
			w.finish()
		})
	}
}

// rest decides and acts until there is nothing to do.
func (w *world) rest() {
	for range 100 {
		folded := w.rules.Fold(w.situation())
		w.record.put(folded...)
		for _, e := range folded {
			w.checkEnding(e, e.Ending)
		}
		if again := w.rules.Fold(w.situation()); len(again) > 0 {
			w.t.Errorf("a second Fold changes %s", describeEntries(again))
		}
		step := w.rules.Decide(w.situation())
		w.checkStep(step)
		if step.Action == policy.Wait || w.t.Failed() {
			return
		}
		w.take(step)
	}
	w.t.Errorf("there is no end to it")
}

func (w *world) checkStep(step policy.Step) {
	if !step.Revisit.IsZero() && !step.Revisit.After(w.now) {
		w.t.Errorf("%s: to be decided again in the past", describeStep(step))
	}
	if !step.Deadline.IsZero() && !step.Deadline.After(w.now) {
		w.t.Errorf("%s: has no time left", describeStep(step))
	}
	shuffled := w.situation()
	w.random.Shuffle(len(shuffled.Past), func(i, j int) { shuffled.Past[i], shuffled.Past[j] = shuffled.Past[j], shuffled.Past[i] })
	if other := w.rules.Decide(shuffled); other != step {
		w.t.Errorf("in another order, the step is not %s but %s", describeStep(step), describeStep(other))
	}
	e := w.record.byID[step.Event.ID]
	switch step.Action {
	case policy.Uncordon:
		w.checkUncordon(e)
		w.checkEnding(e, step.Ending)
	case policy.Cordon, policy.Drain:
		w.checkBeginning(step, e)
	case policy.Ignore, policy.Notify:
		w.t.Errorf("%s is no step", step.Action)
	case policy.Wait:
	}
}

// checkUncordon looks that no event is robbed of its cordon.
func (w *world) checkUncordon(e record.Entry) {
	if !e.Cordon || e.Phase == record.Closed {
		w.t.Errorf("uncordoning for %s, which holds none", e.Event.ID)
	}
	for _, other := range w.record.entries() {
		if w.holds(other) {
			w.t.Errorf("uncordoning for %s, while %s holds the cordon", e.Event.ID, other.Event.ID)
		}
	}
}

// checkEnding looks that nothing is over by a reboot that the last good look since then has still found announced, but
// for what a reboot ends in any case.
func (w *world) checkEnding(e record.Entry, ending record.Ending) {
	ends := e.Event.Kind == event.Shutdown || e.Event.Code == "system-reboot" || e.Event.Code == "instance-reboot"
	if ending == record.Rebooted && w.attested[e.Event.ID] && !ends {
		w.t.Errorf("%s is over by a reboot, since which it was found announced", e.Event.ID)
	}
}

// holds tells, without asking the policy, of an entry that certainly holds the cordon: it was acted upon in this boot,
// nobody has said anything else, and it has no time to live.
func (w *world) holds(e record.Entry) bool {
	moved := e.Event.Deadline.After(e.ActedFor)
	return e.Cordon && e.Acted() && e.BootID == w.bootID() && !moved && w.listed(e.Event) && e.Event.State == event.Pending &&
		e.Event.Kind != event.RebalanceRecommendation
}

func (w *world) listed(ev event.Event) bool {
	return slices.ContainsFunc(w.known[ev.Kind], func(k event.Event) bool { return k.ID == ev.ID })
}

// checkBeginning looks that nothing is done twice, and nothing for what is not announced.
func (w *world) checkBeginning(step policy.Step, e record.Entry) {
	if e.Phase == record.Drained || e.Phase == record.Closed || step.Action == policy.Cordon && e.Phase == record.Cordoned {
		w.t.Errorf("%s, which is %s", describeStep(step), e.Phase)
	}
	if e.Event.State != event.Pending {
		w.t.Errorf("%s, which is %s", describeStep(step), e.Event.State)
	}
	underWay := e.BootID == w.bootID() && (e.Phase == record.Draining || e.Phase == record.Cordoning)
	if w.known != nil && !w.listed(e.Event) && !underWay {
		w.t.Errorf("%s, which is not announced", describeStep(step))
	}
}

// checkNode compares the node with the record and with what is announced.
func (w *world) checkNode() {
	holders := 0
	for _, e := range w.record.entries() {
		if e.Cordon {
			holders++
		}
		if e.Cordon && !e.Acted() {
			w.t.Errorf("%s is %s and holds a cordon", e.Event.ID, e.Phase)
		}
		urgent := e.Event.Kind == event.SpotInterruption && e.Event.Code == "terminate" && w.listed(e.Event)
		if urgent && e.Error == "" && e.Phase != record.Drained && e.Ending != record.Rebooted {
			w.t.Errorf("%s is announced and %s", e.Event.ID, e.Phase)
		}
	}
	if w.cordoned && w.ours && holders == 0 {
		w.t.Errorf("the node bears a cordon of ours that nobody holds")
	}
}

// finish withdraws everything and lets time pass: nothing may be left.
func (w *world) finish() {
	w.truth, w.reachable, w.calm = nil, true, true
	for range 4 {
		w.poll()
		w.rest()
		w.now = w.now.Add(2 * time.Hour)
	}
	for _, e := range w.record.entries() {
		if e.Phase != record.Closed || e.Cordon || e.Ending == "" {
			w.t.Errorf("in the end: %s", describeEntries([]record.Entry{e}))
		}
	}
	if w.cordoned && w.ours {
		w.t.Error("in the end, the node bears our cordon")
	}
	if step := w.rules.Decide(w.situation()); step.Action != policy.Wait || !step.Revisit.IsZero() {
		w.t.Errorf("in the end there is still %s", describeStep(step))
	}
}

// The order of the record must not matter where many steps are due at once.
func TestTheOrderOfTheRecordDoesNotMatter(t *testing.T) {
	t.Parallel()
	var events []event.Event
	var entries []record.Entry
	for i := range 12 {
		id := fmt.Sprint(i)
		ev := []event.Event{spot(id, time.Minute), shutdown(id, time.Minute), maintenance(id, "instance-stop", time.Minute), termination(id)}[i%4]
		events = append(events, ev)
		entries = append(entries, entry(ev, []record.Phase{record.Seen, record.Draining, record.Incomplete}[i%3]))
	}
	sit := policy.Situation{Now: noon, BootID: thisBoot, Known: known(events...), Past: entries}
	want := rules().Decide(sit)
	random := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		random.Shuffle(len(entries), func(i, j int) { entries[i], entries[j] = entries[j], entries[i] })
		if got := rules().Decide(sit); got != want {
			t.Fatalf("Decide: %s, in another order %s", describeStep(want), describeStep(got))
		}
	}
}
