package queue

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/nth-project/nth/pkg/role"
)

const (
	// gather is how long a request waits for others to go with it.
	gather = 10 * time.Millisecond
	// glance is how often the leases are looked at without being nudged.
	glance = time.Second
	// atOnce is how many requests are made at the same time.
	atOnce = 8
)

// nudge makes the keeper look at the leases soon.
func (q *Queue) nudge() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// keep sees to it that SQS knows what is wanted for each message, until ctx ends.
func (q *Queue) keep(ctx context.Context) {
	var requests sync.WaitGroup
	defer requests.Wait()
	room := make(chan struct{}, atOnce)
	for ctx.Err() == nil {
		for _, some := range q.duties() {
			room <- struct{}{}
			requests.Go(func() {
				q.do(ctx, some)
				<-room
				q.nudge()
			})
		}
		select {
		case <-ctx.Done():
		case <-q.wake:
			sleep(ctx, gather)
		case <-time.After(glance):
		}
	}
}

// duty is one request for one message, as it was wanted when the request was made.
type duty struct {
	lease  *Lease
	wants  want
	handle string
	hide   time.Duration
}

// duties takes what is due now, in batches of which each is one request.
func (q *Queue) duties() [][]duty {
	q.mu.Lock()
	defer q.mu.Unlock()
	var deletions, changes []duty
	now := time.Now()
	for _, l := range q.leases {
		due := l.due(q.opts.Visibility)
		if due.IsZero() || due.After(now) || q.hushed && l.wants == returning {
			continue
		}
		l.busy = true
		d := duty{lease: l, wants: l.wants, handle: l.handle, hide: q.opts.Visibility}
		switch l.wants {
		case deletion:
			deletions = append(deletions, d)
		case returning:
			d.hide = l.after
			changes = append(changes, d)
		case keeping:
			changes = append(changes, d)
		}
	}
	return slices.Concat(slices.Collect(slices.Chunk(deletions, batch)), slices.Collect(slices.Chunk(changes, batch)))
}

// do makes one request and takes in what came of it.
func (q *Queue) do(ctx context.Context, duties []duty) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var failed []types.BatchResultErrorEntry
	var err error
	if duties[0].wants == deletion {
		failed, err = q.delete(ctx, duties)
	} else {
		failed, err = q.change(ctx, duties)
	}
	asked := time.Now()
	for i, d := range duties {
		q.settle(d, asked, verdict(strconv.Itoa(i), failed, err))
	}
}

func (q *Queue) delete(ctx context.Context, duties []duty) ([]types.BatchResultErrorEntry, error) {
	in := &sqs.DeleteMessageBatchInput{QueueUrl: &q.opts.URL}
	for i, d := range duties {
		in.Entries = append(in.Entries, types.DeleteMessageBatchRequestEntry{Id: new(strconv.Itoa(i)), ReceiptHandle: &d.handle})
	}
	out, err := q.client.DeleteMessageBatch(ctx, in)
	if err != nil {
		return nil, err
	}
	return out.Failed, nil
}

func (q *Queue) change(ctx context.Context, duties []duty) ([]types.BatchResultErrorEntry, error) {
	in := &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: &q.opts.URL}
	for i, d := range duties {
		in.Entries = append(in.Entries, types.ChangeMessageVisibilityBatchRequestEntry{
			Id: new(strconv.Itoa(i)), ReceiptHandle: &d.handle, VisibilityTimeout: seconds(d.hide),
		})
	}
	out, err := q.client.ChangeMessageVisibilityBatch(ctx, in)
	if err != nil {
		return nil, err
	}
	return out.Failed, nil
}

// errStale says that SQS does not take the receipt handle any more; retrying is of no use.
var errStale = errors.New("the receipt handle is stale")

// verdict says what came of one message in a batch.
func verdict(id string, failed []types.BatchResultErrorEntry, err error) error {
	if err != nil {
		return err
	}
	for _, f := range failed {
		if f.Id == nil || *f.Id != id {
			continue
		}
		if f.SenderFault {
			return errStale
		}
		return &smithy.GenericAPIError{Code: value(f.Code), Message: value(f.Message)}
	}
	return nil
}

func value(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// settle takes in what came of a request for one message.
func (q *Queue) settle(d duty, at time.Time, err error) {
	q.mu.Lock()
	l := d.lease
	l.busy = false
	if q.leases[l.ID] != l || l.handle != d.handle || l.wants != d.wants {
		q.mu.Unlock() // It is wanted otherwise since, or it came again: that is a duty of its own.
		return
	}
	what, why := outcome[d.wants], ""
	switch {
	case err == nil && d.wants == keeping:
		l.until, l.failures = at.Add(d.hide), 0
	case err == nil:
		delete(q.leases, l.ID)
	case errors.Is(err, errStale) && d.wants == keeping:
		l.lost, what, why = true, Lost, err.Error()
	case errors.Is(err, errStale), d.wants == returning && at.After(l.until):
		// Others see it already. If it is done, it is deleted when it comes again.
		delete(q.leases, l.ID)
		what, why = Lost, err.Error()
	default:
		l.failures++
		l.again = at.Add(role.Pause(l.failures, firstPause, longestPause))
		what = ""
	}
	q.mu.Unlock()
	if what != "" {
		q.tell(l.report(what, why))
	}
}

var outcome = map[want]What{keeping: Extended, returning: Returned, deletion: Deleted}
