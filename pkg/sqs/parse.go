package sqs

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/nth-project/nth/pkg/event"
)

// Notice is what a message says of one instance.
type Notice struct {
	About Subject
	// Instance is the EC2 instance's ID. It is empty if the message names only a Reservation.
	Instance string
	// Reservation is the ID of a capacity reservation, of which all instances are meant.
	Reservation string
	// Event is what an Interruption announces. If the message does not say when it was noticed, it is when the message was
	// put into the queue.
	Event event.Event
	// Hook is the lifecycle hook at which Auto Scaling waits for an answer; nil if it does not.
	Hook *Hook
	// Stopped is set if EC2 says that the instance is not running any more.
	Stopped bool
}

// Subject is what a notice is about.
type Subject string

// The subjects of notices.
const (
	// Interruption: the instance is going to be taken away, or is already.
	Interruption Subject = "interruption"
	// Launch: the instance is new, and its group waits at a hook before it counts as in service.
	Launch Subject = "launch"
	// Running: the instance has been started.
	Running Subject = "running"
)

// Hook names one action of a lifecycle hook.
type Hook struct {
	Group, Name, Token string
	// Launch is set if it waits before the instance goes into service, and Back if the instance returns to a warm pool and
	// is not terminated.
	Launch, Back bool
}

// NotOursError is a message that nobody here needs, so that it may be deleted.
type NotOursError struct{ Why string }

// Error implements error.
func (e NotOursError) Error() string { return e.Why }

// PoisonError is a message that cannot be understood: whoever fills the queue should know, and it is left for the
// dead-letter queue.
type PoisonError struct{ Why string }

// Error implements error.
func (e PoisonError) Error() string { return e.Why }

func notOurs(format string, args ...any) error { return NotOursError{fmt.Sprintf(format, args...)} }
func poison(format string, args ...any) error  { return PoisonError{fmt.Sprintf(format, args...)} }

// envelope has the fields of all three envelopes: EventBridge's, Auto Scaling's own, and SNS's, which contains another one.
type envelope struct {
	Source     string          `json:"source"`
	DetailType string          `json:"detail-type"`
	ID         string          `json:"id"`
	Time       string          `json:"time"`
	Detail     json.RawMessage `json:"detail"`

	lifecycleAction
	Event     string `json:"Event"`
	RequestID string `json:"RequestId"`

	Type     string `json:"Type"`
	TopicARN string `json:"TopicArn"`
	Message  string `json:"Message"`
}

// Parse reads a message's body. The error is a NotOursError or a PoisonError; without one there is at least one notice.
func Parse(body string) ([]Notice, error) {
	e, err := parseEnvelope(body)
	if err != nil {
		return nil, err
	}
	if e.TopicARN != "" {
		if e.Type != "" && e.Type != "Notification" {
			return nil, notOurs("SNS writes of its subscription (%s)", e.Type)
		}
		if e, err = parseEnvelope(e.Message); err != nil {
			return nil, err
		}
	}
	if e.DetailType == "" && e.Source == "" {
		return e.parseAutoScaling()
	}
	return e.parseEventBridge()
}

func parseEnvelope(body string) (envelope, error) {
	var e envelope
	if err := json.Unmarshal([]byte(body), &e); err != nil {
		return envelope{}, poison("it is not a JSON object of the expected form: %v", err)
	}
	return e, nil
}

// ec2Events has the parser of each event of EC2 by its source and whole detail type: EC2 has many with similar names.
var ec2Events = map[string]func(envelope, ec2Detail) (Notice, error){
	"aws.ec2/EC2 Spot Instance Interruption Warning":                               envelope.spot,
	"aws.ec2/EC2 Instance Rebalance Recommendation":                                envelope.rebalance,
	"aws.ec2/EC2 Instance State-change Notification":                               envelope.stateChange,
	"aws.ec2/Capacity Block Reservation Expiration Warning":                        envelope.capacityBlock,
	"aws.ec2/Capacity Block Expiration Warning":                                    envelope.capacityBlock,
	"aws.ec2/EC2 Capacity Reservation Instance Interruption Warning":               envelope.interruptible,
	"aws.ec2/EC2 Interruptible Capacity Reservation Instance Interruption Warning": envelope.interruptible,
}

func (e envelope) parseEventBridge() ([]Notice, error) {
	kind := e.Source + "/" + e.DetailType
	if parse := ec2Events[kind]; parse != nil {
		var d ec2Detail
		if err := e.detail(&d); err != nil {
			return nil, err
		}
		n, err := parse(e, d)
		if err != nil {
			return nil, err
		}
		return []Notice{n}, nil
	}
	switch kind {
	case "aws.health/AWS Health Event":
		return e.health()
	case "aws.autoscaling/EC2 Instance-terminate Lifecycle Action", "aws.autoscaling/EC2 Instance-launch Lifecycle Action":
		var action lifecycleAction
		if err := e.detail(&action); err != nil {
			return nil, err
		}
		return action.notices(e.time())
	}
	return nil, notOurs("it is an event %q of %q", e.DetailType, e.Source)
}

