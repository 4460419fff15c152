package sqs_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/sqs"
)

const instance = "i-0b662ef9931388ba0"

var sentAt = time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)

// bridged is an event as EventBridge delivers it.
func bridged(source, kind, detail string) string {
	return fmt.Sprintf(`{"version":"0","id":"1e5527d7-bb36-4607-3370-4164db56a40e","detail-type":%q,"source":%q,"account":"123456789012",
		"time":"2026-03-01T10:00:00Z","region":"eu-central-1","resources":["arn:aws:ec2:eu-central-1:123456789012:instance/%s"],"detail":%s}`,
		kind, source, instance, detail)
}

// published is a message as SNS passes it on to a queue.
func published(message string) string {
	text, _ := json.Marshal(map[string]string{
		"Type": "Notification", "MessageId": "da41e39f", "TopicArn": "arn:aws:sns:eu-central-1:123456789012:t", "Message": message,
	})
	return string(text)
}

func state(s string) string {
	return bridged("aws.ec2", "EC2 Instance State-change Notification", `{"instance-id":"`+instance+`","state":"`+s+`"}`)
}

func lifecycleDetail(transition string) string {
	return `{"LifecycleActionToken":"87654321","AutoScalingGroupName":"group","LifecycleHookName":"hook","EC2InstanceId":"` + instance +
		`","LifecycleTransition":"autoscaling:` + transition + `"}`
}

// direct is what Auto Scaling itself sends to a queue.
func direct(transition string) string {
	return `{"Origin":"AutoScalingGroup","AccountId":"123456789012","RequestId":"3775fac9","Time":"2026-03-01T10:00:00.872Z",` +
		strings.TrimPrefix(lifecycleDetail(transition), "{")
}

func health(code, rest, entities string) string {
	return bridged("aws.health", "AWS Health Event", `{"eventArn":"arn:aws:health:eu-central-1::event/EC2/x","service":"EC2","eventTypeCode":"`+code+
		`","eventTypeCategory":"scheduledChange","startTime":"Sun, 01 Mar 2026 12:00:00 GMT",`+rest+
		`"eventDescription":[{"language":"en_US","latestDescription":"hardware"}],"affectedEntities":[`+entities+`]}`)
}

const entity = `{"entityValue":"` + instance + `","tags":{"stage":"prod"}}`

// summary is what a notice comes to, without the event's ID.
func summary(n sqs.Notice) string {
	text := fmt.Sprintf("%s of %s%s: %s %s %s", n.About, n.Instance, n.Reservation, n.Event.Kind, n.Event.Code, n.Event.State)
	if n.Event.Kind == "" {
		text = fmt.Sprintf("%s of %s", n.About, n.Instance)
	}
	if !n.Event.Deadline.IsZero() {
		text += fmt.Sprintf(" in %s", n.Event.Deadline.Sub(sentAt))
	}
	if n.Hook != nil {
		text += fmt.Sprintf(" at %s/%s/%s", n.Hook.Group, n.Hook.Name, n.Hook.Token)
		if n.Hook.Launch != (n.About == sqs.Launch) {
			text += ", where it does not wait"
		}
		if n.Hook.Back {
			text += " back to the warm pool"
		}
	}
	if n.Stopped {
		text += " stopped"
	}
	return text
}

