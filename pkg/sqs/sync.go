package sqs

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/nth-project/nth/pkg/role"
)

const (
	// batchWindow is how long an update waits for others to share its request.
	batchWindow = 10 * time.Millisecond
	// syncInterval is how often the messages are checked without being woken.
	syncInterval = time.Second
	// maxRequests is how many requests are made at the same time.
	maxRequests = 8
)

func (q *Queue) wakeSync() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// sync sends SQS what is to be done with each message, until ctx ends.
func (q *Queue) sync(ctx context.Context) {
	var requests sync.WaitGroup
	defer requests.Wait()
	slots := make(chan struct{}, maxRequests)
	for ctx.Err() == nil {
		for _, batch := range q.dueUpdates() {
			slots <- struct{}{}
			requests.Go(func() {
				q.send(ctx, batch)
				<-slots
				q.wakeSync()
			})
		}
		select {
		case <-ctx.Done():
		case <-q.wake:
			role.Sleep(ctx, batchWindow)
		case <-time.After(syncInterval):
		}
	}
}

// update is a request for one message, with its state when the request was made.
type update struct {
	message    *Message
	intent     intent
	handle     string
	visibility time.Duration
}

// dueUpdates returns what is due now, in batches of which each is one request.
func (q *Queue) dueUpdates() [][]update {
	q.mu.Lock()
	defer q.mu.Unlock()
	var deletions, changes []update
	now := time.Now()
	for _, m := range q.inFlight {
		if !m.isDue(now, q.opts.Visibility) || q.holdReturns && m.intent == returnMessage {
			continue
		}
		m.busy = true
		u := update{message: m, intent: m.intent, handle: m.handle, visibility: q.opts.Visibility}
		switch m.intent {
		case deleteMessage:
			deletions = append(deletions, u)
		case returnMessage:
			u.visibility = m.returnAfter
			changes = append(changes, u)
		case holdMessage:
			changes = append(changes, u)
		}
	}
	return slices.Concat(slices.Collect(slices.Chunk(deletions, maxBatch)), slices.Collect(slices.Chunk(changes, maxBatch)))
}

// send makes one request and handles its results.
func (q *Queue) send(ctx context.Context, batch []update) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var failed []types.BatchResultErrorEntry
	var err error
	if batch[0].intent == deleteMessage {
		failed, err = q.delete(ctx, batch)
	} else {
		failed, err = q.changeVisibility(ctx, batch)
	}
	at := time.Now()
	for i, u := range batch {
		q.handleResult(u, at, entryError(strconv.Itoa(i), failed, err))
	}
}

func (q *Queue) delete(ctx context.Context, batch []update) ([]types.BatchResultErrorEntry, error) {
	in := &sqs.DeleteMessageBatchInput{QueueUrl: &q.opts.URL}
	for i, u := range batch {
		in.Entries = append(in.Entries, types.DeleteMessageBatchRequestEntry{Id: new(strconv.Itoa(i)), ReceiptHandle: &u.handle})
	}
	out, err := q.client.DeleteMessageBatch(ctx, in)
	if err != nil {
		return nil, err
	}
	return out.Failed, nil
}

func (q *Queue) changeVisibility(ctx context.Context, batch []update) ([]types.BatchResultErrorEntry, error) {
	in := &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: &q.opts.URL}
	for i, u := range batch {
		in.Entries = append(in.Entries, types.ChangeMessageVisibilityBatchRequestEntry{
			Id: new(strconv.Itoa(i)), ReceiptHandle: &u.handle, VisibilityTimeout: seconds(u.visibility),
		})
	}
	out, err := q.client.ChangeMessageVisibilityBatch(ctx, in)
	if err != nil {
		return nil, err
	}
	return out.Failed, nil
}

// errStale means that SQS does not accept the receipt handle any more, so that there is no use in trying again.
var errStale = errors.New("the receipt handle is stale")

// entryError is the error of one message in a batch.
func entryError(id string, failed []types.BatchResultErrorEntry, err error) error {
	if err != nil {
		return err
	}
	for _, f := range failed {
		if aws.ToString(f.Id) != id {
			continue
		}
		if f.SenderFault {
			return errStale
		}
		return &smithy.GenericAPIError{Code: aws.ToString(f.Code), Message: aws.ToString(f.Message)}
	}
	return nil
}

// handleResult takes in what an update of a message that was sent at that time came to.
func (q *Queue) handleResult(u update, at time.Time, err error) {
	q.mu.Lock()
	m := u.message
	m.busy = false
	if q.inFlight[m.ID] != m || m.handle != u.handle || m.intent != u.intent {
		q.mu.Unlock() // The intent has changed since, or the message came again: that is another update.
		return
	}
	what, why := successes[u.intent], ""
	switch {
	case err == nil && u.intent == holdMessage:
		m.visibleAt, m.failures = at.Add(u.visibility), 0
	case err == nil:
		delete(q.inFlight, m.ID)
	case errors.Is(err, errStale) && u.intent == holdMessage:
		m.lost, what, why = true, Lost, err.Error()
	case errors.Is(err, errStale), u.intent == returnMessage && at.After(m.visibleAt):
		// Others see it already. If its work is done, it is deleted when it comes again.
		delete(q.inFlight, m.ID)
		what, why = Lost, err.Error()
	default:
		m.failures++
		m.retryAt = at.Add(role.Pause(m.failures, minBackoff, maxBackoff))
		what = ""
	}
	q.mu.Unlock()
	if what != "" {
		q.report(m.report(what, why))
	}
}

var successes = map[intent]What{holdMessage: Extended, returnMessage: Returned, deleteMessage: Deleted}