// detail decodes the part that depends on the detail type.
func (e envelope) detail(into any) error {
	if err := json.Unmarshal(e.Detail, into); err != nil {
		return poison("the detail of the event %q cannot be read: %v", e.DetailType, err)
	}
	return nil
}

// time is when the event happened; zero if the envelope does not say.
func (e envelope) time() time.Time { return parseTime(e.Time) }

// parseTime parses a time as EventBridge and Auto Scaling write it; zero if it is invalid or not credible.
func parseTime(text string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}
	}
	return event.CredibleTime(t)
}

var instanceID = regexp.MustCompile(`^i-[0-9a-f]{8,32}$`)

// interruption returns a notice about one instance; identity distinguishes the event from others.
func (e envelope) interruption(instance string, kind event.Kind, identity ...string) (Notice, error) {
	if !instanceID.MatchString(instance) {
		return Notice{}, poison("the event %q is of no instance: %q", e.DetailType, instance)
	}
	return Notice{
		About: Interruption, Instance: instance,
		Event: event.Event{ID: contentID(kind, append(identity, instance)...), Kind: kind, State: event.Pending, Noticed: e.time()},
	}, nil
}

// contentID is an event's ID, derived from what distinguishes it.
func contentID(kind event.Kind, identity ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(identity, "\n")))
	return string(kind) + "-" + hex.EncodeToString(sum[:8])
}

// spotNotice is how long EC2 leaves a spot instance after its warning; the message does not say.
const spotNotice = 2 * time.Minute

// reclaim is how long before the end of a Capacity Block EC2 begins to terminate its instances, and reclaimUltra the same for
// UltraServers. The message does not say which they are, but it is sent ten minutes before that begins:
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-blocks.html.
const reclaim, reclaimUltra = 30 * time.Minute, time.Hour

// ec2Detail has the fields of all of EC2's events.
type ec2Detail struct {
	Instance        string `json:"instance-id"`
	Action          string `json:"instance-action"`
	State           string `json:"state"`
	TerminationTime string `json:"instance-termination-time"`
	Reservation     string `json:"capacity-reservation-id"`
	EndDate         string `json:"end-date"`
}

func (e envelope) spot(d ec2Detail) (Notice, error) {
	n, err := e.interruption(d.Instance, event.SpotInterruption, e.ID, e.Time)
	n.Event.Code = d.Action
	if at := e.time(); !at.IsZero() {
		n.Event.Deadline = at.Add(spotNotice)
	}
	return n, err
}

func (e envelope) rebalance(d ec2Detail) (Notice, error) {
	return e.interruption(d.Instance, event.RebalanceRecommendation, e.ID, e.Time)
}

// stateChange parses a new state of an instance: "pending" concerns nobody, "running" ends an interruption, and the others
// are one.
func (e envelope) stateChange(d ec2Detail) (Notice, error) {
	n, err := e.interruption(d.Instance, event.StateChange, e.ID, e.Time)
	if err != nil {
		return Notice{}, err
	}
	n.Event.Code = d.State
	switch d.State {
	case "stopping", "shutting-down":
	case "stopped", "terminated":
		n.Stopped = true
	case "running":
		n.About = Running
	case "pending":
		return Notice{}, notOurs("the instance %s is only being started", d.Instance)
	default:
		return Notice{}, poison("the instance %s is in an unknown state: %q", d.Instance, d.State)
	}
	return n, nil
}

// capacityBlock parses that a Capacity Block ends soon. The event names the block, not its instances.
func (e envelope) capacityBlock(d ec2Detail) (Notice, error) {
	if d.Reservation == "" {
		return Notice{}, poison("the event %q is of no capacity reservation", e.DetailType)
	}
	n := Notice{About: Interruption, Reservation: d.Reservation, Event: event.Event{
		ID:   contentID(event.ReservationEnd, d.Reservation, d.EndDate),
		Kind: event.ReservationEnd, Code: "capacity-block", State: event.Pending, Noticed: e.time(),
	}}
	if end := parseTime(d.EndDate); !end.IsZero() {
		n.Event.Deadline = end.Add(-reclaim)
		if at := e.time(); !at.IsZero() && end.Sub(at) >= reclaimUltra {
			n.Event.Deadline = end.Add(-reclaimUltra)
		}
	}
	return n, nil
}

// interruptible parses that the owner of an interruptible Capacity Reservation takes it back.
func (e envelope) interruptible(d ec2Detail) (Notice, error) {
	n, err := e.interruption(d.Instance, event.ReservationEnd, e.ID, e.Time)
	n.Event.Code = "interruptible"
	if n.Event.Deadline = parseTime(d.TerminationTime); n.Event.Deadline.IsZero() && !e.time().IsZero() {
		n.Event.Deadline = e.time().Add(spotNotice)
	}
	return n, err
}

