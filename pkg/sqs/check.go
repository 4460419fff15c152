package sqs

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/nth-project/nth/pkg/role"
	"github.com/nth-project/nth/pkg/text"
)

// Rights lists the permissions that reading the queue needs, for "nth-queue check". Trying them receives no message and changes none.
func (q *Queue) Rights() []role.Right {
	// SQS has never issued this receipt handle. If the batch is allowed, SQS answers it with success, and with an error for its only entry.
	invalid := []update{{handle: "nth-queue-check", hidden: time.Minute}}
	return []role.Right{
		{Name: receiveMessage, Without: "nth-queue receives no message, and drains no node", Try: q.tryReceive},
		{Name: changeVisibility, Without: "a message comes again while its node is drained", Try: func(ctx context.Context) error {
			_, err := q.changeVisibility(ctx, invalid)
			return err
		}},
		{Name: deleteMessage, Without: "a message comes again after its node is drained", Try: func(ctx context.Context) error {
			_, err := q.delete(ctx, invalid)
			return err
		}},
	}
}

// tryReceive tries whether IAM allows to receive messages. Its request is invalid (too many messages, negative times), so SQS refuses it for
// that if IAM allows it. A valid request might receive a message, which counts towards the queue's maxReceiveCount.
func (q *Queue) tryReceive(ctx context.Context) error {
	_, err := q.client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl: &q.opts.URL, MaxNumberOfMessages: maxBatch + 1, VisibilityTimeout: -1, WaitTimeSeconds: -1,
	})
	return err
}

// fewestReceives is how often a queue should deliver a message before it takes the message for dead: each change of leader is a receipt, too.
const fewestReceives = 10

// Setup asks for the queue's attributes, for "nth-queue check". messages says how many messages are in the queue. Each of warnings names an
// attribute that loses or delays messages. Only Setup needs the permission sqs:GetQueueAttributes; without it the error is a role.RefusedError.
func (q *Queue) Setup(ctx context.Context) (messages string, warnings []string, err error) {
	const right = "sqs:GetQueueAttributes"
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answer, err := q.client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl: &q.opts.URL, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll},
	})
	if err != nil {
		return "", nil, fmt.Errorf("asking for the attributes of the queue %s: %w", q.opts.URL, role.Explain(right, requestTimeout, err))
	}
	attribute := func(name types.QueueAttributeName) string { return answer.Attributes[string(name)] }
	number := func(name types.QueueAttributeName) int {
		n, _ := strconv.ParseUint(attribute(name), 10, 31) // An attribute that SQS does not name counts as zero.
		return int(n)
	}
	var redrive struct {
		Target string      `json:"deadLetterTargetArn"`
		Count  json.Number `json:"maxReceiveCount"` // SQS writes 5 or "5".
	}
	_ = json.Unmarshal([]byte(attribute(types.QueueAttributeNameRedrivePolicy)), &redrive) // A queue without a policy has no dead-letter queue.
	receives, _ := redrive.Count.Int64()
	delay := time.Duration(number(types.QueueAttributeNameDelaySeconds)) * time.Second
	for _, w := range []struct {
		applies bool
		text    string
	}{
		{redrive.Target == "", "it has no dead-letter queue (RedrivePolicy): SQS delivers an unrecognized message again and again until its retention ends"},
		{redrive.Target != "" && receives < fewestReceives, fmt.Sprintf(
			"a message becomes a dead letter after %d receipts (maxReceiveCount), and each change of leader is one: make it %d or more", receives, fewestReceives)},
		{delay > 0, fmt.Sprintf("messages are delayed by %s (DelaySeconds), of the two minutes that a spot interruption leaves", delay)},
		{attribute(types.QueueAttributeNameFifoQueue) == "true", "it is a FIFO queue: a message waits until the one before it is done, with its drain"},
		{attribute(types.QueueAttributeNamePolicy) == "", "it has no policy: EventBridge cannot write into it, unless its rules have a role that may"},
		{strings.HasSuffix(attribute(types.QueueAttributeNameKmsMasterKeyId), "alias/aws/sqs"),
			"messages are encrypted with alias/aws/sqs, a key that EventBridge may not use: take SQS's own encryption, or a key of yours"},
	} {
		if w.applies {
			warnings = append(warnings, w.text)
		}
	}
	return fmt.Sprintf("%s waiting, %d in flight", text.Count(number(types.QueueAttributeNameApproximateNumberOfMessages), "message"),
		number(types.QueueAttributeNameApproximateNumberOfMessagesNotVisible)), warnings, nil
}
