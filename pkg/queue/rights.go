package queue

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/smithy-go"

	"github.com/nth-project/nth/pkg/role"
)

// Right is something that is asked of SQS. Rights lists them.
type Right struct {
	// Name is its name in IAM policies, and For what it is needed for.
	Name, For string
	// Vague tells that SQS does not say whether it looks at the right before it looks at the request: only a refusal is
	// certain.
	Vague bool

	try func(*Queue, context.Context) error
}

// Rights lists what reading the queue needs.
func Rights() []Right {
	return []Right{
		{Name: "sqs:ReceiveMessage", For: "to hear of anything", Vague: true, try: (*Queue).tryReceive},
		{Name: "sqs:ChangeMessageVisibility", For: "to keep a message while its node is drained, and to give it back", try: (*Queue).tryChange},
		{Name: "sqs:DeleteMessage", For: "to be done with a message", try: (*Queue).tryDelete},
	}
}

// May tries a right without effect: no message is received, and none is touched.
func (q *Queue) May(ctx context.Context, r Right) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := r.try(q, ctx)
	switch {
	case role.Refused(err):
		return false, nil
	case err == nil, unreasonable(err):
		return true, nil
	}
	return false, fmt.Errorf("trying %s: %w", r.Name, err)
}

// nobodys is a receipt handle that SQS has never given to anybody.
const nobodys = "nth-queue-check"

// The two batches are the requests that the keeper makes. SQS finds fault with each of their messages in an answer of its
// own, so the request as such was allowed.
func (q *Queue) tryDelete(ctx context.Context) error {
	_, err := q.delete(ctx, []duty{{handle: nobodys}})
	return err
}

func (q *Queue) tryChange(ctx context.Context) error {
	_, err := q.change(ctx, []duty{{handle: nobodys, hide: q.opts.Visibility}})
	return err
}

// tryReceive asks for more messages than SQS gives, hidden for less than no time. There is no other request for messages
// that is sure to bring none: one with a visibility of zero counts as a receipt, too.
func (q *Queue) tryReceive(ctx context.Context) error {
	_, err := q.client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl: &q.opts.URL, MaxNumberOfMessages: batch + 1, VisibilityTimeout: -1, WaitTimeSeconds: -1,
	})
	return err
}

// unreasonable tells whether SQS finds fault with what is asked for.
func unreasonable(err error) bool {
	api, ok := errors.AsType[smithy.APIError](err)
	if !ok {
		return false
	}
	code := api.ErrorCode()
	switch code[strings.LastIndexByte(code, '.')+1:] { // Some are of the service "AWS.SimpleQueueService".
	case "InvalidParameterValue", "InvalidParameterValueException", "ReceiptHandleIsInvalid":
		return true
	}
	return false
}
