package sqs_test

import (
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/sqs/sqstest"
)

// look returns somebody who looks at the server's queue, and does not read it.
func look(server *sqstest.Server) *sqs.Queue {
	return sqs.New(sqs.Options{
		URL: server.URL(), Visibility: 20 * time.Second,
		AWS: aws.Config{
			Region: "eu-central-1", BaseEndpoint: new(server.Endpoint()), Credentials: aws.AnonymousCredentials{},
			Retryer: func() aws.Retryer { return aws.NopRetryer{} },
		},
	})
}

// actions are the requests that a right is for.
var actions = map[string]string{
	"sqs:ReceiveMessage": "ReceiveMessage", "sqs:DeleteMessage": "DeleteMessageBatch", "sqs:ChangeMessageVisibility": "ChangeMessageVisibilityBatch",
}

func TestEachRightIsTriedByItsOwnRequest(t *testing.T) {
	t.Parallel()
	for _, denied := range sqs.Rights() {
		server := newServer(t)
		server.Always(actions[denied.Name], sqstest.Deny())
		for _, right := range sqs.Rights() {
			allowed, err := look(server).May(t.Context(), right)
			if want := right.Name != denied.Name; allowed != want || err != nil {
				t.Errorf("without %s, %s is allowed: %t (%v), want %t", denied.Name, right.Name, allowed, err, want)
			}
		}
	}
}

func TestARightThatCannotBeTriedIsNeitherAllowedNorRefused(t *testing.T) {
	t.Parallel()
	for _, right := range sqs.Rights() {
		server := newServer(t)
		server.Always(actions[right.Name], sqstest.Refuse("QueueDoesNotExist", "there is none"))
		if allowed, err := look(server).May(t.Context(), right); allowed || err == nil {
			t.Errorf("%s is allowed: %t (%v), want an error", right.Name, allowed, err)
		}
	}
}

func TestTryingRightsReceivesNothingAndTouchesNothing(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	server.Send(state("stopping"))
	for _, right := range sqs.Rights() {
		if _, err := look(server).May(t.Context(), right); err != nil {
			t.Error(err)
		}
	}
	if server.Visible() != 1 || server.InFlight() != 0 {
		t.Errorf("%d messages wait and %d are in flight, want the one to wait", server.Visible(), server.InFlight())
	}
	if l := consume(t, server, nil).lease(t); l.Receives != 1 {
		t.Errorf("the message has been received %d times, want this once", l.Receives)
	}
}

func TestTheAttributesOfAQueueAreRead(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	server.Send("one", "two")
	const dead = "arn:aws:sqs:eu-central-1:123456789012:dead-letters"
	want := sqs.Attributes{Visible: 2, Retention: 14 * 24 * time.Hour, DeadLetters: dead, MaxReceives: 100, Policy: true}
	mustSay := func(want sqs.Attributes) {
		t.Helper()
		if found, allowed, err := look(server).Check(t.Context()); found != want || !allowed || err != nil {
			t.Errorf("the queue says %+v (%t, %v), want %+v", found, allowed, err, want)
		}
	}
	mustSay(want)

	server.Say("DelaySeconds", "90")
	server.Say("KmsMasterKeyId", "alias/ours")
	server.Say("FifoQueue", "true")
	server.Say("Policy", "")
	server.Say("RedrivePolicy", `{"deadLetterTargetArn":"`+dead+`","maxReceiveCount":"5"}`)
	mustSay(sqs.Attributes{
		Visible: 2, Retention: 14 * 24 * time.Hour, Delay: 90 * time.Second, DeadLetters: dead, MaxReceives: 5,
		Key: "alias/ours", FIFO: true,
	})

	server.Say("RedrivePolicy", "")
	if found, _, err := look(server).Check(t.Context()); found.DeadLetters != "" || err != nil {
		t.Errorf("the queue says %+v (%v)", found, err)
	}
}

func TestAttributesMayBeKeptFromWhoeverAsks(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	server.Always("GetQueueAttributes", sqstest.Deny())
	if _, allowed, err := look(server).Check(t.Context()); allowed || err != nil {
		t.Errorf("allowed: %t (%v)", allowed, err)
	}
	server.Always("GetQueueAttributes", sqstest.Unavailable())
	if _, _, err := look(server).Check(t.Context()); err == nil {
		t.Error("a service that is not well is no error")
	}
}

func TestAMessageThatWaitsIsReceivedTwiceADay(t *testing.T) {
	t.Parallel()
	for waiting, want := range map[time.Duration]int{time.Minute: 2, 24 * time.Hour: 4, 14 * 24 * time.Hour: 30} {
		if got := sqs.Receives(waiting); got != want {
			t.Errorf("in %s it is received %d times, want %d", waiting, got, want)
		}
	}
}
