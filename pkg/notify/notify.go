// Package notify reports what happens to a node: in the cluster, and to a webhook.
//
// It has two kinds of agent.Listener, each for destinations of its own: a KubernetesNode writes Events and keeps the Node's condition
// InterruptionPending with its heartbeat, and a WebhookNode posts notices to an endpoint. A state.Transition passes through two stages:
//
//   - build (build.go) makes notices of it: what has happened, how grave that is, and the text.
//   - deliver (deliver.go) holds a bounded number of messages in memory, and tries each until it is delivered, too old or refused. When nth
//     stops, each is tried once more.
//
// OnTransition only puts messages into the queue of the last stage, which delivers them in goroutines of its own. So nothing here can
// delay or fail a drain. Each message knows its destination: a webhook's is in webhook.go, with its fields (fields.go), its template
// (template.go) and its endpoint (destination.go); those for the cluster are in kubernetes.go and condition.go. Start with build.go.
package notify

import (
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
)

// The severities of notices.
const (
	// Info: nothing has to be done about it.
	Info = "info"
	// OK: the node is cordoned or drained as the rules ask.
	OK = "ok"
	// Warning: the node is drained, and pods were deleted that could not be evicted.
	Warning = "warning"
	// Critical: pods are left, or the work has failed.
	Critical = "critical"
)

// Phase is the stage of an event at which a notice is made.
type Phase string

// The phases of a notice.
const (
	// Announced: the event is new.
	Announced Phase = "announced"
	// Ended: the work on the node is done, or its time is over, or it has failed.
	Ended Phase = "ended"
	// Over: the event no longer stands, and nothing of it is left on the node.
	Over Phase = "over"
)

// The outcomes of notices. Those below are in the phase Ended, but for Moved, which is in the phase Over. The other outcomes in the phase
// Over are the endings of an entry of the record. The phase Announced has one outcome, of the same name.
const (
	Cordoned   = "cordoned"
	Drained    = "drained"
	Incomplete = "incomplete"
	Failed     = "failed"
	// LeftAlone: the node has opted out, so it is not drained or, if no more was asked for, not cordoned.
	LeftAlone = string(event.LeftAlone)
	// Moved: the event was put off, and nothing is done for it until then.
	Moved = "moved"
)

// Outcomes lists all outcomes, by their phases.
func Outcomes() []string {
	outcomes := []string{string(Announced), Cordoned, Drained, Incomplete, Failed, LeftAlone, Moved}
	for _, ending := range state.Endings() {
		outcomes = append(outcomes, string(ending))
	}
	return outcomes
}

// phaseOf returns the phase in which a notice with that outcome is made.
func phaseOf(outcome string) Phase {
	switch outcome {
	case string(Announced):
		return Announced
	case Cordoned, Drained, Incomplete, Failed, LeftAlone:
		return Ended
	}
	return Over
}

// cordonTime is how long nothing is sent about an event that is acted upon, so that the cordon comes first.
const cordonTime = time.Second

// beforeCordon returns how long a report about a transition is held back: cordonTime if the node is about to be cordoned.
func beforeCordon(t state.Transition) time.Duration {
	begins := t.Kind == state.Announced || t.Kind == state.Changed || t.Kind == state.Begun
	if begins && (t.Entry.Phase == state.Cordoning || t.Entry.Phase == state.Draining) {
		return cordonTime
	}
	return 0
}
