package sqs_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/sqs/sqstest"
)

// actions are the requests that a right is for.
var actions = map[string]string{
	"sqs:ReceiveMessage": "ReceiveMessage", "sqs:DeleteMessage": "DeleteMessageBatch", "sqs:ChangeMessageVisibility": "ChangeMessageVisibilityBatch",
}

func TestCheckPermission_TriesEachByItsOwnRequest(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.Send(state("stopping"))
		queue := sqs.New(r.opts)
		for _, denied := range sqs.Rights() {
			r.Allow()
			r.Lift()
			r.Deny(actions[denied.Name])
			for _, right := range sqs.Rights() {
				allowed, err := queue.CheckPermission(r.t.Context(), right)
				if want := right.Name != denied.Name; allowed != want || err != nil {
					t.Errorf("without %s, %s is allowed: %t (%v), want %t", denied.Name, right.Name, allowed, err, want)
				}
			}
			r.Allow()
			r.Fail(sqstest.Fault{Status: 400, Code: "QueueDoesNotExist"})
			if allowed, err := queue.CheckPermission(r.t.Context(), denied); allowed || err == nil {
				t.Errorf("of no queue, %s is allowed: %t (%v), want an error", denied.Name, allowed, err)
			}
		}
		r.Lift()
		r.mustBe(1, 0)
		r.consume()
		if m := r.take(); m.Receives != 1 {
			t.Errorf("the message has been received %d times, want this once", m.Receives)
		} else {
			m.Done()
		}
	})
}

func TestCheck_ReadsTheAttributes(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.Send("one", "two")
		queue := sqs.New(r.opts)
		const dead = "arn:aws:sqs:eu-central-1:123456789012:dead-letters"
		for _, row := range []struct {
			say  map[string]string
			want sqs.Attributes
		}{
			{nil, sqs.Attributes{Visible: 2, Retention: 14 * 24 * time.Hour, DeadLetters: dead, MaxReceives: 100, Policy: true}},
			{
				map[string]string{
					"DelaySeconds": "90", "KmsMasterKeyId": "alias/ours", "FifoQueue": "true", "Policy": "",
					"RedrivePolicy": `{"deadLetterTargetArn":"` + dead + `","maxReceiveCount":"5"}`,
				},
				sqs.Attributes{
					Visible: 2, Retention: 14 * 24 * time.Hour, Delay: 90 * time.Second, DeadLetters: dead, MaxReceives: 5, Key: "alias/ours", FIFO: true,
				},
			},
			{
				map[string]string{"RedrivePolicy": ""},
				sqs.Attributes{Visible: 2, Retention: 14 * 24 * time.Hour, Delay: 90 * time.Second, Key: "alias/ours", FIFO: true},
			},
		} {
			for name, value := range row.say {
				r.Say(name, value)
			}
			if found, allowed, err := queue.Check(r.t.Context()); found != row.want || !allowed || err != nil {
				t.Errorf("the queue says %+v (%t, %v), want %+v", found, allowed, err, row.want)
			}
		}
		r.Deny("GetQueueAttributes")
		if _, allowed, err := queue.Check(r.t.Context()); allowed || err != nil {
			t.Errorf("refused, it is allowed: %t (%v)", allowed, err)
		}
		r.Allow()
		r.Fail(sqstest.Fault{Status: 503})
		if _, _, err := queue.Check(r.t.Context()); err == nil {
			t.Error("a service that is not well is no error")
		}
	})
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

func TestReceives_TwiceADay(t *testing.T) {
	t.Parallel()
	for waiting, want := range map[time.Duration]int{time.Minute: 2, 24 * time.Hour: 4, 14 * 24 * time.Hour: 30} {
		if got := sqs.Receives(waiting); got != want {
			t.Errorf("in %s it is received %d times, want %d", waiting, got, want)
		}
	}
}