// understood are messages and what they say.
var understood = map[string]struct{ body, want string }{
	"a spot interruption has two minutes": {
		bridged("aws.ec2", "EC2 Spot Instance Interruption Warning", `{"instance-id":"`+instance+`","instance-action":"stop"}`),
		"interruption of " + instance + ": spot-interruption stop pending in 2m0s",
	},
	"a rebalance recommendation has no time": {
		bridged("aws.ec2", "EC2 Instance Rebalance Recommendation", `{"instance-id":"`+instance+`"}`),
		"interruption of " + instance + ": rebalance-recommendation  pending",
	},
	"an instance stops":         {state("stopping"), "interruption of " + instance + ": state-change stopping pending"},
	"an instance is terminated": {state("shutting-down"), "interruption of " + instance + ": state-change shutting-down pending"},
	"an instance has stopped":   {state("stopped"), "interruption of " + instance + ": state-change stopped pending stopped"},
	"an instance is gone":       {state("terminated"), "interruption of " + instance + ": state-change terminated pending stopped"},
	"an instance runs":          {state("running"), "running of " + instance + ": state-change running pending"},
	"a retirement": {
		health("AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED", "", entity),
		"interruption of " + instance + ": scheduled-maintenance instance-retirement pending in 2h0m0s",
	},
	"a reboot": {
		health("AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED", "", entity),
		"interruption of " + instance + ": scheduled-maintenance instance-reboot pending in 2h0m0s",
	},
	"a reboot of the host": {
		health("AWS_EC2_SYSTEM_REBOOT_MAINTENANCE_SCHEDULED", "", entity),
		"interruption of " + instance + ": scheduled-maintenance system-reboot pending in 2h0m0s",
	},
	"maintenance of the host": {
		health("AWS_EC2_DEDICATED_HOST_NETWORK_MAINTENANCE_SCHEDULED", "", entity),
		"interruption of " + instance + ": scheduled-maintenance system-maintenance pending in 2h0m0s",
	},
	"a change that nobody knows yet": {
		health("AWS_EC2_NOVELTY_SCHEDULED", "", entity),
		"interruption of " + instance + ": scheduled-maintenance AWS_EC2_NOVELTY_SCHEDULED pending in 2h0m0s",
	},
	"a change that is over": {
		health("AWS_EC2_INSTANCE_STOP_SCHEDULED", `"statusCode":"closed",`, entity),
		"interruption of " + instance + ": scheduled-maintenance instance-stop completed in 2h0m0s",
	},
	"a change of several instances, one of which is through, and of a volume": {
		health("AWS_EC2_INSTANCE_STOP_SCHEDULED", "", entity+`,{"entityValue":"vol-0123456789abcdef0"},{"entityValue":"i-0123456789abcdef1","status":"RESOLVED"}`),
		"interruption of " + instance + ": scheduled-maintenance instance-stop pending in 2h0m0s, " +
			"interruption of i-0123456789abcdef1: scheduled-maintenance instance-stop completed in 2h0m0s",
	},
	"a termination through EventBridge": {
		bridged("aws.autoscaling", "EC2 Instance-terminate Lifecycle Action", lifecycleDetail("EC2_INSTANCE_TERMINATING")),
		"interruption of " + instance + ": asg-termination Terminated pending at group/hook/87654321",
	},
	"a return to the warm pool": {
		bridged("aws.autoscaling", "EC2 Instance-terminate Lifecycle Action",
			strings.Replace(lifecycleDetail("EC2_INSTANCE_TERMINATING"), "{", `{"Origin":"AutoScalingGroup","Destination":"WarmPool",`, 1)),
		"interruption of " + instance + ": asg-termination Terminated pending at group/hook/87654321 back to the warm pool",
	},
	"a launch through EventBridge": {
		bridged("aws.autoscaling", "EC2 Instance-launch Lifecycle Action", lifecycleDetail("EC2_INSTANCE_LAUNCHING")),
		"launch of " + instance + " at group/hook/87654321",
	},
	"a termination from Auto Scaling": {
		direct("EC2_INSTANCE_TERMINATING"), "interruption of " + instance + ": asg-termination Terminated pending at group/hook/87654321",
	},
	"a launch from Auto Scaling": {direct("EC2_INSTANCE_LAUNCHING"), "launch of " + instance + " at group/hook/87654321"},
	"the end of a Capacity Block, whose instances go half an hour before": {
		bridged("aws.ec2", "Capacity Block Reservation Expiration Warning", `{"capacity-reservation-id":"cr-0123","end-date":"2026-03-01T10:40:00Z"}`),
		"interruption of cr-0123: reservation-end capacity-block pending in 10m0s",
	},
	"the end of a Capacity Block of UltraServers, whose instances go an hour before": {
		bridged("aws.ec2", "Capacity Block Reservation Expiration Warning", `{"capacity-reservation-id":"cr-0123","end-date":"2026-03-01T11:10:00Z"}`),
		"interruption of cr-0123: reservation-end capacity-block pending in 10m0s",
	},
	"an interruptible reservation wanted back": {
		bridged("aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning",
			`{"instance-id":"`+instance+`","instance-action":"terminate","instance-termination-time":"2026-03-01T10:02:00Z"}`),
		"interruption of " + instance + ": reservation-end interruptible pending in 2m0s",
	},
}

