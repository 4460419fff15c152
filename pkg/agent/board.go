package agent

import (
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/record"
)

// Board shows how the daemon stands. Show must not block, and must not change what the status refers to.
type Board interface {
	Show(record.Status)
}

// The board is for people who look now and then: what has changed is shown at most once in a tick, and what has not,
// which are the times of the last looks, so often that a board which is much older belongs to a daemon that hangs.
const refresh = 10 * time.Second

// shown is what the board shows.
type shown struct {
	at     time.Time // with its monotonic reading
	status record.Status
}

// show brings the board up to date, if it is time to. The loop comes by in every tick.
func (a *Agent) show(sentence string) {
	if a.cfg.Board == nil || time.Since(a.shown.at) < tick {
		return
	}
	status := a.standing(sentence)
	if time.Since(a.shown.at) < refresh && alikeStatus(status, a.shown.status) {
		return
	}
	a.post(status)
}

// showStopped leaves word that the daemon has stopped as it was asked to.
func (a *Agent) showStopped() {
	if a.cfg.Board == nil {
		return
	}
	status := a.standing(a.whole())
	status.Stopped = a.now()
	a.post(status)
}

// post puts a status on the board.
func (a *Agent) post(status record.Status) {
	a.shown.at, a.shown.status = time.Now(), status
	a.cfg.Board.Show(status)
}

// alikeStatus tells whether two statuses differ in nothing but times that go on by themselves.
func alikeStatus(x, y record.Status) bool {
	timeless := func(s record.Status) record.Status {
		s.Updated = time.Time{}
		s.Documents = slices.Clone(s.Documents)
		for i := range s.Documents {
			s.Documents[i].LastGood = time.Time{}
		}
		return s
	}
	return reflect.DeepEqual(timeless(x), timeless(y))
}

// standing is the status as far as the agent knows it. It shares nothing with the agent.
func (a *Agent) standing(sentence string) record.Status {
	status := record.Status{
		Version: record.StatusVersion, Started: a.began.Round(0), Updated: a.now(),
		DryRun: a.cfg.DryRun, Node: a.node, Sentence: sentence,
		Step: a.stepStatus(), Events: []record.EventStatus{}, Documents: a.documents(), Off: []record.OffStatus{},
	}
	if a.waiting != nil {
		status.Identity.Trouble = a.waiting.Error()
	}
	for _, e := range a.cfg.Record.Entries() {
		if e.Phase == record.Closed {
			continue
		}
		status.Events = append(status.Events, record.EventStatus{
			ID: e.Event.ID, Kind: e.Event.Kind, Code: e.Event.Code, Phase: e.Phase, FirstSeen: e.FirstSeen,
			Deadline: e.Event.Deadline, Missing: e.Missing, Plan: a.rules().Describe(e), Error: e.Error, Failures: e.Failures,
		})
	}
	return status
}

func (a *Agent) stepStatus() *record.StepStatus {
	f := a.flight
	if f == nil {
		return nil
	}
	return &record.StepStatus{
		Action: string(f.step.Action), Event: f.step.Event.ID, Kind: f.step.Event.Kind, Reason: f.step.Reason,
		Began: f.began.Round(0), Deadline: f.step.Deadline, Hard: f.step.Hard,
		PodsTotal: a.total, PodsLeft: a.left, HeldBy: maps.Clone(a.held),
	}
}

// documents tells of the kinds that are looked for from time to time. A shutdown is not: it is announced.
func (a *Agent) documents() []record.DocumentStatus {
	all := []record.DocumentStatus{}
	for _, kind := range event.Kinds() {
		good, looked := a.looked[kind]
		trouble, bad := a.trouble[kind]
		if kind == event.Shutdown || !looked && !bad {
			continue
		}
		document := record.DocumentStatus{Kind: kind, LastGood: good}
		if bad && trouble.over.IsZero() {
			document.Trouble, document.Since = trouble.err, trouble.since.Round(0)
		}
		all = append(all, document)
	}
	return all
}
