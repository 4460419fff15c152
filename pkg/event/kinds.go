package event

import "slices"

// KindInfo is what a Kind is called, and where it is heard of.
type KindInfo struct {
	Kind Kind
	// Machine, Metadata and Queue tell who hears of it: a machine by itself, its metadata service among that, and whoever reads a queue.
	Machine, Metadata, Queue bool
	// Reason is the reason of the Node's condition, and EventReason that of the Event that announces it.
	Reason, EventReason string
	// Description says what is announced, where the source does not say it.
	Description string
	// Handler is what aws-node-termination-handler calls it.
	Handler HandlerNames
}

// HandlerNames are aws-node-termination-handler's names for a kind of events (its pkg/monitor, pkg/node, v1.25.6). A kind that it does
// not know has the name of the nearest one: a shutdown and a hibernation that of a stopped instance, and a failing status check that of
// a scheduled event, which such an instance gets in the end.
type HandlerNames struct {
	// Event is the kind in its webhook, Monitor its poller and Taint the key of its taint; the last two are empty where it has none.
	Event, Monitor, Taint string
}

// kinds is the one table of kinds, the one that goes before others first.
var kinds = []KindInfo{
	{
		Kind: SpotInterruption, Machine: true, Metadata: true, Queue: true,
		Reason: "SpotInterruption", EventReason: "SpotInterruption",
		Description: "EC2 is going to take the spot instance back",
		Handler:     HandlerNames{"SPOT_ITN", "SPOT_ITN_MONITOR", "aws-node-termination-handler/spot-itn"},
	},
	{
		Kind: RebalanceRecommendation, Machine: true, Metadata: true, Queue: true,
		Reason: "RebalanceRecommendation", EventReason: "RebalanceRecommendation",
		Description: "the spot instance runs an elevated risk of interruption",
		Handler: HandlerNames{
			"REBALANCE_RECOMMENDATION", "REBALANCE_RECOMMENDATION_MONITOR", "aws-node-termination-handler/rebalance-recommendation",
		},
	},
	{
		Kind: ScheduledMaintenance, Machine: true, Metadata: true, Queue: true,
		Reason: "ScheduledMaintenance", EventReason: "ScheduledEvent",
		Description: "EC2 has planned maintenance",
		Handler:     HandlerNames{"SCHEDULED_EVENT", "SCHEDULED_EVENT_MONITOR", "aws-node-termination-handler/scheduled-maintenance"},
	},
	{
		Kind: ASGTermination, Machine: true, Metadata: true, Queue: true,
		Reason: "ASGTermination", EventReason: "ASGLifecycle",
		Description: "the Auto Scaling group is going to terminate the instance",
		Handler:     HandlerNames{"ASG_LIFECYCLE", "ASG_LIFECYCLE_MONITOR", "aws-node-termination-handler/asg-lifecycle-termination"},
	},
	{
		Kind: Shutdown, Machine: true, Reason: "Shutdown", EventReason: "Shutdown",
		Description: "the operating system is going down", Handler: HandlerNames{Event: "STATE_CHANGE"},
	},
	{
		Kind: Hibernation, Machine: true, Reason: "Hibernation", EventReason: "Hibernation",
		Description: "the operating system is going to sleep", Handler: HandlerNames{Event: "STATE_CHANGE"},
	},
	{
		Kind: ReservationEnd, Machine: true, Queue: true, Reason: "ReservationEnd", EventReason: "ReservationEnd",
		Description: "the capacity reservation that the instance runs in ends", Handler: HandlerNames{Event: "SCHEDULED_EVENT"},
	},
	{
		Kind: StateChange, Queue: true, Reason: "StateChange", EventReason: "StateChange",
		Description: "the instance is being stopped or terminated", Handler: HandlerNames{Event: "STATE_CHANGE"},
	},
	{
		Kind: StatusCheck, Queue: true, Reason: "StatusCheckFailed", EventReason: "StatusCheckFailed",
		Description: "a status check of EC2's fails for the instance", Handler: HandlerNames{Event: "SCHEDULED_EVENT"},
	},
}

// Info returns what is known of a kind: for one that nobody knows, such as one in the record of a later version, the reason is "Other".
func (k Kind) Info() KindInfo {
	if i := k.Precedence(); i >= 0 {
		return kinds[i]
	}
	return KindInfo{Kind: k, Reason: "Other"}
}

// Precedence orders the kinds: the least goes before the others. It is -1 for a kind that nobody knows.
func (k Kind) Precedence() int {
	return slices.IndexFunc(kinds, func(info KindInfo) bool { return info.Kind == k })
}

// Kinds lists the kinds that a machine hears of by itself, in the order in which documentation and output name them.
func Kinds() []Kind { return listed(func(info KindInfo) bool { return info.Machine }) }

// PolledKinds lists those of them that the metadata service tells of, in the same order.
func PolledKinds() []Kind { return listed(func(info KindInfo) bool { return info.Metadata }) }

// QueuedKinds lists the kinds that whoever reads a queue hears of, there or by asking EC2, in the same order.
func QueuedKinds() []Kind { return listed(func(info KindInfo) bool { return info.Queue }) }

// AllKinds lists every kind there is, the one that goes before others first.
func AllKinds() []Kind { return listed(func(KindInfo) bool { return true }) }

func listed(wanted func(KindInfo) bool) []Kind {
	var all []Kind
	for _, info := range kinds {
		if wanted(info) {
			all = append(all, info.Kind)
		}
	}
	return all
}

// Local tells whether the machine itself announces events of this kind when it comes to that, and goes down or to sleep
// then. All others are announced by EC2, and looked for.
func (k Kind) Local() bool { return k == Shutdown || k == Hibernation }
