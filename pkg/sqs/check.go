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

// Rights lists the rights that reading the queue needs. Trying them receives and changes no message.
func (q *Queue) Rights() []role.Right {
	// SQS has never issued this receipt handle. It answers such a batch with success and an error for the entry.
	invalid := []update{{handle: "nth-queue-check", hidden: time.Minute}}
	return []role.Right{
		{Name: receiveMessage, Without: "nothing is heard of interruptions", Try: q.tryReceive},
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

// tryReceive asks for messages by an invalid request: for too many, with negative times. A valid request may receive a message. Even
// with a visibility timeout of zero, that counts towards the queue's maxReceiveCount.
func (q *Queue) tryReceive(ctx context.Context) error {
	_, err := q.client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl: &q.opts.URL, MaxNumberOfMessages: maxBatch + 1, VisibilityTimeout: -1, WaitTimeSeconds: -1,
	})
	return err
}

const (
	// longestRetention is how long SQS can keep a message at most, and fewestReceives how often a message is received that waits so long
	// for maintenance: see maxReturn.
	longestRetention, fewestReceives = 14 * 24 * time.Hour, 30
)

// Setup says, for "nth-queue check", how many messages are in the queue, and what in its attributes loses or delays messages. Nothing else
// needs its right, sqs:GetQueueAttributes. The error is a role.RefusedError without it.
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
	of := func(name types.QueueAttributeName) string { return answer.Attributes[string(name)] }
	number := func(name types.QueueAttributeName) int {
		n, _ := strconv.ParseUint(of(name), 10, 31) // What SQS does not say is zero.
		return int(n)
	}
	span := func(name types.QueueAttributeName) time.Duration { return time.Duration(number(name)) * time.Second }
	var redrive struct {
		Target string      `json:"deadLetterTargetArn"`
		Count  json.Number `json:"maxReceiveCount"` // or a string with one
	}
	_ = json.Unmarshal([]byte(of(types.QueueAttributeNameRedrivePolicy)), &redrive) // Without a policy, there is no dead-letter queue.
	receives, _ := redrive.Count.Int64()
	retention, delay := span(types.QueueAttributeNameMessageRetentionPeriod), span(types.QueueAttributeNameDelaySeconds)
	for _, w := range []struct {
		applies bool
		text    string
	}{
		{retention < longestRetention, fmt.Sprintf("messages are kept for %s (MessageRetentionPeriod): one about maintenance further ahead is lost; SQS can keep messages for %s",
			retention, longestRetention)},
		{redrive.Target == "", "it has no dead-letter queue (RedrivePolicy): SQS delivers an unrecognized message again and again until its retention ends"},
		{redrive.Target != "" && receives < fewestReceives, fmt.Sprintf(
			"a message becomes a dead letter after %d receipts (maxReceiveCount), and may be received more often while it waits for maintenance: make it %d or more",
			receives, fewestReceives)},
		{delay > 0, fmt.Sprintf("messages are delayed by %s (DelaySeconds), of the two minutes that a spot interruption leaves", delay)},
		{of(types.QueueAttributeNameFifoQueue) == "true", "it is a FIFO queue: a message waits until the one before it is done, with its drain"},
		{of(types.QueueAttributeNamePolicy) == "", "it has no policy: EventBridge cannot write into it, unless its rules have a role that may"},
		{strings.HasSuffix(of(types.QueueAttributeNameKmsMasterKeyId), "alias/aws/sqs"),
			"messages are encrypted with alias/aws/sqs, a key that EventBridge may not use: take SQS's own encryption, or a key of yours"},
	} {
		if w.applies {
			warnings = append(warnings, w.text)
		}
	}
	return fmt.Sprintf("%s waiting, %d in flight", text.Count(number(types.QueueAttributeNameApproximateNumberOfMessages), "message"),
		number(types.QueueAttributeNameApproximateNumberOfMessagesNotVisible)), warnings, nil
}