// healthDetail is the detail of an AWS Health event.
type healthDetail struct {
	ARN          string `json:"eventArn"`
	Service      string `json:"service"`
	Code         string `json:"eventTypeCode"`
	Category     string `json:"eventTypeCategory"`
	Status       string `json:"statusCode"`
	Start        string `json:"startTime"`
	End          string `json:"endTime"`
	Descriptions []struct {
		Text string `json:"latestDescription"`
	} `json:"eventDescription"`
	Entities []struct {
		Value  string `json:"entityValue"`
		Status string `json:"status"`
	} `json:"affectedEntities"`
}

// health parses a scheduled change of AWS Health. Each instance has an event of its own, so that one that cannot be drained
// is not hidden by one that can.
func (e envelope) health() ([]Notice, error) {
	var d healthDetail
	if err := e.detail(&d); err != nil {
		return nil, err
	}
	if d.Service != "EC2" || d.Category != "scheduledChange" {
		return nil, notOurs("AWS Health writes of %q in %q", d.Category, d.Service)
	}
	var notices []Notice
	for _, entity := range d.Entities {
		if !instanceID.MatchString(entity.Value) {
			continue // A volume, a host, a reservation.
		}
		n, err := e.interruption(entity.Value, event.ScheduledMaintenance, d.identity(e)...)
		if err != nil {
			return nil, err
		}
		n.Event.Code, n.Event.Deadline, n.Event.Until = maintenanceCode(d.Code), healthTime(d.Start), healthTime(d.End)
		if len(d.Descriptions) > 0 {
			n.Event.Description = d.Descriptions[0].Text
		}
		if d.Status == "closed" || entity.Status == "RESOLVED" {
			n.Event.State = event.Completed
		}
		notices = append(notices, n)
	}
	if len(notices) == 0 {
		return nil, notOurs("the change %s that AWS Health writes of affects no instance", d.Code)
	}
	return notices, nil
}

// identity is the change's, which stays the same when AWS Health sends it again.
func (d healthDetail) identity(e envelope) []string {
	if d.ARN != "" {
		return []string{d.ARN}
	}
	return []string{e.ID, e.Time}
}

// maintenanceCodes maps parts of AWS Health's codes to those of the metadata service. The first match counts.
var maintenanceCodes = []struct{ part, code string }{
	{"RETIREMENT", "instance-retirement"},
	{"SYSTEM_REBOOT", "system-reboot"},
	{"INSTANCE_REBOOT", "instance-reboot"},
	{"INSTANCE_STOP", "instance-stop"},
	{"MAINTENANCE", "system-maintenance"},
}

func maintenanceCode(code string) string {
	for _, known := range maintenanceCodes {
		if strings.Contains(code, known.part) {
			return known.code
		}
	}
	return code
}

// healthTime parses a time as AWS Health writes it; zero if it is invalid or not credible.
func healthTime(text string) time.Time {
	t, err := time.Parse(time.RFC1123, text)
	if err != nil {
		return parseTime(text)
	}
	return event.CredibleTime(t)
}

// lifecycleAction is Auto Scaling's description of a lifecycle action, in its own envelope and in EventBridge's detail.
type lifecycleAction struct {
	Token      string `json:"LifecycleActionToken"`
	Group      string `json:"AutoScalingGroupName"`
	Hook       string `json:"LifecycleHookName"`
	Instance   string `json:"EC2InstanceId"`
	Transition string `json:"LifecycleTransition"`
	// Destination is EC2 or WarmPool, if the group has a warm pool.
	Destination string `json:"Destination"`
}

// The transitions that a hook can be made for.
const (
	launching   = "autoscaling:EC2_INSTANCE_LAUNCHING"
	terminating = "autoscaling:EC2_INSTANCE_TERMINATING"
	testing     = "autoscaling:TEST_NOTIFICATION"
)

// parseAutoScaling parses what Auto Scaling itself sends to a queue.
func (e envelope) parseAutoScaling() ([]Notice, error) {
	switch {
	case e.Event == testing || e.Transition == testing:
		return nil, notOurs("Auto Scaling tries whether the queue can be written to")
	case e.Transition == "" && e.Group == "":
		return nil, poison("it is neither an event of EventBridge nor a lifecycle action of Auto Scaling")
	}
	return e.notices(e.time())
}

func (a lifecycleAction) notices(at time.Time) ([]Notice, error) {
	switch {
	case !instanceID.MatchString(a.Instance):
		return nil, poison("the lifecycle action is for no instance: %q", a.Instance)
	case a.Group == "" || a.Hook == "":
		return nil, poison("the lifecycle action for %s names no group or no hook", a.Instance)
	}
	n := Notice{Instance: a.Instance, Hook: &Hook{Group: a.Group, Name: a.Hook, Token: a.Token}}
	switch a.Transition {
	case launching:
		n.About, n.Hook.Launch = Launch, true
	case terminating:
		n.About, n.Hook.Back = Interruption, a.Destination == "WarmPool"
		n.Event = event.Event{
			ID:   contentID(event.ASGTermination, a.Group, a.Hook, a.Token, a.Instance),
			Kind: event.ASGTermination, Code: "Terminated", State: event.Pending, Noticed: at,
		}
	default:
		return nil, poison("the lifecycle action for %s is of an unknown kind: %q", a.Instance, a.Transition)
	}
	return []Notice{n}, nil
}
