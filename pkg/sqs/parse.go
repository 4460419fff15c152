package sqs

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/text"
)

// Notice is what a message says of one instance.
type Notice struct {
	About Subject
	// Instance is the EC2 instance's ID. It is empty if the message names only a Reservation.
	Instance string
	// Reservation is the ID of a capacity reservation: the message is about all instances in it.
	Reservation string
	// Event is what an Interruption announces. It was noticed when the message says, or else when it was sent.
	Event event.Event
	// Hook is the lifecycle hook at which Auto Scaling waits for an answer; nil if Auto Scaling does not wait.
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
	// maxBody is the size in bytes of the largest message, as SQS has it: it names 36,148 instances at most, as an ID and what JSON needs
	// around it have 29 bytes. AWS Health's own messages, which it splits at 256 KiB, name less than 7,000
	// (https://docs.aws.amazon.com/health/latest/ug/pagnation-of-health-events.html).
	maxBody = 1 << 20
	// maxShown is how much of a text from outside an error shows, in bytes.
	maxShown = 100
	// spotNotice is how long EC2 leaves a spot instance after its warning, which does not say so.
	spotNotice = 2 * time.Minute
	// blockNotice is how long before it begins to terminate the instances of a Capacity Block EC2 sends its warning:
	// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-monitor.html.
	blockNotice = 10 * time.Minute
)

// shown quotes a text of the message for an error.
func shown(s string) string { return `"` + text.Visible(s, maxShown) + `"` }

// rows says for each kind of message what its notices are. The kinds are EventBridge's, by their source and detail type, and those that Auto
// Scaling sends itself, by the lifecycle transition. Both kinds of ends of a reservation have had two names in AWS's pages.
var rows = map[string]func(message) ([]Notice, error){
	"aws.ec2/EC2 Spot Instance Interruption Warning": func(m message) ([]Notice, error) {
		return m.interruption(event.SpotInterruption, m.Action, m.at.Add(spotNotice)), nil
	},
	"aws.ec2/EC2 Instance Rebalance Recommendation": func(m message) ([]Notice, error) {
		return m.interruption(event.RebalanceRecommendation, "", time.Time{}), nil
	},
	"aws.ec2/EC2 Instance State-change Notification": message.stateChange,

	"aws.ec2/Capacity Block Reservation Expiration Warning":                        message.capacityBlock,
	"aws.ec2/Capacity Block Expiration Warning":                                    message.capacityBlock,
	"aws.ec2/EC2 Capacity Reservation Instance Interruption Warning":               message.takenBack,
	"aws.ec2/EC2 Interruptible Capacity Reservation Instance Interruption Warning": message.takenBack,

	"aws.health/AWS Health Event": message.health,

	"aws.autoscaling/EC2 Instance-terminate Lifecycle Action": message.terminating,
	"aws.autoscaling/EC2 Instance-launch Lifecycle Action":    message.launching,
	"autoscaling:EC2_INSTANCE_TERMINATING":                    message.terminating,
	"autoscaling:EC2_INSTANCE_LAUNCHING":                      message.launching,
}

// envelope has what all kinds of messages have around their fields: EventBridge's events, what Auto Scaling sends itself, and
// SNS's messages, which contain one of those.
type envelope struct {
	Source     string          `json:"source"`
	DetailType string          `json:"detail-type"`
	ID         string          `json:"id"`
	Account    string          `json:"account"`
	Time       string          `json:"time"` // Auto Scaling's is "Time"
	Detail     json.RawMessage `json:"detail"`

	Event      string `json:"Event"`
	Transition string `json:"LifecycleTransition"`
	AccountID  string `json:"AccountId"`

	Type     string `json:"Type"`
	TopicARN string `json:"TopicArn"`
	Message  string `json:"Message"`
}

// fields has the fields of all kinds of messages.
type fields struct {
	Instance    string `json:"instance-id"`
	Action      string `json:"instance-action"`
	State       string `json:"state"`
	TerminateAt string `json:"instance-termination-time"`
	Reservation string `json:"capacity-reservation-id"`

	// AWS Health's.
	Service      string `json:"service"`
	Category     string `json:"eventTypeCategory"`
	Code         string `json:"eventTypeCode"`
	ARN          string `json:"eventArn"`
	Status       string `json:"statusCode"`
	Start        string `json:"startTime"`
	End          string `json:"endTime"`
	Descriptions []struct {
		Text string `json:"latestDescription"`
	} `json:"eventDescription"`
	Entities []struct {
		ID     string `json:"entityValue"`
		Status string `json:"status"`
	} `json:"affectedEntities"`

	// Auto Scaling's.
	Leaving     string `json:"EC2InstanceId"`
	Group       string `json:"AutoScalingGroupName"`
	HookName    string `json:"LifecycleHookName"`
	Token       string `json:"LifecycleActionToken"`
	Destination string `json:"Destination"`
}

