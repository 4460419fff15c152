package sqs

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/text"
)

// Notice is what a message says of one instance.
type Notice struct {
	About Subject
	// Instance is the EC2 instance's ID. It is empty if the message names only a Reservation.
	Instance string
	// Reservation is the ID of a capacity reservation. If set, the notice is about all instances in the reservation.
	Reservation string
	// Event is what an Interruption announces. Its time Noticed is the time in the message, or else when the message was sent. Of a Launch it has only
	// that time and an ID.
	Event event.Event
	// Hook is the lifecycle action that Auto Scaling waits for; nil if Auto Scaling does not wait.
	Hook *Hook
	// Stopped is set if EC2 says that the instance has stopped or terminated.
	Stopped bool
}

// Subject is what a notice is about.
type Subject string

// The subjects of notices.
const (
	// Interruption: the instance is going to be taken away, or has been.
	Interruption Subject = "interruption"
	// Launch: the instance is new, and its group waits at a hook before it counts as in service.
	Launch Subject = "launch"
	// Running: the instance has been started.
	Running Subject = "running"
)

// Hook names one lifecycle action: the Auto Scaling group Group waits at its hook Name, for the notice's instance. Token is AWS's ID of the action.
type Hook struct {
	Group, Name, Token string
	// Launch is set if Auto Scaling waits before the instance goes into service. Back is set if the instance returns to a warm
	// pool and is not terminated.
	Launch, Back bool
}

// NotOursError says why a message does not concern nth-queue, which may delete it.
type NotOursError struct{ Why string }

// Error implements error.
func (e NotOursError) Error() string { return e.Why }

// notOurs returns a NotOursError with a formatted reason.
func notOurs(format string, args ...any) error { return NotOursError{fmt.Sprintf(format, args...)} }

const (
	// maxBody is SQS's limit for a message, in bytes.
	maxBody = 1 << 20
	// maxShown is how much of a text from outside an error shows, in bytes.
	maxShown = 100
	// SpotNotice is the time from EC2's warning to the interruption of a spot instance. The warning does not say it.
	SpotNotice = 2 * time.Minute
	// blockNotice is the time from EC2's warning until EC2 begins to terminate the instances of a Capacity Block:
	// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-monitor.html.
	blockNotice = 10 * time.Minute
)

// shown quotes a text of the message, as an error may show it: printable, and of limited length.
func shown(s string) string { return `"` + text.Visible(s, maxShown) + `"` }

// rows has a function for each kind of message, which returns the message's notice. EventBridge's kinds are named by source and detail type.
// The kinds that Auto Scaling sends itself are named by the lifecycle transition. AWS's pages have had two names for each end of a reservation.
var rows = map[string]func(message) (Notice, error){
	"aws.ec2/EC2 Spot Instance Interruption Warning": func(m message) (Notice, error) {
		return m.interruption(event.SpotInterruption, m.Action, m.at.Add(SpotNotice)), nil
	},
	"aws.ec2/EC2 Instance Rebalance Recommendation": func(m message) (Notice, error) {
		return m.interruption(event.RebalanceRecommendation, "", time.Time{}), nil
	},
	"aws.ec2/EC2 Instance State-change Notification": message.stateChange,

	"aws.ec2/Capacity Block Reservation Expiration Warning":                        message.capacityBlock,
	"aws.ec2/Capacity Block Expiration Warning":                                    message.capacityBlock,
	"aws.ec2/EC2 Capacity Reservation Instance Interruption Warning":               message.takenBack,
	"aws.ec2/EC2 Interruptible Capacity Reservation Instance Interruption Warning": message.takenBack,

	"aws.autoscaling/EC2 Instance-terminate Lifecycle Action": message.terminating,
	"aws.autoscaling/EC2 Instance-launch Lifecycle Action":    message.launching,
	"autoscaling:EC2_INSTANCE_TERMINATING":                    message.terminating,
	"autoscaling:EC2_INSTANCE_LAUNCHING":                      message.launching,
}

// envelope has the outer fields of all kinds of messages.
type envelope struct {
	// EventBridge's. Time is Auto Scaling's, too, which writes "Time": encoding/json ignores case.
	Source     string          `json:"source"`
	DetailType string          `json:"detail-type"`
	ID         string          `json:"id"`
	Account    string          `json:"account"`
	Time       string          `json:"time"`
	Detail     json.RawMessage `json:"detail"`

	// Those of messages that Auto Scaling sends itself.
	Event      string `json:"Event"`
	Transition string `json:"LifecycleTransition"`
	AccountID  string `json:"AccountId"`

	// SNS's. Message is a message of EventBridge or Auto Scaling, as a text.
	Type     string `json:"Type"`
	TopicARN string `json:"TopicArn"`
	Message  string `json:"Message"`
}