func TestWhatMessagesSay(t *testing.T) {
	t.Parallel()
	rows := maps.Clone(understood)
	for name, row := range understood {
		row.body = published(row.body)
		rows[name+", by SNS"] = row
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			notices, err := sqs.Parse(row.body)
			if err != nil {
				t.Fatalf("not understood: %v", err)
			}
			var said []string
			for _, n := range notices {
				said = append(said, summary(n))
			}
			if got := strings.Join(said, ", "); got != row.want {
				t.Errorf("says  %s\n want %s", got, row.want)
			}
		})
	}
}

func TestWhatConcernsNobodyIsToldFromWhatCannotBeUnderstood(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		body   string
		poison bool
	}{
		"a test of Auto Scaling's":          {body: `{"Service":"AWS Auto Scaling","Time":"2026-03-01T10:00:00Z","Event":"autoscaling:TEST_NOTIFICATION"}`},
		"a test transition":                 {body: strings.Replace(direct("X"), "autoscaling:X", "autoscaling:TEST_NOTIFICATION", 1)},
		"an instance that is being started": {body: state("pending")},
		"another event of EC2's":            {body: bridged("aws.ec2", "EC2 AMI State Change", `{}`)},
		"another event of Auto Scaling's":   {body: bridged("aws.autoscaling", "EC2 Instance Launch Successful", `{}`)},
		"somebody else's event":             {body: bridged("my.shop", "EC2 Spot Instance Interruption Warning", `{}`)},
		"a Capacity Block that begins":      {body: bridged("aws.ec2", "Capacity Block Reservation Delivered", `{}`)},
		"an issue of AWS Health's":          {body: strings.Replace(health("X", "", entity), "scheduledChange", "issue", 1)},
		"a change of another service":       {body: strings.Replace(health("X", "", entity), `"service":"EC2"`, `"service":"RDS"`, 1)},
		"a change of a volume":              {body: health("X", "", `{"entityValue":"vol-0123456789abcdef0"}`)},
		"SNS's own word":                    {body: `{"Type":"SubscriptionConfirmation","TopicArn":"arn:aws:sns:x","Message":"You have chosen","SubscribeURL":"x"}`},

		"nothing":                          {body: "", poison: true},
		"a text":                           {body: "hello", poison: true},
		"an array":                         {body: "[]", poison: true},
		"an empty object":                  {body: "{}", poison: true},
		"an SNS message of a text":         {body: published("hello"), poison: true},
		"a spot interruption of nothing":   {body: bridged("aws.ec2", "EC2 Spot Instance Interruption Warning", `{"instance-id":""}`), poison: true},
		"one of something else":            {body: bridged("aws.ec2", "EC2 Spot Instance Interruption Warning", `{"instance-id":"../nodes"}`), poison: true},
		"one without detail":               {body: `{"source":"aws.ec2","detail-type":"EC2 Spot Instance Interruption Warning"}`, poison: true},
		"a state nobody knows":             {body: state("stop"), poison: true},
		"no state":                         {body: state(""), poison: true},
		"a lifecycle action without group": {body: strings.Replace(direct("EC2_INSTANCE_TERMINATING"), `"group"`, `""`, 1), poison: true},
		"an unknown lifecycle action":      {body: direct("EC2_INSTANCE_DANCING"), poison: true},
		"a Capacity Block without an ID":   {body: bridged("aws.ec2", "Capacity Block Reservation Expiration Warning", `{}`), poison: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			notices, err := sqs.Parse(row.body)
			var stranger sqs.NotOursError
			var poison sqs.PoisonError
			if len(notices) > 0 || row.poison != errors.As(err, &poison) || row.poison == errors.As(err, &stranger) {
				t.Errorf("%v, %v; want it to be poison: %t", notices, err, row.poison)
			}
		})
	}
}

