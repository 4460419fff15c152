package queue_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/nth-project/nth/pkg/queue"
)

// answers is an SQS without a network, so that it can be asked in a bubble, where an hour takes no time.
type answers func(r *http.Request) (any, error)

// Do implements aws.HTTPClient.
func (a answers) Do(r *http.Request) (*http.Response, error) {
	answer, err := a(r)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(answer)
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(string(text))), Request: r}, err
}

// nothing is a request for messages that is answered after the time that it may wait.
func nothing(r *http.Request) (any, error) {
	select {
	case <-time.After(20 * time.Second):
		return map[string]any{}, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// of returns a queue whose SQS answers so, and what runs it with take until it is stopped.
func of(a answers, take func(*queue.Lease)) (q *queue.Queue, run func(t *testing.T) (stop func())) {
	q = queue.New(queue.Options{
		URL: "http://sqs.test/123456789012/interruptions", Visibility: time.Hour, Receivers: 2,
		AWS: aws.Config{Region: "eu-central-1", HTTPClient: a, Credentials: aws.AnonymousCredentials{}},
	})
	return q, func(t *testing.T) func() {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			q.Run(ctx, take)
		}()
		synctest.Wait()
		return func() { cancel(); <-ended }
	}
}

func TestAReceiverThatHasStoppedIsStuckAndNoneThatWaitsIs(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]answers{
		"there are no messages":      nothing,
		"SQS refuses":                func(*http.Request) (any, error) { return nil, errors.New("connection refused") },
		"SQS does not answer at all": func(r *http.Request) (any, error) { <-r.Context().Done(); return nil, r.Context().Err() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q, run := of(answer, func(*queue.Lease) {})
				stop := run(t)
				defer stop()
				for range 60 {
					time.Sleep(time.Minute)
					if err := q.Stuck(); err != nil {
						t.Fatal(err)
					}
				}
			})
		})
	}
}

func TestAReceiverThatIsHeldUpIsStuckAfterNinetySecondsAndUntilItGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var given atomic.Bool
		goOn := make(chan struct{})
		q, run := of(func(r *http.Request) (any, error) {
			if !strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".ReceiveMessage") {
				return map[string]any{}, nil
			}
			if given.Swap(true) {
				return nothing(r) // The other receiver goes on all the time.
			}
			return map[string]any{"Messages": []any{map[string]any{"MessageId": "a", "ReceiptHandle": "b", "Body": state("stopping")}}}, nil
		}, func(l *queue.Lease) {
			<-goOn
			l.Done()
		})
		if err := q.Stuck(); err != nil {
			t.Errorf("before it begins: %v", err)
		}
		stop := run(t)
		time.Sleep(90 * time.Second)
		if err := q.Stuck(); err != nil {
			t.Errorf("after 90 s: %v", err)
		}
		time.Sleep(time.Second)
		if err := q.Stuck(); err == nil || !strings.Contains(err.Error(), "neither an answer nor an error for 1m31s") {
			t.Errorf("after 91 s it says %v", err)
		}
		close(goOn)
		synctest.Wait()
		if err := q.Stuck(); err != nil {
			t.Errorf("when it goes on: %v", err)
		}
		stop()
		time.Sleep(time.Hour)
		if err := q.Stuck(); err != nil {
			t.Errorf("after the end: %v", err)
		}
	})
}
