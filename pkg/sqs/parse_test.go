package sqs_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/sqs"
)

const (
	instance = "i-0b662ef9931388ba0"
	account  = "123456789012"
)

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
	"the end of a Capacity Block, whose instances go in ten minutes": {
		bridged("aws.ec2", "Capacity Block Reservation Expiration Warning", `{"capacity-reservation-id":"cr-0123456789abcdef0","end-date":"2026-03-01T10:40:00Z"}`),
		"interruption of cr-0123456789abcdef0: reservation-end capacity-block pending in 10m0s",
	},
	"an interruptible reservation wanted back": {
		bridged("aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning",
			`{"instance-id":"`+instance+`","instance-action":"terminate","instance-termination-time":"2026-03-01T10:02:00Z"}`),
		"interruption of " + instance + ": reservation-end interruptible pending in 2m0s",
	},
}

func TestParse_Understands(t *testing.T) {
	t.Parallel()
	rows := maps.Clone(understood)
	for name, row := range understood {
		row.body = published(row.body)
		rows[name+", by SNS"] = row
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, err := sqs.Parse(row.body, account, sentAt)
			if err != nil {
				t.Fatalf("not understood: %v", err)
			}
			if got := summary(n); got != row.want {
				t.Errorf("says  %s\n want %s", got, row.want)
			}
		})
	}
}

// notified is what Auto Scaling writes to a topic about each launch and termination, whether a hook waits or not.
func notified(event string) string {
	return `{"Progress":50,"AccountId":"123456789012","Description":"Terminating EC2 instance: ` + instance + `","RequestId":"a",
		"AutoScalingGroupARN":"arn:aws:autoscaling:eu-central-1:123456789012:autoScalingGroup:x:autoScalingGroupName/group",
		"Service":"AWS Auto Scaling","Time":"2026-03-01T10:00:00.000Z","EC2InstanceId":"` + instance + `","StatusCode":"InProgress",
		"Details":{"Subnet ID":"subnet-1"},"AutoScalingGroupName":"group","Cause":"At 2026","Event":"autoscaling:` + event + `"}`
}

const spot = "EC2 Spot Instance Interruption Warning"

func TestParse_LeavesWhatIsNotOurs(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"a test of Auto Scaling's":          `{"Service":"AWS Auto Scaling","Time":"2026-03-01T10:00:00Z","Event":"autoscaling:TEST_NOTIFICATION"}`,
		"a test transition":                 direct("TEST_NOTIFICATION"),
		"an instance in an unknown state":   state("stop"),
		"a notification of a termination":   notified("EC2_INSTANCE_TERMINATE"),
		"a notification of a failed launch": strings.Replace(notified("EC2_INSTANCE_LAUNCH_ERROR"), instance, "", 2),
		"an instance that is being started": state("pending"),
		"another event of EC2's":            bridged("aws.ec2", "EC2 AMI State Change", `{}`),
		"another event of Auto Scaling's":   bridged("aws.autoscaling", "EC2 Instance Launch Successful", `{}`),
		"an event of no service of AWS":     bridged("my.shop", spot, `{}`),
		"a Capacity Block that begins":      bridged("aws.ec2", "Capacity Block Reservation Delivered", `{}`),
		"maintenance, which EC2 lists":      bridged("aws.health", "AWS Health Event", `{"service":"EC2"}`),
		"SNS's own message":                 `{"Type":"SubscriptionConfirmation","TopicArn":"arn:aws:sns:x","Message":"You have chosen","SubscribeURL":"x"}`,
		"an event of another account":       strings.Replace(state("stopping"), account, "210987654321", 1),
		"an action in another account":      strings.Replace(direct("EC2_INSTANCE_TERMINATING"), account, "210987654321", 1),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, err := sqs.Parse(body, account, sentAt)
			if _, notOurs := errors.AsType[sqs.NotOursError](err); !notOurs {
				t.Errorf("says %+v, %v; want it to be not ours", n, err)
			}
		})
	}
}

