package sqs_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/role"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/sqs/sqstest"
)

func TestRights_AreTriedWithoutReceiving(t *testing.T) {
	t.Parallel()
	actions := map[string]string{
		"sqs:ReceiveMessage": "ReceiveMessage", "sqs:DeleteMessage": "DeleteMessageBatch", "sqs:ChangeMessageVisibility": "ChangeMessageVisibilityBatch",
	}
	bubble(t, func(r *rig) {
		r.Send(state("stopping"))
		rights := sqs.New(r.opts).Rights()
		for _, denied := range rights {
			r.Allow()
			r.Deny(actions[denied.Name])
			for _, right := range rights {
				if allowed, err := right.Allowed(r.t.Context()); allowed != (right.Name != denied.Name) || err != nil {
					t.Errorf("without %s, %s is allowed: %t (%v)", denied.Name, right.Name, allowed, err)
				}
			}
		}
		r.Allow()
		r.mustBe(1, 0)
		r.consume()
		if m := r.take(); m.Receives != 1 {
			t.Errorf("the message has been received %d times, want this once", m.Receives)
		} else {
			m.Done()
		}
	})
}

func TestSetup_WarnsOfWhatLosesOrDelaysMessages(t *testing.T) {
	t.Parallel()
	const redrive = `{"deadLetterTargetArn":"arn:aws:sqs:eu-central-1:123456789012:dead-letters","maxReceiveCount":%s}`
	for name, row := range map[string]struct{ attribute, value, want string }{
		"nothing":            {"", "", ""},
		"no dead letters":    {"RedrivePolicy", "", "it has no dead-letter queue (RedrivePolicy)"},
		"few receipts":       {"RedrivePolicy", fmt.Sprintf(redrive, `"29"`), "a message becomes a dead letter after 29 receipts (maxReceiveCount)"},
		"enough receipts":    {"RedrivePolicy", fmt.Sprintf(redrive, "30"), ""},
		"a short retention":  {"MessageRetentionPeriod", "345600", "messages are kept for 96h0m0s (MessageRetentionPeriod)"},
		"a delay":            {"DelaySeconds", "90", "messages are delayed by 1m30s (DelaySeconds)"},
		"FIFO":               {"FifoQueue", "true", "it is a FIFO queue"},
		"no policy":          {"Policy", "", "it has no policy"},
		"SQS's own KMS key":  {"KmsMasterKeyId", "alias/aws/sqs", "messages are encrypted with alias/aws/sqs"},
		"a KMS key of yours": {"KmsMasterKeyId", "alias/ours", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				r.Send("one", "two")
				if row.attribute != "" {
					r.Say(row.attribute, row.value)
				}
				messages, warnings, err := sqs.New(r.opts).Setup(r.t.Context())
				if got := strings.Join(warnings, "; "); !strings.HasPrefix(got, row.want) || (got == "") != (row.want == "") || messages != "2 messages waiting, 0 in flight" || err != nil {
					t.Errorf("it says %q of %q (%v), want %q", got, messages, err, row.want)
				}
			})
		})
	}
}

func TestSetup_ReturnsErrors(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.Deny("GetQueueAttributes")
		if _, _, err := sqs.New(r.opts).Setup(r.t.Context()); !role.Refused(err) {
			t.Errorf("the error is %v, want a refusal", err)
		}
		r.Allow()
		r.Fail(sqstest.Fault{Status: 503})
		if _, _, err := sqs.New(r.opts).Setup(r.t.Context()); err == nil || role.Refused(err) {
			t.Errorf("the error is %v, want another one", err)
		}
	})
}
