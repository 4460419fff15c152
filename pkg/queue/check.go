package queue

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/nth-project/nth/pkg/role"
)

// GetQueueAttributes is what Check needs, by its name in IAM policies. Nothing else does.
const GetQueueAttributes = "sqs:GetQueueAttributes"

// Attributes are what SQS says of a queue.
type Attributes struct {
	// Visible is how many messages wait, and InFlight how many somebody works on; about so many.
	Visible, InFlight int
	// Retention is how long a message is kept, and Delay how long it is kept back at first.
	Retention, Delay time.Duration
	// DeadLetters is the ARN of the queue to which a message goes that has been received more than MaxReceives times; ""
	// without one.
	DeadLetters string
	MaxReceives int
	// Key is the KMS key that messages are encrypted with; "" if they are so with SQS's own, or not at all.
	Key string
	// FIFO tells that the queue keeps an order.
	FIFO bool
	// Policy tells that the queue has a policy of its own, which can let others write into it.
	Policy bool
}

// Check asks SQS for the queue's attributes. allowed is false if it may not.
func (q *Queue) Check(ctx context.Context) (found Attributes, allowed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answer, err := q.client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl: &q.opts.URL, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll},
	})
	switch {
	case role.Refused(err):
		return Attributes{}, false, nil
	case err != nil:
		return Attributes{}, false, fmt.Errorf("asking for the attributes of the queue %s: %w", q.opts.URL, err)
	}
	found, err = readAttributes(answer.Attributes)
	if err != nil {
		return Attributes{}, false, fmt.Errorf("reading the attributes of the queue %s: %w", q.opts.URL, err)
	}
	return found, true, nil
}

// readAttributes understands what SQS says. What it leaves out is zero.
func readAttributes(said map[string]string) (Attributes, error) {
	number := func(name types.QueueAttributeName) int {
		n, _ := strconv.Atoi(said[string(name)]) // One that is left out is 0.
		return n
	}
	found := Attributes{
		Visible:   number(types.QueueAttributeNameApproximateNumberOfMessages),
		InFlight:  number(types.QueueAttributeNameApproximateNumberOfMessagesNotVisible),
		Retention: time.Duration(number(types.QueueAttributeNameMessageRetentionPeriod)) * time.Second,
		Delay:     time.Duration(number(types.QueueAttributeNameDelaySeconds)) * time.Second,
		Key:       said[string(types.QueueAttributeNameKmsMasterKeyId)],
		FIFO:      said[string(types.QueueAttributeNameFifoQueue)] == "true",
		Policy:    said[string(types.QueueAttributeNamePolicy)] != "",
	}
	text := said[string(types.QueueAttributeNameRedrivePolicy)]
	if text == "" {
		return found, nil
	}
	var redrive struct {
		Target string `json:"deadLetterTargetArn"`
		Count  any    `json:"maxReceiveCount"` // a number, or a text of one
	}
	if err := json.Unmarshal([]byte(text), &redrive); err != nil {
		return Attributes{}, fmt.Errorf("RedrivePolicy: %w", err)
	}
	found.DeadLetters = redrive.Target
	found.MaxReceives, _ = strconv.Atoi(fmt.Sprint(redrive.Count))
	return found, nil
}

// Receives is how often a message is received at least that waits in the queue for so long: SQS hides it for half a day
// at a time.
func Receives(waiting time.Duration) int {
	return int((waiting+longestReturn-1)/longestReturn) + 1
}
