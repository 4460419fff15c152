package notify

import (
	"strings"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/record"
)

// Fields is what a template of the webhook can use. What is not known is empty. Texts hold no quotation marks,
// backslashes or line breaks, so that they can stand between the quotation marks of JSON as they are.
//
// docs/notices.md describes each field.
type Fields struct {
	// What is told, and of which node.
	NoticeID string
	Phase    Phase
	Outcome  string
	Text     string
	Test     bool
	DryRun   bool
	Made     time.Time
	Node     string

	// The event.
	EventKind   event.Kind
	Code        string
	FirstSeen   time.Time
	Deadline    time.Time
	SecondsLeft int

	// What is done about it.
	Plan    string
	Action  string
	Reason  string
	Took    float64
	Evicted int
	Deleted int
	Skipped int
	Left    []string
	HeldBy  map[string]string
	Error   string

	// The fields below have the names and the meaning that aws-node-termination-handler gives them.
	EventID              string
	Kind                 string
	Monitor              string
	Description          string
	State                string
	AutoScalingGroupName string
	NodeName             string
	NodeLabels           map[string]string
	Pods                 []string
	InstanceID           string
	ProviderID           string
	InstanceType         string
	IsManaged            bool
	StartTime            time.Time
	EndTime              time.Time
	TimeUntilEvent       time.Duration
	NodeProcessed        bool
	InProgress           bool
	AccountId            string //nolint:revive,staticcheck // It is spelt so in templates that exist.
	InstanceLifeCycle    string
	PublicHostname       string
	PublicIP             string
	LocalHostname        string
	LocalIP              string
	AvailabilityZone     string
	Region               string
}

// Machine is what is known of the machine. What is not known is empty.
type Machine struct {
	ID, Type, LifeCycle, Account, Region, Zone string
	LocalIP, LocalName, PublicIP, PublicName   string
}

func (m Machine) into(f *Fields) {
	f.InstanceID, f.InstanceType, f.InstanceLifeCycle = m.ID, m.Type, m.LifeCycle
	f.AccountId, f.Region, f.AvailabilityZone = m.Account, m.Region, m.Zone
	f.PublicHostname, f.PublicIP, f.LocalHostname, f.LocalIP = m.PublicName, m.PublicIP, m.LocalName, m.LocalIP
	if m.ID != "" && m.Zone != "" {
		f.ProviderID = "aws:///" + m.Zone + "/" + m.ID
	}
}

// theirKinds are the words that aws-node-termination-handler has for kinds of events. What it does not
// know has the word of what comes nearest: a shutdown and a hibernation that of the instance being stopped, and a status check that
// fails that of what EC2 has scheduled, as it does in the end for such an instance.
var theirKinds = map[event.Kind]string{
	event.SpotInterruption:        "SPOT_ITN",
	event.RebalanceRecommendation: "REBALANCE_RECOMMENDATION",
	event.ScheduledMaintenance:    "SCHEDULED_EVENT",
	event.ASGTermination:          "ASG_LIFECYCLE",
	event.Shutdown:                "STATE_CHANGE",
	event.Hibernation:             "STATE_CHANGE",
	event.ReservationEnd:          "SCHEDULED_EVENT",
	event.StateChange:             "STATE_CHANGE",
	event.StatusCheck:             "SCHEDULED_EVENT",
}

// theirStates are its words, and EC2's, for how far an event has come.
var theirStates = map[event.State]string{
	event.Pending: "active", event.Canceled: "canceled", event.Completed: "completed",
}

// announcements say in words what is announced, where the source has no words of its own.
var announcements = map[event.Kind]string{
	event.SpotInterruption:        "EC2 is going to take the spot instance back",
	event.RebalanceRecommendation: "the spot instance runs an elevated risk of interruption",
	event.ScheduledMaintenance:    "EC2 has planned maintenance",
	event.ASGTermination:          "the Auto Scaling group is going to terminate the instance",
	event.Shutdown:                "the operating system is going down",
	event.Hibernation:             "the operating system is going to sleep",
	event.ReservationEnd:          "the capacity reservation that the instance runs in ends",
	event.StateChange:             "the instance is being stopped or terminated",
	event.StatusCheck:             "a status check of EC2's fails for the instance",
}

// fieldsOf fills in all but the machine.
func fieldsOf(h record.Happening, phase Phase, outcome string, pods []string, dryRun bool) Fields {
	e := h.Entry
	f := Fields{
		NoticeID: noticeID(e, outcome, h.At), Phase: phase, Outcome: outcome, DryRun: dryRun, Made: h.At, Node: h.Node,
		EventKind: e.Event.Kind, Code: e.Event.Code, FirstSeen: e.FirstSeen, Deadline: deadlineOf(h),
		Plan: h.Plan, Action: h.Action, Reason: h.Reason, Took: h.Took.Seconds(), Error: e.Error,
		Left: []string{}, HeldBy: map[string]string{},
	}
	if !f.Deadline.IsZero() {
		f.SecondsLeft = max(0, int(f.Deadline.Sub(h.At).Seconds()))
	}
	if h.Err != nil {
		f.Error = h.Err.Error()
	}
	if r := e.Result; r != nil {
		f.Evicted, f.Deleted, f.Skipped = r.Evicted, r.Deleted, r.Skipped
		f.Left = append(f.Left, r.Left...)
		if r.HeldBy != nil {
			f.HeldBy = r.HeldBy
		}
	}
	f.Text = webhookText(f)
	theirFields(&f, e, pods)
	f.clean()
	return f
}

// deadlineOf is the event's, or else that of the step.
func deadlineOf(h record.Happening) time.Time {
	if d := h.Entry.Event.Deadline; !d.IsZero() {
		return d
	}
	return h.Deadline
}

// theirFields fills in what aws-node-termination-handler would, as far as it is about the event.
func theirFields(f *Fields, e record.Entry, pods []string) {
	ev := e.Event
	f.EventID, f.Kind, f.NodeName = ev.ID, theirKinds[ev.Kind], f.Node
	f.Monitor = f.Kind + "_MONITOR"
	f.State = theirStates[ev.State]
	f.Description = ev.Description
	if f.Description == "" {
		f.Description = announcements[ev.Kind]
	}
	f.NodeLabels, f.Pods = map[string]string{}, append([]string{}, pods...)
	f.StartTime, f.EndTime = ev.Deadline, ev.Until
	if f.StartTime.IsZero() {
		f.StartTime = ev.Noticed
	}
	if f.StartTime.IsZero() {
		f.StartTime = e.FirstSeen
	}
	if f.EndTime.IsZero() && ev.Kind == event.ScheduledMaintenance {
		f.EndTime = ev.Deadline
	}
	f.TimeUntilEvent = f.StartTime.Sub(f.Made)
	f.NodeProcessed = f.Outcome == Drained || f.Outcome == Cordoned
	f.InProgress = f.Phase == Announced
}

// clean takes out of texts that come from elsewhere what would end a string of JSON.
func (f *Fields) clean() {
	for _, text := range []*string{
		&f.Text, &f.Node, &f.Code, &f.Plan, &f.Reason, &f.Error, &f.EventID, &f.Description, &f.NodeName,
	} {
		*text = harmless(*text)
	}
}

func harmless(text string) string {
	return strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		switch {
		case r == '"':
			return '\''
		case r == '\\':
			return '/'
		case r < ' ' || r == 0x7f:
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))), " ")
}
