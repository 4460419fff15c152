package event

import "slices"

// KindInfo is what is known of a Kind. Manual is in no list of kinds but AllKinds: nothing announces it, and it has no settings.
type KindInfo struct {
	Kind Kind
	// Machine: nth can learn of such events on the machine. Metadata: nth polls the metadata service for them. Queue: nth-queue can learn of
	// them.
	Machine, Metadata, Queue bool
	// Reason is the reason of the Node's condition, and EventReason that of the Kubernetes Event that announces it.
	Reason, EventReason string
	// Says is what an event of this kind announces: see Event.Summary. The event's code replaces the braces with the text in them. That text
	// is for events without a code.
	Says string
	// Handler has aws-node-termination-handler's names for the kind.
	Handler HandlerNames
}

// HandlerNames are aws-node-termination-handler's names for a kind of events (its pkg/monitor, pkg/node, v1.25.6). A kind that
// aws-node-termination-handler does not know has the names of the nearest one. A shutdown or hibernation is a stopped instance. A failing
// status check is a scheduled event, which such an instance gets in the end.
type HandlerNames struct {
	// Event is the kind in the notices of its webhook. Taint is the key of its taint; empty if it sets none.
	Event, Taint string
}

// kinds is the one table of kinds, in the order of their precedence.
var kinds = []KindInfo{
	{
		Kind: SpotInterruption, Machine: true, Metadata: true, Queue: true,
		Reason: "SpotInterruption", EventReason: "SpotInterruption",
		Says:    "EC2 will {interrupt} this spot instance",
		Handler: HandlerNames{"SPOT_ITN", "aws-node-termination-handler/spot-itn"},
	},
	{
		Kind: RebalanceRecommendation, Machine: true, Metadata: true, Queue: true,
		Reason: "RebalanceRecommendation", EventReason: "RebalanceRecommendation",
		Says:    "EC2 recommends rebalancing: this spot instance is at elevated risk of interruption",
		Handler: HandlerNames{"REBALANCE_RECOMMENDATION", "aws-node-termination-handler/rebalance-recommendation"},
	},
	{
		Kind: ScheduledMaintenance, Machine: true, Metadata: true, Queue: true,
		Reason: "ScheduledMaintenance", EventReason: "ScheduledEvent",
		Says:    "EC2 has scheduled {maintenance}",
		Handler: HandlerNames{"SCHEDULED_EVENT", "aws-node-termination-handler/scheduled-maintenance"},
	},
	{
		Kind: ASGTermination, Machine: true, Metadata: true, Queue: true,
		Reason: "ASGTermination", EventReason: "ASGLifecycle",
		Says:    "the Auto Scaling group takes this instance out of service (target state {Terminated})",
		Handler: HandlerNames{"ASG_LIFECYCLE", "aws-node-termination-handler/asg-lifecycle-termination"},
	},
	{
		Kind: Shutdown, Machine: true, Reason: "Shutdown", EventReason: "Shutdown",
		Says: "the system is shutting down", Handler: HandlerNames{Event: "STATE_CHANGE"},
	},
	{
		Kind: Hibernation, Machine: true, Reason: "Hibernation", EventReason: "Hibernation",
		Says: "the system is going to sleep", Handler: HandlerNames{Event: "STATE_CHANGE"},
	},
	{
		Kind: ReservationEnd, Queue: true, Reason: "ReservationEnd", EventReason: "ReservationEnd",
		Says: "the {capacity} reservation of this instance ends", Handler: HandlerNames{Event: "SCHEDULED_EVENT"},
	},
	{
		Kind: StateChange, Queue: true, Reason: "StateChange", EventReason: "StateChange",
		Says: "EC2 says that the instance is {stopping}", Handler: HandlerNames{Event: "STATE_CHANGE"},
	},
	{
		Kind: StatusCheck, Queue: true, Reason: "StatusCheckFailed", EventReason: "StatusCheckFailed",
		Says: "EC2's {own} status check of this instance fails", Handler: HandlerNames{Event: "SCHEDULED_EVENT"},
	},
	{
		Kind: Manual, Reason: "ManualDrain", EventReason: "ManualDrain",
		Says: `an operator has run "nth drain"`, Handler: HandlerNames{Event: "STATE_CHANGE"},
	},
}

// Info returns what is known of a kind. An unknown kind, such as one in the record of a later version, has the reason "Other" and nothing
// else.
func (k Kind) Info() KindInfo {
	if i := k.Precedence(); i >= 0 { // The precedence is the index in the table.
		return kinds[i]
	}
	return KindInfo{Kind: k, Reason: "Other"}
}

// Precedence is a kind's rank: 0 for the kind that comes before all others, -1 for an unknown kind.
func (k Kind) Precedence() int {
	return slices.IndexFunc(kinds, func(info KindInfo) bool { return info.Kind == k })
}

// Kinds lists the kinds that nth can learn of on the machine. Like the lists below, this one is sorted by precedence, as are pages and output.
func Kinds() []Kind { return list(func(info KindInfo) bool { return info.Machine }) }

// PolledKinds lists the kinds that the metadata service announces.
func PolledKinds() []Kind { return list(func(info KindInfo) bool { return info.Metadata }) }

// QueuedKinds lists the kinds that nth-queue can learn of, from its queue or by asking EC2.
func QueuedKinds() []Kind { return list(func(info KindInfo) bool { return info.Queue }) }

// AllKinds lists all kinds.
func AllKinds() []Kind { return list(func(KindInfo) bool { return true }) }

// list lists the kinds that are wanted, by precedence.
func list(wanted func(KindInfo) bool) []Kind {
	var all []Kind
	for _, info := range kinds {
		if wanted(info) {
			all = append(all, info.Kind)
		}
	}
	return all
}

// Local reports whether the machine itself announces events of this kind, just before it goes down or to sleep. EC2 or an operator announces
// all other events, which nth has to look for.
func (k Kind) Local() bool { return k == Shutdown || k == Hibernation }
