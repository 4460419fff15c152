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
)

// shown quotes a text of the message for an error.
func shown(s string) string { return `"` + text.Visible(s, maxShown) + `"` }

// form is what the text of a field must look like.
type form struct {
	pattern *regexp.Regexp
	example string // what would be right, for the error about a text that does not match
}

// newForm returns a form for values that match the pattern as a whole.
func newForm(pattern, example string) form {
	return form{regexp.MustCompile(`^(?:` + pattern + `)$`), example}
}

// The forms of fields. What Auto Scaling allows in names is in its API reference.
var (
	instanceID    = newForm(`i-[0-9a-f]{8,32}`, `an instance ID, such as "i-0123456789abcdef0"`)
	reservationID = newForm(`cr-[0-9a-f]{8,32}`, `a capacity reservation's ID, such as "cr-0123456789abcdef0"`)
	accountID     = newForm(`([0-9]{12})?`, "an account's ID of 12 digits")
	regionName    = newForm(`[a-z0-9-]{0,32}`, `a region, such as "eu-central-1"`)
	code          = newForm(`[A-Za-z0-9_-]{1,100}`, "letters, digits, hyphens and underscores, 1 to 100 of them")
	optionalCode  = newForm(`[A-Za-z0-9_-]{0,100}`, "letters, digits, hyphens and underscores, at most 100 of them")
	identifier    = newForm(`(?s).{0,1000}`, "at most 1,000 characters")
	moment        = newForm(`[A-Za-z0-9:., +-]{0,40}`, `a time, such as "2026-03-01T10:00:00Z"`)
	groupName     = newForm(`[ -9;-~]{1,255}`, "the name of a group: 1 to 255 characters of ASCII without a colon")
	hookName      = newForm(`[A-Za-z0-9/_-]{1,255}`, "the name of a hook: 1 to 255 letters, digits, hyphens, underscores and slashes")
)

// field is the name of a text in a message, and its form. A missing text counts as empty.
type field struct {
	name string
	form form
}

// row says how to read one kind of message.
type row struct {
	fields []field
	// notices returns what the message says. Parse has checked the message's fields before.
	notices func(message) ([]Notice, error)
}

var (
	hookFields = []field{
		{"EC2InstanceId", instanceID}, {"AutoScalingGroupName", groupName}, {"LifecycleHookName", hookName},
		{"LifecycleActionToken", optionalCode}, {"Destination", optionalCode},
	}
	terminateHook = row{hookFields, terminating}
	launchHook    = row{hookFields, launching}
	blockEnd      = row{[]field{{"capacity-reservation-id", reservationID}, {"end-date", moment}}, capacityBlock}
	takenBack     = row{[]field{{"instance-id", instanceID}, {"instance-termination-time", moment}}, interruptible}
)

// rows has a row for each kind of message that Parse understands: EventBridge's by their source and detail type, and those that Auto Scaling
// sends itself by the lifecycle transition. Both kinds of ends of a reservation have had two names in AWS's pages.
var rows = map[string]row{
	"aws.ec2/EC2 Spot Instance Interruption Warning": {[]field{{"instance-id", instanceID}, {"instance-action", optionalCode}}, spot},
	"aws.ec2/EC2 Instance Rebalance Recommendation":  {[]field{{"instance-id", instanceID}}, rebalance},
	"aws.ec2/EC2 Instance State-change Notification": {[]field{{"instance-id", instanceID}, {"state", code}}, stateChange},

	"aws.ec2/Capacity Block Reservation Expiration Warning":                        blockEnd,
	"aws.ec2/Capacity Block Expiration Warning":                                    blockEnd,
	"aws.ec2/EC2 Capacity Reservation Instance Interruption Warning":               takenBack,
	"aws.ec2/EC2 Interruptible Capacity Reservation Instance Interruption Warning": takenBack,

	"aws.health/AWS Health Event": {[]field{
		{"service", code}, {"eventTypeCategory", code}, {"eventTypeCode", code}, {"statusCode", optionalCode}, {"startTime", moment}, {"endTime", moment},
		{"eventArn", identifier},
	}, health},

	"aws.autoscaling/EC2 Instance-terminate Lifecycle Action": terminateHook,
	"aws.autoscaling/EC2 Instance-launch Lifecycle Action":    launchHook,
	"autoscaling:EC2_INSTANCE_TERMINATING":                    terminateHook,
	"autoscaling:EC2_INSTANCE_LAUNCHING":                      launchHook,
}