func TestParse_RefusesTheRest(t *testing.T) {
	t.Parallel()
	hooked := direct("EC2_INSTANCE_TERMINATING")
	for name, row := range map[string]struct{ body, want string }{
		"nothing":                  {"", "not a JSON object"},
		"a text":                   {"hello", "not a JSON object"},
		"an array":                 {"[]", "not a JSON object"},
		"an empty object":          {"{}", "neither an EventBridge event"},
		"an SNS message of a text": {published("hello"), "not a JSON object"},
		"SNS in SNS":               {published(published(state("stopping"))), "neither an EventBridge event"},
		"more than SQS allows":     {state("stopping") + strings.Repeat(" ", 1<<20), "; nth-queue reads at most 1048576"},
		"what is nested too deep":  {`{"a":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + `}`, "not a JSON object"},
		"no instance":              {bridged("aws.ec2", spot, `{"instance-id":""}`), `"aws.ec2/` + spot + `": the instance is "", but must be an instance ID`},
		"a path for an instance":   {bridged("aws.ec2", spot, `{"instance-id":"../nodes"}`), `is "../nodes", but must be an instance ID`},
		"an instance that is long": {bridged("aws.ec2", spot, `{"instance-id":"i-`+strings.Repeat("0", 5000)+`"}`), `…", but must be an instance ID`},
		"a number for an instance": {bridged("aws.ec2", spot, `{"instance-id":7}`), "not a JSON object of the expected form"},
		"an action that is markup": {bridged("aws.ec2", spot, `{"instance-id":"`+instance+`","instance-action":"<!channel>"}`), `the code is "<!channel>"`},
		"no detail":                {`{"source":"aws.ec2","detail-type":"` + spot + `"}`, "not a JSON object"},
		"no group":                 {strings.Replace(hooked, `"group"`, `""`, 1), `the group is ""`},
		"a group of two lines":     {strings.Replace(hooked, `"group"`, `"a\nb"`, 1), `is "a\nb", but must be the name of a group`},
		"no hook":                  {strings.Replace(hooked, `"hook"`, `""`, 1), `the hook is ""`},
		"a token that is a line":   {strings.Replace(hooked, `"87654321"`, `"a\nb"`, 1), `the token is "a\nb"`},
		"no reservation":           {bridged("aws.ec2", "Capacity Block Expiration Warning", `{}`), "must be a capacity reservation's ID"},
		"every reservation":        {bridged("aws.ec2", "Capacity Block Expiration Warning", `{"capacity-reservation-id":"*"}`), `is "*"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, err := sqs.Parse(row.body, account, sentAt)
			_, notOurs := errors.AsType[sqs.NotOursError](err)
			if notOurs || err == nil || !strings.Contains(err.Error(), row.want) {
				t.Fatalf("says %+v, %v; want an error with %q", n, err, row.want)
			}
			if text := err.Error(); len(text) > 500 || strings.ContainsAny(text, "\n\x1b") {
				t.Errorf("the error is no short line: %q", text)
			}
		})
	}
}

func TestParse_ARepeatedEventKeepsItsID(t *testing.T) {
	t.Parallel()
	name := func(body string) string {
		n, err := sqs.Parse(body, account, sentAt)
		if err != nil {
			t.Fatal(err)
		}
		return n.Event.ID
	}
	byBridge := name(bridged("aws.autoscaling", "EC2 Instance-terminate Lifecycle Action", lifecycleDetail("EC2_INSTANCE_TERMINATING")))
	if byQueue := name(direct("EC2_INSTANCE_TERMINATING")); byBridge != byQueue {
		t.Errorf("a lifecycle action is %v through EventBridge and %v directly", byBridge, byQueue)
	}
	if first, second := name(state("stopping")), name(strings.Replace(state("stopping"), "1e5527d7", "2e5527d7", 1)); first == second {
		t.Errorf("two stops share the event %s", first)
	}
}

// A message that does not say when it happened, or a time that no clock shows, did so when it was sent. So a spot instance has two minutes
// from then.
func TestParse_AnEventWithoutTimeIsAsOldAsItsMessage(t *testing.T) {
	t.Parallel()
	sent := sentAt.Add(-time.Hour)
	body := understood["a spot interruption has two minutes"].body
	for said, want := range map[string]time.Time{
		`"2026-03-01T10:00:00Z"`: sentAt, `""`: sent, `"yesterday"`: sent, `"9999-12-31T23:59:59-01:00"`: sent,
	} {
		n, err := sqs.Parse(strings.Replace(body, `"2026-03-01T10:00:00Z"`, said, 1), account, sent)
		if err != nil {
			t.Fatal(err)
		}
		if ev := n.Event; !ev.Noticed.Equal(want) || !ev.Deadline.Equal(want.Add(2*time.Minute)) {
			t.Errorf("of %s, it was noticed at %s until %s, want %s", said, ev.Noticed, ev.Deadline, want)
		}
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
	hostile := regexp.MustCompile(`[^ -~]`)
	f.Fuzz(func(t *testing.T, body string) {
		n, err := sqs.Parse(body, account, sentAt)
		if err != nil {
			if len(err.Error()) > 1000 || strings.ContainsAny(err.Error(), "\n\r\x1b") {
				t.Fatalf("an error that is no short line: %q", err)
			}
			return
		}
		if (n.Instance == "") == (n.Reservation == "") || !kinds[n.Event.Kind] || n.About == sqs.Interruption && n.Event.ID == "" {
			t.Fatalf("a notice that makes no sense: %+v", n)
		}
		texts := n.Instance + n.Reservation + n.Event.Code
		if n.Hook != nil {
			texts += n.Hook.Group + n.Hook.Name + n.Hook.Token
		}
		if hostile.MatchString(texts) || len(texts) > 1000 {
			t.Fatalf("text of an alphabet of its own: %+v", n)
		}
	})
}

func TestParseURL_KnowsEveryFormOfAQueuesAddress(t *testing.T) {
	t.Parallel()
	const path = "/123456789012/i"
	for address, want := range map[string]sqs.Address{
		"https://sqs.eu-central-1.amazonaws.com" + path + "/":                           {"eu-central-1", "123456789012", "i"},
		"https://sqs.cn-north-1.amazonaws.com.cn" + path:                                {"cn-north-1", "123456789012", "i"},
		"https://sqs.us-gov-west-1.amazonaws.com" + path:                                {"us-gov-west-1", "123456789012", "i"},
		"https://sqs.us-iso-east-1.c2s.ic.gov" + path:                                   {"us-iso-east-1", "123456789012", "i"},
		"https://sqs.us-isob-east-1.sc2s.sgov.gov" + path:                               {"us-isob-east-1", "123456789012", "i"},
		"https://sqs.eusc-de-east-1.amazonaws.eu" + path:                                {"eusc-de-east-1", "123456789012", "i"},
		"https://sqs-fips.us-east-1.amazonaws.com" + path:                               {"us-east-1", "123456789012", "i"},
		"https://sqs.us-east-1.api.aws" + path:                                          {"us-east-1", "123456789012", "i"},
		"https://us-west-2.queue.amazonaws.com" + path:                                  {"us-west-2", "123456789012", "i"},
		"https://vpce-0a1b2c3d4e5f-abcdefgh.sqs.eu-central-1.vpce.amazonaws.com" + path: {"eu-central-1", "123456789012", "i"},
		"http://127.0.0.1:4566" + path:                                                  {"", "123456789012", "i"},
		"https://proxy.eu-central-1.example.com" + path:                                 {"", "123456789012", "i"},
		"https://sqs.eu-central-1.amazonaws.com/i":                                      {"eu-central-1", "", ""},
		"://": {},
	} {
		if got := sqs.ParseURL(address); got != want {
			t.Errorf("%s is %+v, want %+v", address, got, want)
		}
	}
}

func TestResource_IsTheARNWithoutItsPartition(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"https://sqs.eu-central-1.amazonaws.com/123456789012/i": ":sqs:eu-central-1:123456789012:i",
		"https://localhost:4566/123456789012/i":                 ":sqs:us-east-1:123456789012:i",
		"https://sqs.eu-central-1.amazonaws.com/i":              "",
	} {
		if got := sqs.ParseURL(address).Resource("us-east-1"); got != want {
			t.Errorf("%s is %q, want %q", address, got, want)
		}
	}
}
