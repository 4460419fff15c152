package simulation_test

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"text/tabwriter"
)

// invariant is what always holds, as a violation names it.
type invariant string

// The invariants.
const (
	understood   invariant = "plans are understood"
	nothingHangs invariant = "nothing hangs and nothing panics"

	closedWithReason     invariant = "the node is closed as long as there is a reason"
	notClosedWithout     invariant = "the node is not closed without a reason"
	undoneInTime         invariant = "nothing of nth's is left on the node without a reason"
	readyAfterBoot       invariant = "the node is opened after a reboot only when the kubelet of this boot says that it is Ready"
	notUndoneTooSoon     invariant = "nothing is undone before its reason is gone for long enough"
	uncordonRespected    invariant = "what an operator uncordoned is never acted on again for the events that were active then"
	annotationsRespected invariant = "annotations of operators are respected"
	othersUnchanged      invariant = "nothing of others' is changed"
	asksWhatItMay        invariant = "the API server is asked for what a kubelet may ask"
	evictedWhileDue      invariant = "a pod is evicted as long as a drain is due"
	notEndedWithout      invariant = "no pod is evicted or deleted without a reason"
	nodesOwnStays        invariant = "the pods of DaemonSets and static pods stay"
	graceGiven           invariant = "a pod gets its grace period, or what is left"
	deletedWhenNeeded    invariant = "a pod is deleted only when it has to be"
	deletedForLost       invariant = "no pod is deleted for events that the machine survives"
	askedInTime          invariant = "a pod is evicted or deleted in time for its grace period"
	goneInTime           invariant = "no pod that has to go is on the node when the machine is lost"
	emptyIfDrained       invariant = "no evictable pod is left when an event is recorded as drained"
	volumesAwaited       invariant = "a node is drained only when its volumes are free, or were waited for"
	notForVolumes        invariant = "an event does not run out of time for volumes alone"
	oneOutcome           invariant = "an event has one outcome"
	settledIfDone        invariant = "an outcome is reported only when it is final"
	outcomeTrue          invariant = "an outcome is true when it is reported"
	settledInTime        invariant = "a lifecycle hook is completed and an inhibitor lock released in time"

	rebootsDrained invariant = "only a drained machine is rebooted, and the record says so before"
	rebootsOnce    invariant = "an event causes one reboot"

	evictionsEnd   invariant = "nothing is evicted without end"
	nodeWritesEnd  invariant = "the Node is not written to without end"
	recordEnds     invariant = "the record is not written without end"
	recordReadable invariant = "the record is readable after each crash"
	diskWorks      invariant = "the disk works"
	runs           invariant = "nth runs until it is stopped"
	stops          invariant = "nth stops when it is asked to"
	beats          invariant = "the agent feeds the watchdog"
)

// invariants are all that is judged, as the table shows them. understood is not: it fails only for a plan with a wrong name.
var invariants = []invariant{
	closedWithReason, notClosedWithout, undoneInTime, notUndoneTooSoon, readyAfterBoot, uncordonRespected, annotationsRespected, othersUnchanged, asksWhatItMay,
	evictedWhileDue, notEndedWithout, nodesOwnStays, graceGiven, deletedWhenNeeded, deletedForLost, askedInTime, goneInTime,
	emptyIfDrained, volumesAwaited, notForVolumes, oneOutcome, settledIfDone, outcomeTrue, settledInTime,
	rebootsDrained, rebootsOnce, evictionsEnd, nodeWritesEnd, recordEnds, recordReadable, diskWorks, runs, stops, beats, nothingHangs,
}

// judgedLocked counts that invariants were judged.
func (w *world) judgedLocked(names ...invariant) {
	for _, name := range names {
		w.verdicts[name]++
	}
}

// judged is judgedLocked without the lock.
func (w *world) judged(names ...invariant) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.judgedLocked(names...)
}

// tally counts, for each invariant, how often it was judged, in how many histories, and how many of these violated it.
type tally struct {
	mu        sync.Mutex
	histories int
	judged    map[invariant]int
	in        map[invariant]int
	violated  map[invariant]int
}

func newTally() *tally {
	return &tally{judged: map[invariant]int{}, in: map[invariant]int{}, violated: map[invariant]int{}}
}

// add counts a history. violations is how many histories have now violated the same invariant as this one; 0 if this one violated none.
func (t *tally) add(o outcome) (violations int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.histories++
	for name, count := range o.verdicts {
		t.judged[name] += count
		t.in[name]++
	}
	if len(o.broken) == 0 {
		return 0
	}
	t.violated[o.broken[0].name]++
	return t.violated[o.broken[0].name]
}

// violations is the number of histories with a violation.
func (t *tally) violations() int {
	sum := 0
	for _, count := range t.violated {
		sum += count
	}
	return sum
}

// print writes the figures, and a table of the invariants.
func (t *tally) print(to io.Writer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	used := cpu()
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "histories\t%d\nviolations\t%d\n", t.histories, t.violations())
	fmt.Fprintf(table, "processor time\t%.1f s\nhistories per processor-hour\t%.0f\n", used.Seconds(), float64(t.histories)/used.Hours())
	_ = table.Flush() // A terminal that fails shows nothing, and nothing depends on it.
	table = tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "\njudged\tin histories\tviolated\t\n")
	for _, name := range invariants {
		fmt.Fprintf(table, "%d\t%d\t%d\t  %s\n", t.judged[name], t.in[name], t.violated[name], name)
	}
	_ = table.Flush() // as above
}

// String says what was violated, and how often.
func (t *tally) String() string {
	var words []string
	for _, name := range append([]invariant{understood}, invariants...) {
		if count := t.violated[name]; count > 0 {
			words = append(words, fmt.Sprintf("%q %d times", name, count))
		}
	}
	if words == nil {
		return "none"
	}
	return strings.Join(words, ", ")
}