// envelope has what all kinds of messages have around their fields: EventBridge's events, what Auto Scaling sends itself, and
// SNS's messages, which contain one of those.
type envelope struct {
	Source     string          `json:"source"`
	DetailType string          `json:"detail-type"`
	ID         string          `json:"id"`
	Account    string          `json:"account"`
	Region     string          `json:"region"`
	Time       string          `json:"time"` // Auto Scaling's is "Time"
	Detail     json.RawMessage `json:"detail"`

	Event      string `json:"Event"`
	Transition string `json:"LifecycleTransition"`
	AccountID  string `json:"AccountId"`

	Type     string `json:"Type"`
	TopicARN string `json:"TopicArn"`
	Message  string `json:"Message"`
}

// message is a message whose fields have their forms.
type message struct {
	envelope
	at     time.Time         // when what it says happened
	fields map[string]string // the fields of its row
	detail []byte            // the JSON object that has the fields
}

// Parse reads the body of a message. account is the queue's; with "", events of any account are read. sent is the time of an event
// that names none.
//
// A NotOursError means that the message does not concern nth-queue, which may delete it. Any other error means that the message cannot be
// understood. Without an error, Parse returns at least one notice.
func Parse(body, account string, sent time.Time) ([]Notice, error) {
	e, err := open(body)
	if err != nil {
		return nil, err
	}
	if e.TopicARN != "" { // SNS has put the message that counts into one of its own.
		if e.Type != "" && e.Type != "Notification" {
			return nil, notOurs("SNS writes about its subscription: %s", shown(e.Type))
		}
		body = e.Message
		if e, err = open(body); err != nil {
			return nil, err
		}
	}
	kind, detail, err := e.kind(body)
	if err != nil {
		return nil, err
	}
	known, found := rows[kind]
	switch from := cmp.Or(e.Account, e.AccountID); {
	case !found && e.Transition == "": // The rule of EventBridge lets more through than nth-queue needs.
		return nil, notOurs("it is an event %s of %s", shown(e.DetailType), shown(e.Source))
	case !found: // Auto Scaling waits for an answer, so the message is not deleted.
		return nil, fmt.Errorf("it is a lifecycle action of an unknown kind: %s", shown(kind))
	case account != "" && from != "" && from != account:
		return nil, notOurs("it is of the account %s, and the queue is in %s", from, account)
	}
	m := message{envelope: e, at: cmp.Or(parseTime(e.Time), sent), detail: detail}
	if m.fields, err = read(kind, detail, known.fields); err != nil {
		return nil, err
	}
	return known.notices(m)
}

// kind returns the kind of a message, which is its key in rows, and the JSON object that has its fields: EventBridge puts them into
// "detail", Auto Scaling into the body itself. A NotOursError is about a notification that needs no answer.
func (e envelope) kind(body string) (kind string, detail []byte, err error) {
	switch {
	case e.DetailType != "" || e.Source != "":
		return e.Source + "/" + e.DetailType, e.Detail, nil
	case e.Transition == "" && strings.HasPrefix(e.Event, "autoscaling:"), e.Transition == "autoscaling:TEST_NOTIFICATION":
		return "", nil, notOurs("it is a notification of Auto Scaling that no lifecycle hook waits for: %s", shown(e.Event+e.Transition))
	case e.Transition == "":
		return "", nil, errors.New("it is neither an event of EventBridge nor a lifecycle action of Auto Scaling")
	}
	return e.Transition, []byte(body), nil
}

