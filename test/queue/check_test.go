package queue_test

import (
	"fmt"
	"regexp"
	"testing"

	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/region"
)

// The answers are those of an SQS that others have written: pkg/sqs has a stand-in of our own.
func TestCheck_TriesEveryRightAndLeavesTheMessagesAlone(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	node, id := s.add(t)
	consumer := daemon.StartQueue(t, daemon.QueueOptions{Kubeconfig: s.kubeconfig, URL: region.New(t).QueueURL, Endpoint: s.URL})
	consumer.WaitStatus(t, "reading the queue")
	consumer.Stop(t)
	consumer.Configure(t, fmt.Sprintf("[queue]\nurl = %q\n", s.QueueURL)) // which nobody has read
	s.Send(t, region.Spot(id))

	mustSay(t, check(t, consumer),
		`ok    queue       1 message waiting, 0 in flight`,
		`warn  queue       messages are kept for 96h0m0s \(MessageRetentionPeriod\): .*`, // SQS's default
		`warn  queue       it has no dead-letter queue \(RedrivePolicy\): .*`,
		`ok    right       sqs:ReceiveMessage`,
		`ok    right       sqs:ChangeMessageVisibility`,
		`ok    right       sqs:DeleteMessage`,
		`ok    identity    nth-queue-on-a-host, by the client certificate .* in /.*, for https://.*`,
		`ok    right       create pods/eviction.*`,
		`.* nodes.*`,
		`ok    right       ec2:DescribeInstances`,
		`ok    right       ec2:DescribeInstanceStatus`,
	)
	if visible, inFlight := s.Count(t); visible != 1 || inFlight != 0 {
		t.Errorf("%d messages can be seen and %d are in flight, want the one to be seen", visible, inFlight)
	}
	if got := s.Received(); len(got) > 0 {
		t.Errorf("it has received %v", got)
	}
	if n := node.Object(t); n.Spec.Unschedulable {
		t.Error("the node is cordoned")
	}
}

// check runs "nth-queue check", which must not fail, and returns what it says.
func check(t *testing.T, consumer *daemon.Daemon) string {
	t.Helper()
	said, err := consumer.Ask("check")
	if err != nil {
		t.Errorf("nth-queue check: %v\n%s", err, said)
	}
	return said
}

// mustSay fails the test unless each pattern matches a whole line.
func mustSay(t *testing.T, said string, patterns ...string) {
	t.Helper()
	for _, pattern := range patterns {
		if !regexp.MustCompile(`(?m)^` + pattern + `$`).MatchString(said) {
			t.Errorf("there is no line %q in\n%s", pattern, said)
		}
	}
}
