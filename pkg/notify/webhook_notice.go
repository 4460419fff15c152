package notify

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
)

// Phase says at which moment in an event's life a notice is made.
type Phase string

// The phases of a notice.
const (
	// Announced: the event was met.
	Announced Phase = "announced"
	// Ended: what was to be done about it was done, or its time is over, or it went wrong.
	Ended Phase = "ended"
	// Over: the event no longer stands, and what was done for it is undone.
	Over Phase = "over"
)

// String is the phase's word.
func (p Phase) String() string { return string(p) }

// The outcomes that belong to the phase Ended. Announced has itself, and Over has the endings of an entry of the record,
// and "moved".
const (
	Cordoned   = "cordoned"
	Drained    = "drained"
	Incomplete = "incomplete"
	Failed     = "failed"
	// LeftAlone: people want the node left alone, so that it is not drained.
	LeftAlone = string(event.LeftAlone)
	// Moved: the event was put off, and nothing is done for it until then.
	Moved = "moved"
)

// Outcomes lists all outcomes, in the order of the phases.
func Outcomes() []string {
	outcomes := []string{Announced.String(), Cordoned, Drained, Incomplete, Failed, LeftAlone, Moved}
	for _, ending := range record.Endings() {
		outcomes = append(outcomes, string(ending))
	}
	return outcomes
}

func phaseOf(outcome string) Phase {
	switch outcome {
	case Announced.String():
		return Announced
	case Cordoned, Drained, Incomplete, Failed, LeftAlone:
		return Ended
	}
	return Over
}

// outcomeOf tells what a notice of a happening says; "" if there is none to be made.
func outcomeOf(h record.Happening) string {
	switch h.What {
	case record.Announced:
		return Announced.String()
	case record.ClosedWith:
		return string(h.Entry.Ending)
	case record.RanOut:
		return Incomplete
	case record.Failed:
		return Failed
	case record.LeftAlone:
		return LeftAlone
	case record.PutOff:
		return Moved
	case record.Done:
		return doneAs(h)
	}
	return ""
}

func doneAs(h record.Happening) string {
	switch {
	case h.Action == string(policy.Drain):
		return Drained
	case h.Action == string(policy.Cordon):
		return Cordoned
	case h.Entry.Phase == record.Closed:
		return string(h.Entry.Ending)
	}
	return Moved
}

// due tells whether an outcome is to be told of an event of which others were, the oldest first. An announcement stands
// until the event is over. An outcome that comes again, as that of an attempt which is repeated, is none, unless the event
// was announced or over in between. Between people's word to leave the node alone and all else, the last word counts.
func due(told []string, outcome string) bool {
	phase := phaseOf(outcome)
	for _, before := range slices.Backward(told) {
		switch {
		case before == outcome:
			return false
		case phase == Ended && (before == LeftAlone || outcome == LeftAlone):
			return true
		case phase == Announced && phaseOf(before) == Over && before != Moved:
			return true
		case phase == Ended && phaseOf(before) != Ended, phase == Over && phaseOf(before) != Over:
			return true
		}
	}
	return true
}

// noticeID names a notice of an event. The event may be announced, and drained for, more than once.
func noticeID(e record.Entry, outcome string, made time.Time) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %d", e.Event.ID, outcome, made.UnixNano()))
	return hex.EncodeToString(sum[:16])
}

// webhookText is the notice in one sentence.
func webhookText(f Fields) string {
	dryRun := ""
	if f.DryRun {
		dryRun = " (dry run)"
	}
	return fmt.Sprintf("nth%s: node %s: %s: %s", dryRun, f.Node, f.EventKind, what(f))
}

func what(f Fields) string {
	pods := fmt.Sprintf("%d pods evicted, %d deleted", f.Evicted, f.Deleted)
	switch f.Outcome {
	case Announced.String():
		return f.Plan
	case Drained:
		return fmt.Sprintf("drained: %s, %d left alone", pods, f.Skipped)
	case Incomplete:
		return fmt.Sprintf("the drain ran out of time: %s, left: %s", pods, nameAll(f.Left))
	case Failed:
		return "it failed and will be tried again: " + f.Error
	case LeftAlone:
		return "the node is left alone, as its annotation " + drain.KeyPrefix + "action asks: its pods are not evicted"
	case Cordoned:
		return "cordoned"
	case Moved:
		if f.Action == string(policy.Uncordon) {
			return "put off; the node takes pods again until then"
		}
		return "put off; nothing is done for it until then, and the node stays as it is"
	}
	return f.Outcome + "; nothing of it is left on the node"
}

// nameAll lists pods, but not more than one reads.
func nameAll(pods []string) string {
	const most = 20
	switch {
	case len(pods) == 0:
		return "not known"
	case len(pods) > most:
		return fmt.Sprintf("%s and %d more", strings.Join(pods[:most], ", "), len(pods)-most)
	}
	return strings.Join(pods, ", ")
}