// fields has the inner fields of all kinds of messages.
type fields struct {
	// EC2's.
	Instance    string `json:"instance-id"`
	Action      string `json:"instance-action"`
	State       string `json:"state"`
	TerminateAt string `json:"instance-termination-time"`
	Reservation string `json:"capacity-reservation-id"`

	// Auto Scaling's.
	Member      string `json:"EC2InstanceId"`
	Group       string `json:"AutoScalingGroupName"`
	HookName    string `json:"LifecycleHookName"`
	Token       string `json:"LifecycleActionToken"`
	Destination string `json:"Destination"`
}

// message is a decoded message. Fields that its kind does not have are empty.
type message struct {
	envelope
	fields
	at time.Time // the time that the message names, or else when it was sent
}

// Parse reads the body of a message, and returns its notice or an error. account is the AWS account of the queue: events of other
// accounts are not read; "" is any account. sent is when the message was put into the queue.
//
// A NotOursError means that the message does not concern nth-queue, which may delete it. Any other error means that Parse cannot understand the
// message.
func Parse(body, account string, sent time.Time) (Notice, error) {
	var m message
	if err := unmarshal([]byte(body), &m.envelope); err != nil {
		return Notice{}, err
	}
	if m.TopicARN != "" { // SNS sends the message inside one of its own.
		if m.Type != "" && m.Type != "Notification" {
			return Notice{}, notOurs("the message is SNS's %s, which is about a subscription and not about an instance", shown(m.Type))
		}
		body, m.envelope = m.Message, envelope{}
		if err := unmarshal([]byte(body), &m.envelope); err != nil {
			return Notice{}, err
		}
	}
	kind, inner := m.Source+"/"+m.DetailType, []byte(m.Detail)
	if kind == "/" { // It is not from EventBridge. Auto Scaling's own messages have the inner fields next to the outer ones.
		kind, inner = m.Transition, []byte(body)
	}
	read, found := rows[kind]
	from := cmp.Or(m.Account, m.AccountID) // "" if the message does not name its account
	switch {
	case !found && kind == "" && m.Event == "":
		return Notice{}, errors.New("the message is neither an EventBridge event nor an Auto Scaling lifecycle action")
	case !found: // EventBridge's rule sends more than nth-queue needs, or Auto Scaling reports what it does not wait for.
		return Notice{}, notOurs("nth-queue does not act on events of the type %s", shown(cmp.Or(kind, m.Event)))
	case account != "" && from != "" && from != account:
		return Notice{}, notOurs("the message is about the account %s, but the queue is in the account %s", shown(from), account)
	}
	if err := unmarshal(inner, &m.fields); err != nil {
		return Notice{}, err
	}
	m.at = cmp.Or(parseTime(m.Time), sent)
	n, err := read(m)
	if err != nil {
		return Notice{}, err
	}
	if err := n.check(); err != nil {
		return Notice{}, fmt.Errorf("%s: %w", shown(kind), err)
	}
	return n, nil
}

// unmarshal decodes a message, or the fields in it, into the struct that into points to.
func unmarshal(body []byte, into any) error {
	if len(body) > maxBody {
		return fmt.Errorf("the message's body has %d bytes; nth-queue reads at most %d", len(body), maxBody)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("the message's body is not a JSON object of the expected form: %s", text.Visible(err.Error(), maxShown))
	}
	return nil
}

// form is what a text of a notice must look like.
type form struct {
	pattern *regexp.Regexp
	right   string // for the error about a text that does not match
}

// The forms of texts. What Auto Scaling allows in names is in its API reference.
var (
	instanceID    = form{regexp.MustCompile(`^i-[0-9a-f]{8,32}$`), `an instance ID, such as "i-0123456789abcdef0"`}
	reservationID = form{regexp.MustCompile(`^cr-[0-9a-f]{8,32}$`), `a capacity reservation's ID, such as "cr-0123456789abcdef0"`}
	code          = form{regexp.MustCompile(`^[A-Za-z0-9_-]{0,100}$`), "letters, digits, hyphens and underscores, at most 100 of them"}
	groupName     = form{regexp.MustCompile(`^[ -9;-~]{1,255}$`), "the name of a group: 1 to 255 characters of ASCII without a colon"}
	hookName      = form{regexp.MustCompile(`^[A-Za-z0-9/_-]{1,255}$`), "the name of a hook: 1 to 255 letters, digits, hyphens, underscores and slashes"}
)