// message is a message with its fields.
type message struct {
	envelope
	fields
	at time.Time // when what it says happened
}

// Parse reads the body of a message. account is the queue's; with "", events of any account are read. sent is the time of an event
// that names none.
//
// A NotOursError means that the message does not concern nth-queue, which may delete it. Any other error means that the message cannot be
// understood. Without an error, Parse returns at least one notice.
func Parse(body, account string, sent time.Time) ([]Notice, error) {
	var m message
	if err := unmarshal([]byte(body), &m.envelope); err != nil {
		return nil, err
	}
	if m.TopicARN != "" { // SNS has put the message that counts into one of its own.
		if m.Type != "" && m.Type != "Notification" {
			return nil, notOurs("SNS writes about its subscription: %s", shown(m.Type))
		}
		body, m.envelope = m.Message, envelope{}
		if err := unmarshal([]byte(body), &m.envelope); err != nil {
			return nil, err
		}
	}
	kind, detail := m.Source+"/"+m.DetailType, []byte(m.Detail)
	if kind == "/" { // Auto Scaling itself has sent it. The fields are in the body.
		kind, detail = m.Transition, []byte(body)
	}
	notices, found := rows[kind]
	switch from := cmp.Or(m.Account, m.AccountID); {
	case !found && kind == "" && m.Event == "":
		return nil, errors.New("it is neither an event of EventBridge nor a lifecycle action of Auto Scaling")
	case !found: // The rule of EventBridge lets more through than nth-queue needs, or no hook waits for it.
		return nil, notOurs("it is an event %s", shown(cmp.Or(kind, m.Event)))
	case account != "" && from != "" && from != account:
		return nil, notOurs("it is of the account %s, and the queue is in %s", shown(from), account)
	}
	if err := unmarshal(detail, &m.fields); err != nil {
		return nil, err
	}
	m.at = cmp.Or(parseTime(m.Time), sent)
	all, err := notices(m)
	for _, n := range all {
		if err := n.check(); err != nil {
			return nil, fmt.Errorf("%s: %w", shown(kind), err)
		}
	}
	return all, err
}

