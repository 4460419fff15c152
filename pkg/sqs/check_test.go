package sqs_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
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
			Region: "eu-central-1", Credentials: aws.AnonymousCredentials{},
			Retryer: func() aws.Retryer { return aws.NopRetryer{} },
		},
	})
}

// actions are the requests that a right is for.
var actions = map[string]string{
	"sqs:ReceiveMessage": "ReceiveMessage", "sqs:DeleteMessage": "DeleteMessageBatch", "sqs:ChangeMessageVisibility": "ChangeMessageVisibilityBatch",
}

func TestMay_tries_each_right_by_its_own_request(t *testing.T) {
	t.Parallel()
	for _, denied := range sqs.Rights() {
		server := newServer(t)
		server.Always(actions[denied.Name], sqstest.Deny())
		for _, right := range sqs.Rights() {
			allowed, err := look(server).CheckPermission(t.Context(), right)
			if want := right.Name != denied.Name; allowed != want || err != nil {
				t.Errorf("without %s, %s is allowed: %t (%v), want %t", denied.Name, right.Name, allowed, err, want)
			}
		}
	}
}

func TestMay_error_is_neither_allowed_nor_refused(t *testing.T) {
	t.Parallel()
	for _, right := range sqs.Rights() {
		server := newServer(t)
		server.Always(actions[right.Name], sqstest.Refuse("QueueDoesNotExist", "there is none"))
		if allowed, err := look(server).CheckPermission(t.Context(), right); allowed || err == nil {
			t.Errorf("%s is allowed: %t (%v), want an error", right.Name, allowed, err)
		}
	}
}

func TestMay_changes_nothing(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	server.Send(state("stopping"))
	for _, right := range sqs.Rights() {
		if _, err := look(server).CheckPermission(t.Context(), right); err != nil {
			t.Error(err)
		}
	}
	if server.Visible() != 1 || server.InFlight() != 0 {
		t.Errorf("%d messages wait and %d are in flight, want the one to wait", server.Visible(), server.InFlight())
	}
	m := consume(t, server, nil).lease(t)
	if m.Receives != 1 {
		t.Errorf("the message has been received %d times, want this once", m.Receives)
	}
	m.Done()
}

func TestCheck_reads_the_attributes(t *testing.T) {
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

func TestCheck_refused_is_no_error(t *testing.T) {
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

// FuzzAttributes has SQS say anything of a queue and of a message.
func FuzzAttributes(f *testing.F) {
	f.Add("2", "1209600", `{"deadLetterTargetArn":"arn:aws:sqs:eu-central-1:123456789012:dead","maxReceiveCount":"5"}`, "1772359200000", "1")
	f.Add("-1", "99999999999999999999", `{"maxReceiveCount":1e400}`, "9223372036854775807", "-7")
	f.Fuzz(func(t *testing.T, waiting, retention, redrive, sent, receives string) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var came *sqs.Message
		q := of(func(r *http.Request) (any, error) {
			switch _, action, _ := strings.Cut(r.Header.Get("X-Amz-Target"), "."); action {
			case "GetQueueAttributes":
				return map[string]any{"Attributes": map[string]string{
					"ApproximateNumberOfMessages": waiting, "MessageRetentionPeriod": retention, "DelaySeconds": retention, "RedrivePolicy": redrive,
				}}, nil
			case "ReceiveMessage":
				return map[string]any{"Messages": []any{map[string]any{
					"MessageId": "a", "ReceiptHandle": "b", "Body": state("stopping"),
					"Attributes": map[string]string{"SentTimestamp": sent, "ApproximateReceiveCount": receives},
				}}}, nil
			}
			return map[string]any{}, nil
		})
		found, _, err := q.Check(ctx)
		if found.Visible < 0 || found.Retention < 0 || found.Delay < 0 || found.MaxReceives < 0 {
			t.Errorf("the queue is %+v", found)
		}
		if err != nil && len(err.Error()) > 500 {
			t.Errorf("the error is long: %v", err)
		}
		var once sync.Once
		q.Run(ctx, func(m *sqs.Message) { once.Do(func() { came = m; stop() }); m.Done() })
		if _, err := came.Sent.MarshalJSON(); err != nil || came.Receives < 1 {
			t.Errorf("the message was sent %v (%v), and received %d times", came.Sent, err, came.Receives)
		}
	})
}

func TestReceives_twice_a_day(t *testing.T) {
	t.Parallel()
	for waiting, want := range map[time.Duration]int{time.Minute: 2, 24 * time.Hour: 4, 14 * 24 * time.Hour: 30} {
		if got := sqs.Receives(waiting); got != want {
			t.Errorf("in %s it is received %d times, want %d", waiting, got, want)
		}
	}
}
