package queue

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"strings"
	"time"

	"github.com/nth-project/nth/pkg/event"
)

// envelope has the fields of all three that a message can come in: EventBridge's, Auto Scaling's own, and SNS's, which
// holds another one.
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
	e, err := open(body)
	if err != nil {
		return nil, err
	}
	if e.TopicARN != "" {
		if e.Type != "" && e.Type != "Notification" {
			return nil, notOurs("SNS writes of its subscription (%s)", e.Type)
		}
		if e, err = open(e.Message); err != nil {
			return nil, err
		}
	}
	if e.DetailType == "" && e.Source == "" {
		return e.direct()
	}
	return e.bridged()
}

func open(body string) (envelope, error) {
	var e envelope
	if err := json.Unmarshal([]byte(body), &e); err != nil {
		return envelope{}, poison("it is not a JSON object of the expected form: %v", err)
	}
	return e, nil
}

// bridged reads what EventBridge delivers. Kinds of events are compared whole: EC2 has many, with names that are alike.
func (e envelope) bridged() ([]Notice, error) {
	switch e.Source + "/" + e.DetailType {
	case "aws.ec2/EC2 Spot Instance Interruption Warning":
		return e.spot()
	case "aws.ec2/EC2 Instance Rebalance Recommendation":
		return e.rebalance()
	case "aws.ec2/EC2 Instance State-change Notification":
		return e.stateChange()
	case "aws.ec2/Capacity Block Reservation Expiration Warning", "aws.ec2/Capacity Block Expiration Warning":
		return e.capacityBlock()
	case "aws.ec2/EC2 Capacity Reservation Instance Interruption Warning",
		"aws.ec2/EC2 Interruptible Capacity Reservation Instance Interruption Warning":
		return e.interruptible()
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

// detail decodes the part that is particular to a kind of event.
func (e envelope) detail(into any) error {
	if err := json.Unmarshal(e.Detail, into); err != nil {
		return poison("the detail of the event %q cannot be read: %v", e.DetailType, err)
	}
	return nil
}

// time is when the event happened; zero if the envelope does not tell.
func (e envelope) time() time.Time { return moment(e.Time) }

// moment reads a time as EventBridge and Auto Scaling write it; zero if it is none that can be believed.
func moment(text string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}
	}
	return event.CredibleTime(t)
}

var instanceID = regexp.MustCompile(`^i-[0-9a-f]{8,32}$`)

// about begins an interruption of one instance; what makes the event this one and no other is in identity.
func (e envelope) about(instance string, kind event.Kind, identity ...string) (Notice, error) {
	if !instanceID.MatchString(instance) {
		return Notice{}, poison("the event %q is of no instance: %q", e.DetailType, instance)
	}
	return Notice{
		About: Interruption, Instance: instance,
		Event: event.Event{ID: nameOf(kind, append(identity, instance)...), Kind: kind, State: event.Pending, Noticed: e.time()},
	}, nil
}

// nameOf makes an event's ID from what distinguishes it.
func nameOf(kind event.Kind, identity ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(identity, "\n")))
	return string(kind) + "-" + hex.EncodeToString(sum[:8])
}