func TestAnEventHasTheSameNameWheneverItIsToldAgain(t *testing.T) {
	t.Parallel()
	name := func(body string) []string {
		notices, err := sqs.Parse(body)
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, n := range notices {
			ids = append(ids, n.Event.ID)
		}
		return ids
	}
	two := entity + `,{"entityValue":"i-0123456789abcdef1"}`
	change := name(health("AWS_EC2_INSTANCE_STOP_SCHEDULED", "", two))
	if change[0] == change[1] {
		t.Errorf("two instances share the event %s", change[0])
	}
	over := name(strings.Replace(health("AWS_EC2_INSTANCE_STOP_SCHEDULED", `"statusCode":"closed",`, two), "1e5527d7", "2e5527d7", 1))
	if !reflect.DeepEqual(change, over) {
		t.Errorf("a change is %v, and %v when it is over", change, over)
	}
	byBridge := name(bridged("aws.autoscaling", "EC2 Instance-terminate Lifecycle Action", lifecycleDetail("EC2_INSTANCE_TERMINATING")))
	if byQueue := name(direct("EC2_INSTANCE_TERMINATING")); !reflect.DeepEqual(byBridge, byQueue) {
		t.Errorf("a lifecycle action is %v through EventBridge and %v directly", byBridge, byQueue)
	}
	if first, second := name(state("stopping")), name(strings.Replace(state("stopping"), "1e5527d7", "2e5527d7", 1)); first[0] == second[0] {
		t.Errorf("two stops share the event %s", first[0])
	}
}

func FuzzParse(f *testing.F) {
	for _, row := range understood {
		f.Add(row.body)
		f.Add(published(row.body))
	}
	kinds := map[event.Kind]bool{"": true}
	for _, kind := range event.QueuedKinds() {
		kinds[kind] = true
	}
	f.Fuzz(func(t *testing.T, body string) {
		notices, err := sqs.Parse(body)
		var stranger sqs.NotOursError
		var poison sqs.PoisonError
		if err != nil && !errors.As(err, &stranger) && !errors.As(err, &poison) {
			t.Fatalf("an error without a verdict: %v", err)
		}
		if (err == nil) == (len(notices) == 0) {
			t.Fatalf("%d notices and the error %v", len(notices), err)
		}
		for _, n := range notices {
			if (n.Instance == "") == (n.Reservation == "") || !kinds[n.Event.Kind] || n.About == sqs.Interruption && n.Event.ID == "" {
				t.Fatalf("a notice that makes no sense: %+v", n)
			}
		}
	})
}

func TestWhatDoesNotTellWhenItIsOfIsAsOldAsItsMessage(t *testing.T) {
	t.Parallel()
	const undated = `{"source":"aws.ec2","detail-type":"EC2 Instance State-change Notification","id":"1",` +
		`"detail":{"instance-id":"i-0123456789abcdef0","state":"stopping"}}`
	const dated = `{"source":"aws.ec2","detail-type":"EC2 Instance State-change Notification","id":"2","time":"2026-03-01T12:00:00Z",` +
		`"detail":{"instance-id":"i-0123456789abcdef0","state":"stopping"}}`
	// A time that no clock shows is none.
	const beyond = `{"source":"aws.ec2","detail-type":"EC2 Instance State-change Notification","id":"3","time":"9999-12-31T23:59:59-01:00",` +
		`"detail":{"instance-id":"i-0123456789abcdef0","state":"stopping"}}`
	for body, want := range map[string]time.Time{undated: {}, dated: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), beyond: {}} {
		r := consume(t, newServer(t), nil)
		r.Send(body)
		l := r.lease(t)
		if want.IsZero() {
			want = l.Sent
		}
		if noticed := l.Notices[0].Event.Noticed; noticed.IsZero() || !noticed.Equal(want) {
			t.Errorf("it was noticed at %s, want %s", noticed, want)
		}
		l.Done()
	}
}