// open reads the envelope of a message, and checks the form of its texts.
func open(body string) (e envelope, err error) {
	if len(body) > maxBody {
		return envelope{}, fmt.Errorf("it has %d bytes, and the most that are read are %d", len(body), maxBody)
	}
	if err := json.Unmarshal([]byte(body), &e); err != nil {
		return envelope{}, fmt.Errorf("it is not a JSON object of the expected form: %s", text.Visible(err.Error(), maxShown))
	}
	for _, f := range []struct {
		name, value string
		form        form
	}{{"account", e.Account, accountID}, {"AccountId", e.AccountID, accountID}, {"region", e.Region, regionName}, {"id", e.ID, identifier}, {"time", e.Time, moment}} {
		if !f.form.pattern.MatchString(f.value) {
			return envelope{}, fmt.Errorf("its %s is %s, and must be %s", f.name, shown(f.value), f.form.example)
		}
	}
	return e, nil
}

// read returns the values of these fields by their names. The value of a missing field is empty. The error names the first field whose value
// does not have its form.
func read(kind string, detail []byte, fields []field) (map[string]string, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(detail, &all); err != nil {
		return nil, fmt.Errorf("the detail of %q cannot be read: %s", kind, text.Visible(err.Error(), maxShown))
	}
	values := make(map[string]string, len(fields))
	for _, f := range fields {
		var value string
		if raw, given := all[f.name]; given && json.Unmarshal(raw, &value) != nil {
			return nil, fmt.Errorf("%s of %q is not text", f.name, kind)
		}
		if !f.form.pattern.MatchString(value) {
			return nil, fmt.Errorf("%s of %q is %s, and must be %s", f.name, kind, shown(value), f.form.example)
		}
		values[f.name] = value
	}
	return values, nil
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

// interruption returns a notice that one instance is interrupted. identity and the instance distinguish the event from others of its kind, so
// that a repeated message gives the same event: see event.ContentID.
func (m message) interruption(instance string, kind event.Kind, identity ...string) Notice {
	return Notice{About: Interruption, Instance: instance, Event: event.Event{
		ID: event.ContentID(kind, append(identity, instance)...), Kind: kind, State: event.Pending, Noticed: m.at,
	}}
}

// spotNotice is how long EC2 leaves a spot instance after its warning; the message does not say.
const spotNotice = 2 * time.Minute

// spot reads a spot interruption warning.
func spot(m message) ([]Notice, error) {
	n := m.interruption(m.fields["instance-id"], event.SpotInterruption, m.ID, m.Time)
	n.Event.Code, n.Event.Deadline = m.fields["instance-action"], m.at.Add(spotNotice)
	return []Notice{n}, nil
}

// rebalance reads a rebalance recommendation.
func rebalance(m message) ([]Notice, error) {
	return []Notice{m.interruption(m.fields["instance-id"], event.RebalanceRecommendation, m.ID, m.Time)}, nil
}

// stateChange reads an instance's new state. An instance that stops, terminates, or has done so is interrupted. "running" makes a
// notice of its own, which ends an earlier interruption.
func stateChange(m message) ([]Notice, error) {
	n := m.interruption(m.fields["instance-id"], event.StateChange, m.ID, m.Time)
	n.Event.Code = m.fields["state"]
	switch n.Event.Code {
	case "stopping", "shutting-down": // The notice is complete.
	case "stopped", "terminated":
		n.Stopped = true
	case "running":
		n.About = Running
	case "pending":
		return nil, notOurs("the instance %s is only being started", n.Instance)
	default:
		return nil, fmt.Errorf("the instance %s is in an unknown state: %q", n.Instance, n.Event.Code)
	}
	return []Notice{n}, nil
}

// reclaim is how long before the end of a Capacity Block EC2 begins to terminate its instances, and reclaimUltra the same for
// UltraServers. The message does not say which they are, but it is sent ten minutes before that begins:
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-blocks.html.
const reclaim, reclaimUltra = 30 * time.Minute, time.Hour

// capacityBlock reads that a Capacity Block ends soon. The message names the block, not its instances.
func capacityBlock(m message) ([]Notice, error) {
	block, end := m.fields["capacity-reservation-id"], parseTime(m.fields["end-date"])
	n := Notice{About: Interruption, Reservation: block, Event: event.Event{
		ID:   event.ContentID(event.ReservationEnd, block, m.fields["end-date"]),
		Kind: event.ReservationEnd, Code: "capacity-block", State: event.Pending, Noticed: m.at,
	}}
	switch {
	case end.IsZero(): // The message names no end: the event has no deadline.
	case end.Sub(m.at) >= reclaimUltra: // The message came so early that these are UltraServers.
		n.Event.Deadline = end.Add(-reclaimUltra)
	default:
		n.Event.Deadline = end.Add(-reclaim)
	}
	return []Notice{n}, nil
}

// interruptible reads that the owner of an interruptible capacity reservation takes it back.
func interruptible(m message) ([]Notice, error) {
	n := m.interruption(m.fields["instance-id"], event.ReservationEnd, m.ID, m.Time)
	n.Event.Code, n.Event.Deadline = "interruptible", cmp.Or(parseTime(m.fields["instance-termination-time"]), m.at.Add(spotNotice))
	return []Notice{n}, nil
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
func health(m message) ([]Notice, error) {
	if m.fields["service"] != "EC2" || m.fields["eventTypeCategory"] != "scheduledChange" {
		return nil, notOurs("AWS Health writes of %q in %q", m.fields["eventTypeCategory"], m.fields["service"])
	}
	var d struct {
		Descriptions []struct {
			Text string `json:"latestDescription"`
		} `json:"eventDescription"`
		Entities []struct {
			Value  string `json:"entityValue"`
			Status string `json:"status"`
		} `json:"affectedEntities"`
	}
	if err := json.Unmarshal(m.detail, &d); err != nil {
		return nil, fmt.Errorf("the detail of %q cannot be read: %s", m.DetailType, text.Visible(err.Error(), maxShown))
	}
	identity := []string{m.fields["eventArn"]} // It stays the same when AWS Health writes again.
	if identity[0] == "" {
		identity = []string{m.ID, m.Time}
	}
	change := event.Event{Code: m.fields["eventTypeCode"], Deadline: parseTime(m.fields["startTime"]), Until: parseTime(m.fields["endTime"])}
	for _, known := range maintenanceCodes {
		if strings.Contains(change.Code, known.part) {
			change.Code = known.code
			break
		}
	}
	if len(d.Descriptions) > 0 {
		change.Description = text.Visible(d.Descriptions[0].Text, text.Line)
	}
	var notices []Notice
	for _, entity := range d.Entities {
		if !instanceID.pattern.MatchString(entity.Value) {
			continue // A volume, a host, a reservation.
		}
		n := m.interruption(entity.Value, event.ScheduledMaintenance, identity...)
		n.Event.Code, n.Event.Description, n.Event.Deadline, n.Event.Until = change.Code, change.Description, change.Deadline, change.Until
		if m.fields["statusCode"] == "closed" || entity.Status == "RESOLVED" {
			n.Event.State = event.Completed
		}
		notices = append(notices, n)
	}
	if len(notices) == 0 {
		return nil, notOurs("the change %s that AWS Health writes of affects no instance", m.fields["eventTypeCode"])
	}
	return notices, nil
}

// action returns the lifecycle action that a message of Auto Scaling is about.
func (m message) action() *Hook {
	return &Hook{Group: m.fields["AutoScalingGroupName"], Name: m.fields["LifecycleHookName"], Token: m.fields["LifecycleActionToken"]}
}

// terminating reads that Auto Scaling ends an instance, or returns it to a warm pool, and waits at a lifecycle hook.
func terminating(m message) ([]Notice, error) {
	hook := m.action()
	hook.Back = m.fields["Destination"] == "WarmPool"
	n := m.interruption(m.fields["EC2InstanceId"], event.ASGTermination, hook.Group, hook.Name, hook.Token)
	n.Event.Code, n.Hook = "Terminated", hook
	return []Notice{n}, nil
}

// launching reads that Auto Scaling has started an instance, and waits at a lifecycle hook.
func launching(m message) ([]Notice, error) {
	hook := m.action()
	hook.Launch = true
	return []Notice{{About: Launch, Instance: m.fields["EC2InstanceId"], Hook: hook}}, nil
}
