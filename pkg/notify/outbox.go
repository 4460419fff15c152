package notify

import (
	"cmp"
	"slices"
	"time"
)

const (
	// maxWaiting is how many notices of one node wait at most, unless the options say otherwise, and maxWaitingBytes bounds their texts.
	maxWaiting      = 64
	maxWaitingBytes = 24 << 20
	// reportedPerWaiting is how many outcomes are remembered for each notice that may wait.
	reportedPerWaiting = 4
)

// Notice is a message of the webhook. Notices are values.
type Notice struct {
	// ID is unique, and stays the same however often the notice is sent.
	ID string
	// Event is the ID of the event that the notice is about. Node is the node's name, if it was known.
	Event, Node string
	// What is the notice's subject in one word.
	What string
	// Made is when the notice was made, in wall time.
	Made time.Time
	// Text is the whole content of the message.
	Text string
}

// outbox holds the notices that have not been delivered, the oldest first, and the outcomes that need not be reported again. It is in
// memory: a restart forgets it, and the record, from which the agent resumes, keeps most outcomes from being reported twice.
type outbox struct {
	most     int // notices that wait; 0 stands for maxWaiting
	waiting  []Notice
	bytes    int // of their texts
	reported []reportedOutcome
}

type reportedOutcome struct{ event, outcome string }

// of lists the outcomes that were reported of an event, the oldest first.
func (o *outbox) of(event string) (outcomes []string) {
	for _, r := range o.reported {
		if r.event == event {
			outcomes = append(outcomes, r.outcome)
		}
	}
	return outcomes
}

// note remembers an outcome as reported, also one that nobody wants.
func (o *outbox) note(event, outcome string) {
	o.reported = append(o.reported, reportedOutcome{event, outcome})
	o.reported = o.reported[max(len(o.reported)-reportedPerWaiting*o.limit(), 0):]
}

func (o *outbox) limit() int { return cmp.Or(o.most, maxWaiting) }

// add adds a notice. If there are too many then, it removes the oldest and returns them.
func (o *outbox) add(n Notice) (givenUp []Notice) {
	o.note(n.Event, n.What)
	o.waiting, o.bytes = append(o.waiting, n), o.bytes+len(n.Text)
	for len(o.waiting) > o.limit() || o.bytes > maxWaitingBytes {
		givenUp = append(givenUp, o.waiting[0])
		o.remove(o.waiting[0].ID)
	}
	return givenUp
}

// remove removes a notice that has been delivered or given up.
func (o *outbox) remove(id string) {
	if i := slices.IndexFunc(o.waiting, func(n Notice) bool { return n.ID == id }); i >= 0 {
		o.bytes -= len(o.waiting[i].Text)
		o.waiting = slices.Delete(o.waiting, i, i+1)
	}
}

// room is how many more notices fit, however long they are, before another one has to be given up.
func (o *outbox) room() int {
	return min(o.limit()-len(o.waiting), (maxWaitingBytes-o.bytes)/maxTextSize)
}