// unmarshal reads JSON from outside.
func unmarshal(body []byte, into any) error {
	if len(body) > maxBody {
		return fmt.Errorf("it has %d bytes, and the most that are read are %d", len(body), maxBody)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("it is not a JSON object of the expected form: %s", text.Visible(err.Error(), maxShown))
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

// check returns an error that names the first text of a notice that does not have its form.
func (n Notice) check() error {
	type checked struct {
		name, value string
		form        form
	}
	texts := []checked{{"instance", n.Instance, instanceID}, {"code", n.Event.Code, code}}
	if n.About == Interruption && n.Event.Code == blockCode {
		texts = []checked{{"reservation", n.Reservation, reservationID}}
	}
	if n.Hook != nil {
		texts = append(texts, checked{"group", n.Hook.Group, groupName}, checked{"hook", n.Hook.Name, hookName}, checked{"token", n.Hook.Token, code})
	}
	for _, t := range texts {
		if !t.form.pattern.MatchString(t.value) {
			return fmt.Errorf("its %s is %s, and must be %s", t.name, shown(t.value), t.form.right)
		}
	}
	return nil
}

// parseTime parses a time as EventBridge and Auto Scaling write it (RFC 3339), or AWS Health (RFC 1123). It returns zero if the time is invalid
// or not credible.
func parseTime(text string) time.Time {
	for _, layout := range []string{time.RFC3339Nano, time.RFC1123} {
		if t, err := time.Parse(layout, text); err == nil {
			return event.CredibleTime(t)
		}
	}
	return time.Time{}
}

// interruption returns the notice that the message's instance is interrupted.
func (m message) interruption(kind event.Kind, code string, deadline time.Time) []Notice {
	n := m.notice(m.Instance, kind, m.ID, m.Time)
	n.Event.Code, n.Event.Deadline = code, deadline
	return []Notice{n}
}

// notice returns a notice that one instance is interrupted. identity and the instance distinguish the event from others of its kind, so that a
// repeated message gives the same event: see event.ContentID.
func (m message) notice(instance string, kind event.Kind, identity ...string) Notice {
	return Notice{About: Interruption, Instance: instance, Event: event.Event{
		ID: event.ContentID(kind, append(identity, instance)...), Kind: kind, State: event.Pending, Noticed: m.at,
	}}
}

// stateChange reads an instance's new state. An instance that stops, terminates, or has done so is interrupted. "running" makes a
// notice of its own, which ends an earlier interruption.
func (m message) stateChange() ([]Notice, error) {
	all := m.interruption(event.StateChange, m.State, time.Time{})
	switch m.State {
	case "stopping", "shutting-down": // The notice is complete.
	case "stopped", "terminated":
		all[0].Stopped = true
	case "running":
		all[0].About = Running
	default:
		return nil, notOurs("the instance %s is in the state %s", shown(m.Instance), shown(m.State))
	}
	return all, nil
}

// blockCode is the code of the end of a Capacity Block.
const blockCode = "capacity-block"

// capacityBlock reads that a Capacity Block ends soon. The message names the block, not its instances.
func (m message) capacityBlock() ([]Notice, error) {
	all := m.interruption(event.ReservationEnd, blockCode, m.at.Add(blockNotice))
	all[0].Reservation = m.Reservation
	return all, nil
}

// takenBack reads that the owner of an interruptible capacity reservation takes it back.
func (m message) takenBack() ([]Notice, error) {
	return m.interruption(event.ReservationEnd, "interruptible", cmp.Or(parseTime(m.TerminateAt), m.at.Add(spotNotice))), nil
}

// maintenanceCodes maps parts of AWS Health's codes to those of the metadata service. The first match counts.
var maintenanceCodes = []struct{ part, code string }{
	{"RETIREMENT", "instance-retirement"},
	{"SYSTEM_REBOOT", "system-reboot"},
	{"INSTANCE_REBOOT", "instance-reboot"},
	{"INSTANCE_STOP", "instance-stop"},
	{"MAINTENANCE", "system-maintenance"},
}

// health reads a scheduled change that AWS Health announces. It makes an event for each affected instance, as each is drained by
// itself. Issues and account notifications of AWS Health are NotOursErrors.
func (m message) health() ([]Notice, error) {
	if m.Service != "EC2" || m.Category != "scheduledChange" {
		return nil, notOurs("AWS Health writes of %s in %s", shown(m.Category), shown(m.Service))
	}
	identity := []string{m.ARN} // It stays the same when AWS Health writes again.
	if m.ARN == "" {
		identity = []string{m.ID, m.Time}
	}
	code, description := m.Code, ""
	for _, known := range maintenanceCodes {
		if strings.Contains(m.Code, known.part) {
			code = known.code
			break
		}
	}
	if len(m.Descriptions) > 0 {
		description = text.Visible(m.Descriptions[0].Text, text.Line)
	}
	var all []Notice
	for _, entity := range m.Entities {
		if !instanceID.pattern.MatchString(entity.ID) {
			continue // A volume, a host, a reservation.
		}
		n := m.notice(entity.ID, event.ScheduledMaintenance, identity...)
		n.Event.Code, n.Event.Description, n.Event.Deadline, n.Event.Until = code, description, parseTime(m.Start), parseTime(m.End)
		if m.Status == "closed" || entity.Status == "RESOLVED" {
			n.Event.State = event.Completed
		}
		all = append(all, n)
	}
	if len(all) == 0 {
		return nil, notOurs("the change %s that AWS Health writes of affects no instance", shown(m.Code))
	}
	return all, nil
}

// terminating reads that Auto Scaling ends an instance, or returns it to a warm pool, and waits at a lifecycle hook.
func (m message) terminating() ([]Notice, error) {
	n := m.notice(m.Leaving, event.ASGTermination, m.Group, m.HookName, m.Token)
	n.Event.Code = "Terminated"
	n.Hook = &Hook{Group: m.Group, Name: m.HookName, Token: m.Token, Back: m.Destination == "WarmPool"}
	return []Notice{n}, nil
}

// launching reads that Auto Scaling has started an instance, and waits at a lifecycle hook.
func (m message) launching() ([]Notice, error) {
	hook := &Hook{Group: m.Group, Name: m.HookName, Token: m.Token, Launch: true}
	return []Notice{{About: Launch, Instance: m.Leaving, Hook: hook}}, nil
}
