// Package notify reports what happens to a node: in the cluster, and to a webhook.
//
// It has two kinds of agent.Listener. A KubernetesNode writes Events and keeps the Node's condition InterruptionPending with its heartbeat. A
// WebhookNode posts notices to an endpoint. Each state.Transition passes through two stages:
//
//   - The builder (build.go) makes a notice of the transition: what has happened, and the text.
//   - A queue (deliver.go) holds a bounded number of messages in memory, and tries each until it is delivered, too old or refused. When nth
//     stops, the queue tries each message once more. A message is one thing to write or post: a notice, or an update of the condition.
//
// OnTransition only puts messages into a queue, which delivers them in goroutines of its own. So nothing here can delay or fail a drain. Each
// message knows its destination. Messages for the webhook are made in webhook.go, with fields (fields.go), a template (template.go) and an
// endpoint (endpoint.go). Messages for the cluster are made in kubernetes.go and condition.go. Start with build.go.
package notify

import "github.com/nth-project/nth/pkg/event"

// The severities of notices.
const (
	// Info: operators need not do anything.
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
	// Over: the event is over, and nothing that nth did for it is left on the node.
	Over Phase = "over"
)

// The outcomes of notices. All below are in the phase Ended, except Moved, which is in the phase Over. The other outcomes in the phase Over
// are those of state.Endings. The phase Announced has one outcome, of the same name.
const (
	// Cordoned and Drained: the step that the rule asks for is done.
	Cordoned = "cordoned"
	Drained  = "drained"
	// Incomplete: the deadline came before the step was done.
	Incomplete = "incomplete"
	// Failed: the step has failed, and nth tries again.
	Failed = "failed"
	// LeftAlone: the node has opted out of the step that the rule asks for.
	LeftAlone = string(event.LeftAlone)
	// Moved: the event was put off, and nth does nothing for the event until its new time.
	Moved = "moved"
)

// classes has the phase and the severity of the outcomes. Those of state.Endings are Over and Info.
var classes = map[string]struct {
	phase    Phase
	severity string
}{
	string(Announced): {Announced, Info},
	Cordoned:          {Ended, OK},
	Drained:           {Ended, OK}, // Warning, if pods were deleted.
	Incomplete:        {Ended, Critical},
	Failed:            {Ended, Critical},
	LeftAlone:         {Ended, Info},
	Moved:             {Over, Info},
}
