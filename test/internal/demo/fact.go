package demo

import (
	"strings"
	"time"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
)

// A kind says what a fact is about.
type kind int

const (
	// announced and read are EC2's: the notice is there, and nth's poll was answered with it.
	announced kind = iota
	read
	// cordoned, terminating and gone are what the API server says has happened.
	cordoned
	terminating
	gone
	// held and said are from nth's journal: a budget refused a pod's eviction; anything else worth reading.
	held
	said
)

// A fact is one thing that happened, as one of the three witnesses tells it: the metadata service, the API server and
// nth's journal.
type fact struct {
	at   time.Time
	kind kind
	pod  string // name, where one is concerned
	text string // the budget's name of a held pod, and the words of announced, read and said
}

// factOf turns what the lab observed into a fact. An uncordon would be a surprise, and is told as one.
func factOf(m lab.Moment) fact {
	f := fact{at: m.At, pod: m.Pod}
	switch m.What {
	case lab.Cordoned:
		f.kind = cordoned
	case lab.PodTerminating:
		f.kind = terminating
	case lab.PodGone:
		f.kind = gone
	case lab.Excluded:
		f.kind, f.text = said, "the node was labelled, for load balancers to leave it out"
	case lab.Uncordoned:
		f.kind, f.text = said, "the node was uncordoned"
	}
	return f
}

// factFrom turns a message of nth's journal into a fact, if it tells something that the API server doesn't.
func factFrom(e daemon.Entry) (fact, bool) {
	_, pod, _ := strings.Cut(e.Fields[systemd.FieldPod], "/")
	f := fact{at: e.Time, kind: said, pod: pod, text: e.Message}
	switch e.Fields[systemd.FieldMessageID] {
	case systemd.PodHeld:
		if budget, ok := budgetIn(e.Message); ok {
			f.kind, f.text = held, budget
		}
		return f, true
	case systemd.Cordoned, systemd.PodEvicted, systemd.PodGone, systemd.EventSeen:
		return fact{}, false
	case systemd.DrainStarted, systemd.PodDeleted, systemd.Drained, systemd.DrainIncomplete, systemd.CordonForeign:
		return f, true
	}
	return f, e.Level == "error" || e.Level == "warning"
}

// budgetIn finds the budget's name in nth's "disruption budget NAME blocks the eviction of POD; retrying".
func budgetIn(message string) (string, bool) {
	rest, found := strings.CutPrefix(message, "disruption budget ")
	name, _, holds := strings.Cut(rest, " blocks the eviction of ")
	return name, found && holds
}