// check returns an error if a text of the notice does not have its form. The error names the first such text.
func (n Notice) check() error {
	type checked struct {
		name, value string
		form        form
	}
	texts := []checked{{"instance", n.Instance, instanceID}, {"code", n.Event.Code, code}}
	if n.About == Interruption && n.Event.Code == blockCode { // This notice names no instance.
		texts = []checked{{"reservation", n.Reservation, reservationID}}
	}
	if n.Hook != nil {
		texts = append(texts, checked{"group", n.Hook.Group, groupName}, checked{"hook", n.Hook.Name, hookName}, checked{"token", n.Hook.Token, code})
	}
	for _, t := range texts {
		if !t.form.pattern.MatchString(t.value) {
			return fmt.Errorf("the %s is %s, but must be %s", t.name, shown(t.value), t.form.right)
		}
	}
	return nil
}

// parseTime parses a time as EventBridge and Auto Scaling write it (RFC 3339). It returns zero if the text is no time, or event.CredibleTime does
// not accept the time.
func parseTime(text string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}
	}
	return event.CredibleTime(t)
}

// interruption returns the notice that EC2 interrupts the message's instance. deadline is zero if the message does not say when.
func (m message) interruption(kind event.Kind, code string, deadline time.Time) Notice {
	n := m.notice(m.Instance, kind, m.ID, m.Time)
	n.Event.Code, n.Event.Deadline = code, deadline
	return n
}

// notice returns the notice that an instance is interrupted, still without the event's details. The event's ID is made from kind, identity and
// instance, so that a repeated message gives the same event: see event.ContentID.
func (m message) notice(instance string, kind event.Kind, identity ...string) Notice {
	return Notice{About: Interruption, Instance: instance, Event: event.Event{
		ID: event.ContentID(kind, append(identity, instance)...), Kind: kind, State: event.Pending, Noticed: m.at,
	}}
}

// stateChange reads the new state of an instance. The instance is interrupted if it stops or terminates, or has done so. "running" is a notice
// about Running, which ends an earlier interruption.
func (m message) stateChange() (Notice, error) {
	n := m.notice(m.Instance, event.StateChange, m.ID, m.Time)
	n.Event.Code = m.State
	switch m.State {
	case "stopping", "shutting-down": // Nothing is missing in the notice.
	case "stopped", "terminated":
		n.Stopped = true
	case "running":
		n.About = Running
	default: // "pending", which is followed by "running"
		return Notice{}, notOurs("the instance %s is in the state %s, which needs no drain", shown(m.Instance), shown(m.State))
	}
	return n, nil
}

// blockCode is the code of the end of a Capacity Block.
const blockCode = "capacity-block"

// capacityBlock reads that a Capacity Block ends soon. The message names the block, not its instances, so the notice has no Instance.
func (m message) capacityBlock() (Notice, error) {
	n := m.interruption(event.ReservationEnd, blockCode, m.at.Add(blockNotice))
	n.Reservation = m.Reservation
	return n, nil
}

// takenBack reads that the owner of an interruptible capacity reservation takes an instance back. If the message does not say when, the deadline
// is SpotNotice after the message.
func (m message) takenBack() (Notice, error) {
	return m.interruption(event.ReservationEnd, "interruptible", cmp.Or(parseTime(m.TerminateAt), m.at.Add(SpotNotice))), nil
}

// terminating reads that Auto Scaling terminates an instance or returns it to a warm pool, and waits at a lifecycle hook.
func (m message) terminating() (Notice, error) {
	n := m.notice(m.Member, event.ASGTermination, m.Group, m.HookName, m.Token)
	n.Event.Code = "Terminated"
	n.Hook = &Hook{Group: m.Group, Name: m.HookName, Token: m.Token, Back: m.Destination == "WarmPool"}
	return n, nil
}

// launching reads that Auto Scaling has launched an instance, and waits at a lifecycle hook before it puts the instance into service.
func (m message) launching() (Notice, error) {
	n := m.notice(m.Member, "", m.Group, m.HookName, m.Token)
	n.About, n.Hook = Launch, &Hook{Group: m.Group, Name: m.HookName, Token: m.Token, Launch: true}
	return n, nil
}
