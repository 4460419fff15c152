package sqs

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/nth-project/nth/pkg/role"
	"github.com/nth-project/nth/pkg/text"
)

// Right is an IAM action that nth-queue needs for its queue. Rights lists them.
type Right struct {
	// Name is its name in IAM policies, and For what it is needed for.
	Name, For string
	// Vague is set if SQS may look at the request before it looks at the right, so that only a refusal is certain.
	Vague bool

	// try makes a request that needs the right and has no effect. Its error may also be one about the request: see CheckPermission.
	try func(*Queue, context.Context) error
}

// invalid is a batch of one update whose receipt handle SQS has never issued. SQS answers such a batch with success and an error for the
// entry. That means that IAM has allowed the request as such.
var invalid = []update{{wanted: wanted{handle: "nth-queue-check", hidden: time.Minute}}}

// Rights lists the rights that reading the queue needs, for "nth-queue check" and CheckPermission.
func Rights() []Right {
	return []Right{
		{Name: receiveMessage, For: "to hear of anything", Vague: true, try: (*Queue).tryReceive},
		{
			Name: changeVisibility, For: "to keep a message while its node is drained, and to give it back",
			try: func(q *Queue, ctx context.Context) error { _, err := q.changeVisibility(ctx, invalid); return err },
		},
		{
			Name: deleteMessage, For: "to be done with a message",
			try: func(q *Queue, ctx context.Context) error { _, err := q.delete(ctx, invalid); return err },
		},
	}
}

// tryReceive asks for messages by an invalid request: for too many, with negative times. A valid request may receive a message. Even
// with a visibility timeout of zero, that counts towards the queue's maxReceiveCount.
func (q *Queue) tryReceive(ctx context.Context) error {
	_, err := q.client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl: &q.opts.URL, MaxNumberOfMessages: maxBatch + 1, VisibilityTimeout: -1, WaitTimeSeconds: -1,
	})
	return role.Explain(receiveMessage, requestTimeout, err)
}

// CheckPermission reports whether nth-queue has a right. It tries the right without effect: no message is received or changed. The
// error says why the answer is not known.
func (q *Queue) CheckPermission(ctx context.Context, r Right) (allowed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err = r.try(q, ctx)
	if role.Refused(err) {
		return false, nil
	}
	// SQS looks at the right before it finds a request invalid. So an invalid request was allowed.
	if code := role.Code(err); err == nil || code == "InvalidParameterValue" || code == "ReceiptHandleIsInvalid" {
		return true, nil
	}
	return false, fmt.Errorf("trying: %w", err)
}

// GetQueueAttributes is what Check needs, by its name in IAM policies. Nothing else does.
const GetQueueAttributes = "sqs:GetQueueAttributes"

// Attributes are what SQS says of a queue.
type Attributes struct {
	// Visible is how many messages wait, and InFlight how many are being worked on; both are approximate.
	Visible, InFlight int
	// Retention is how long a message is kept, and Delay how long it is invisible at first.
	Retention, Delay time.Duration
	// DeadLetters is the ARN of the queue to which a message goes that has been received more than MaxReceives times; ""
	// if there is none.
	DeadLetters string
	MaxReceives int
	// Key is the KMS key that messages are encrypted with; "" if they are encrypted with SQS's own, or not at all.
	Key string
	// FIFO is set if the queue delivers messages in the sequence in which they came.
	FIFO bool
	// Policy is set if the queue has a policy of its own, which can allow others to write into it.
	Policy bool
}

// Check returns the queue's attributes, for "nth-queue check". allowed is false, without an error, if IAM does not allow nth-queue to read them.
func (q *Queue) Check(ctx context.Context) (found Attributes, allowed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answer, err := q.client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl: &q.opts.URL, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll},
	})
	switch {
	case role.Refused(err):
		return Attributes{}, false, nil
	case err != nil:
		return Attributes{}, false, fmt.Errorf("asking for the attributes of the queue %s: %w", q.opts.URL, role.Explain(GetQueueAttributes, requestTimeout, err))
	}
	found, err = parseAttributes(answer.Attributes)
	if err != nil {
		return Attributes{}, false, fmt.Errorf("reading the attributes of the queue %s: %w", q.opts.URL, err)
	}
	return found, true, nil
}

// maxNumber bounds the numbers that SQS says of a queue. It is more than any of which the value matters.
const maxNumber = 1 << 30

// parseAttributes reads the attributes of a queue. What SQS does not say, or not as a number, is zero. The error is about a redrive
// policy that is not JSON.
func parseAttributes(attributes map[string]string) (Attributes, error) {
	number := func(text string) int {
		n, _ := strconv.Atoi(text)
		return min(max(n, 0), maxNumber)
	}
	of := func(name types.QueueAttributeName) string { return attributes[string(name)] }
	found := Attributes{
		Visible:   number(of(types.QueueAttributeNameApproximateNumberOfMessages)),
		InFlight:  number(of(types.QueueAttributeNameApproximateNumberOfMessagesNotVisible)),
		Retention: time.Duration(number(of(types.QueueAttributeNameMessageRetentionPeriod))) * time.Second,
		Delay:     time.Duration(number(of(types.QueueAttributeNameDelaySeconds))) * time.Second,
		Key:       of(types.QueueAttributeNameKmsMasterKeyId),
		FIFO:      of(types.QueueAttributeNameFifoQueue) == "true",
		Policy:    of(types.QueueAttributeNamePolicy) != "",
	}
	policy := of(types.QueueAttributeNameRedrivePolicy)
	if policy == "" {
		return found, nil
	}
	var redrive struct {
		Target string      `json:"deadLetterTargetArn"`
		Count  json.Number `json:"maxReceiveCount"` // or a string with one
	}
	if err := json.Unmarshal([]byte(policy), &redrive); err != nil {
		return Attributes{}, fmt.Errorf("RedrivePolicy: %s", text.Visible(err.Error(), maxShown))
	}
	found.DeadLetters, found.MaxReceives = redrive.Target, number(redrive.Count.String())
	return found, nil
}

// Receives returns how often a message is received, at least, if its work has to wait for so long. SQS hides a message for half a day at most,
// so nth-queue receives and returns it again and again.
func Receives(waiting time.Duration) int {
	return int((waiting+maxReturn-1)/maxReturn) + 1
}
