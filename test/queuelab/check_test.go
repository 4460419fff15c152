package queuelab_test

import (
	"fmt"
	"regexp"
	"testing"

	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/region"
)

// What no SQS would answer so cannot be told from a stand-in of our own.
func TestCheckTriesEveryRightAndLeavesTheMessagesAlone(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	node, id := s.add(t)
	consumer := daemon.StartQueue(t, daemon.QueueOptions{Kubeconfig: s.kubeconfig, URL: region.New(t).QueueURL, Endpoint: s.URL})
	consumer.WaitStatus(t, "reading the queue")
	consumer.Stop(t)
	consumer.Configure(t, fmt.Sprintf("[queue]\nurl = %q\n", s.QueueURL)) // which nobody has read
	s.Send(t, region.Spot(id))

	said, err := consumer.Ask("check")
	if err != nil {
		t.Errorf("nth-queue check: %v", err)
	}
	for _, want := range []string{
		`ok    queue       1 messages wait, 0 are being worked on`,
		`warn  queue       messages are kept for 4 days \(MessageRetentionPeriod\): .*`, // SQS's default
		`warn  queue       it has no dead-letter queue \(RedrivePolicy\): .*`,
		`ok    right       sqs:ReceiveMessage: not refused, .*`,
		`ok    right       sqs:ChangeMessageVisibility`,
		`ok    right       sqs:DeleteMessage`,
		`ok    identity    nth-queue-on-a-host, by .*`,
		`ok    right       ec2:DescribeInstances`,
		`ok    right       ec2:DescribeInstanceStatus`,
	} {
		if !regexp.MustCompile(`(?m)^` + want + `$`).MatchString(said) {
			t.Errorf("there is no line %q in\n%s", want, said)
		}
	}
	if visible, inFlight := s.Count(t); visible != 1 || inFlight != 0 {
		t.Errorf("%d messages can be seen and %d are in flight, want the one to be seen", visible, inFlight)
	}
	if got := s.Received(); len(got) > 0 {
		t.Errorf("it has received %v", got)
	}
	if n := node.Object(t); n.Spec.Unschedulable || n.Annotations["nth-project.github.io/queue"] != "" {
		t.Error("the node is cordoned or claimed")
	}
}
