package sqs_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"

	"github.com/nth-project/nth/pkg/role"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/sqs/sqstest"
)

// rig is a queue with a consumer, whose leases wait in a channel.
type rig struct {
	*sqstest.Server
	queue  *sqs.Queue
	leases chan *sqs.Message
	stop   func()

	mu      sync.Mutex
	reports []sqs.Report
	trouble []error
}

// consume starts a consumer of the server's queue.
func consume(t *testing.T, server *sqstest.Server, change func(*sqs.Options)) *rig {
	t.Helper()
	r := &rig{Server: server, leases: make(chan *sqs.Message, 100)}
	opts := sqs.Options{
		URL: server.URL(), Visibility: 2 * time.Second,
		AWS: aws.Config{
			Region: "eu-central-1", Credentials: aws.AnonymousCredentials{}, HTTPClient: role.Unhurried(nil),
		},
		Report: func(report sqs.Report) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.reports = append(r.reports, report)
		},
		Trouble: func(err error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.trouble = append(r.trouble, err)
		},
	}
	if change != nil {
		change(&opts)
	}
	r.queue = sqs.New(opts)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.queue.Run(ctx, func(l *sqs.Message) { r.leases <- l })
	}()
	r.stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(r.stop)
	return r
}

func newServer(t *testing.T) *sqstest.Server {
	server := sqstest.New()
	t.Cleanup(server.Close)
	return server
}

func (r *rig) lease(t *testing.T) *sqs.Message {
	t.Helper()
	select {
	case l := <-r.leases:
		return l
	case <-time.After(time.Minute):
		t.Fatal("no message came")
		return nil
	}
}

// told counts the reports of a kind.
func (r *rig) told(what sqs.Outcome) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(slices.DeleteFunc(slices.Clone(r.reports), func(report sqs.Report) bool { return report.Outcome != what }))
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waiting until %s: it is not", what)
		}
	}
}

func (r *rig) empty() bool { return r.Visible()+r.InFlight() == 0 }

func TestDone_deletes(t *testing.T) {
	t.Parallel()
	r := consume(t, newServer(t), nil)
	r.Send(state("stopping"))
	l := r.lease(t)
	if len(l.Notices) != 1 || l.Notices[0].Instance != instance || l.Receives != 1 || l.Sent.IsZero() {
		t.Errorf("the lease is %+v", l)
	}
	l.Done()
	eventually(t, "the queue is empty", r.empty)
}

func TestMessage_is_hidden_while_its_work_lasts(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	r := consume(t, server, nil)
	r.Send(state("stopping"))
	l := r.lease(t)
	other := consume(t, server, nil)
	eventually(t, "it was extended three times", func() bool { return r.told(sqs.Extended) >= 3 })
	if len(other.leases)+len(r.leases) > 0 {
		t.Error("somebody else has got the message")
	}
	l.Done()
	eventually(t, "the queue is empty", r.empty)
}

func TestReturn_shows_the_message_after_a_time(t *testing.T) {
	t.Parallel()
	r := consume(t, newServer(t), nil)
	r.Send(state("stopping"))
	r.lease(t).Return(0)
	l := r.lease(t)
	if l.Receives != 2 {
		t.Errorf("it was received %d times, want 2", l.Receives)
	}
	l.Return(time.Hour)
	eventually(t, "it is nobody's, and hidden", func() bool { return r.queue.Status().Held == 0 && r.InFlight() == 1 })
}

func TestDone_is_retried_until_SQS_deletes(t *testing.T) {
	t.Parallel()
	r := consume(t, newServer(t), nil)
	r.Send(state("stopping"))
	r.Always("DeleteMessageBatch", sqstest.Unavailable())
	r.lease(t).Done()
	eventually(t, "it was tried", func() bool { return r.Requests("DeleteMessageBatch") >= 3 })
	r.Always("DeleteMessageBatch", nil)
	eventually(t, "the queue is empty", r.empty)
}

func TestRun_message_again_during_its_work_is_the_same(t *testing.T) {
	t.Parallel()
	r := consume(t, newServer(t), nil)
	id := r.Send(state("stopping"))[0]
	l := r.lease(t)
	r.Reveal(id) // Its receipt handle is stale from when it comes again.
	eventually(t, "it was received again", func() bool { return r.Requests("ReceiveMessage") >= 3 })
	l.Done()
	eventually(t, "the queue is empty", r.empty)
	if len(r.leases) > 0 {
		t.Error("the work was begun again")
	}
}

func TestRun_message_again_after_its_work_is_only_deleted(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	r := consume(t, server, nil)
	id := r.Send(state("stopping"))[0]
	l := r.lease(t)
	server.Steal(id)
	l.Done() // With a handle that is stale.
	eventually(t, "the lease is given up", func() bool { return r.queue.Status().Held == 0 })
	if server.Visible()+server.InFlight() != 1 {
		t.Fatal("a stale handle has deleted the message")
	}
	server.Reveal(id)
	eventually(t, "the queue is empty", r.empty)
	if len(r.leases) > 0 {
		t.Error("the work was begun again")
	}
}

func TestRun_deletes_what_is_not_ours_and_leaves_poison(t *testing.T) {
	t.Parallel()
	r := consume(t, newServer(t), nil)
	r.DeadAfter(3)
	r.Send("poison", state("pending"))
	eventually(t, "only the dead letter is left", func() bool { return r.empty() && len(r.DeadLetters()) == 1 })
	if r.told(sqs.Poisoned) != 1 || r.told(sqs.NotOurs) != 1 || len(r.leases) > 0 {
		t.Errorf("told %+v", r.reports)
	}
}

func TestRun_outage_of_SQS_ends_no_work(t *testing.T) {
	t.Parallel()
	r := consume(t, newServer(t), nil)
	r.Send(state("stopping"))
	m := r.lease(t)
	all := []string{"ReceiveMessage", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"}
	for _, action := range all {
		r.Always(action, sqstest.Unavailable())
	}
	r.Send(state("stopped")) // so that no request waits for long
	eventually(t, "trouble is told", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.trouble) > 0 })
	m.Done()
	for _, action := range all {
		r.Always(action, nil)
	}
	r.lease(t).Done()
	eventually(t, "the end of the trouble is told", func() bool {
		r.Send(state("stopping"))
		r.lease(t).Done()
		r.mu.Lock()
		defer r.mu.Unlock()
		return slices.Contains(r.trouble, nil)
	})
	eventually(t, "the queue is empty", r.empty)
}

func TestRun_dry_run_deletes_nothing_and_repeats_nothing(t *testing.T) {
	t.Parallel()
	r := consume(t, newServer(t), func(o *sqs.Options) { o.DryRun = true })
	r.Send(state("stopping"))
	r.lease(t).Done()
	eventually(t, "it was received again", func() bool { return r.Requests("ReceiveMessage") >= 4 })
	if r.Visible()+r.InFlight() != 1 || len(r.leases) > 0 {
		t.Error("the message was deleted, or begun again")
	}
}

func TestRun_returns_what_is_in_flight_at_its_end(t *testing.T) {
	t.Parallel()
	r := consume(t, newServer(t), func(o *sqs.Options) { o.Visibility = time.Hour })
	r.Send(state("stopping"))
	l := r.lease(t)
	time.AfterFunc(100*time.Millisecond, func() { l.Return(0) }) // When the end has begun.
	r.stop()
	if r.Visible() != 1 {
		t.Error("the message is hidden although nobody has it")
	}
}

func TestRun_storm_is_deleted_in_batches(t *testing.T) {
	t.Parallel()
	const storm = 300
	server := newServer(t)
	for range storm {
		server.Send(state("stopping"))
	}
	r := consume(t, server, func(o *sqs.Options) { o.Visibility = time.Minute })
	for range storm {
		r.lease(t).Done()
	}
	eventually(t, "the queue is empty", r.empty)
	if deletions := r.Requests("DeleteMessageBatch"); deletions > storm/2 {
		t.Errorf("%d requests deleted %d messages", deletions, storm)
	}
}

func TestRun_holds_the_largest_message_and_no_second(t *testing.T) {
	t.Parallel()
	const shortest = `{"entityValue":"i-01234567"},` // No instance is named with less.
	count := (1<<20 - len(health("X", "", ""))) / len(shortest)
	largest := health("X", "", strings.TrimSuffix(strings.Repeat(shortest, count), ","))
	r := consume(t, newServer(t), nil)
	r.Send(largest, largest)
	first := r.lease(t)
	eventually(t, "the second was returned", func() bool { return r.told(sqs.Returned) > 0 })
	if len(first.Notices) != count || len(r.leases) > 0 {
		t.Errorf("it says %d notices of %d, beside %d more messages", len(first.Notices), count, len(r.leases))
	}
	first.Done()
	second := r.lease(t)
	if len(second.Notices) != count {
		t.Errorf("the second says %d notices of %d", len(second.Notices), count)
	}
	second.Done()
	eventually(t, "the queue is empty", r.empty)
}

func TestRun_asks_the_host_of_the_URL(t *testing.T) {
	const public, endpoint = "sqs.eu-central-1.amazonaws.com", "vpce-0a1b2c3d-abcdefgh.sqs.eu-central-1.vpce.amazonaws.com"
	for name, row := range map[string]struct {
		host, want string
		sources    []any // what the environment says
		base       *string
	}{
		"a VPC endpoint's":              {host: endpoint, want: endpoint},
		"the region's own":              {host: public, want: public},
		"a legacy one":                  {host: "eu-central-1.queue.amazonaws.com", want: "eu-central-1.queue.amazonaws.com"},
		"unless settings say another":   {host: public, base: new("http://proxy.test"), want: "proxy.test"},
		"unless FIPS is to be taken":    {host: public, sources: []any{awsconfig.EnvConfig{UseFIPSEndpoint: aws.FIPSEndpointStateEnabled}}, want: "sqs-fips.eu-central-1.amazonaws.com"},
		"unless it is to be dual-stack": {host: public, sources: []any{awsconfig.EnvConfig{UseDualStackEndpoint: aws.DualStackEndpointStateEnabled}}, want: "sqs.eu-central-1.api.aws"},
	} {
		t.Run(name, func(t *testing.T) {
			asked := make(chan string, 1)
			q := sqs.New(sqs.Options{URL: "https://" + row.host + "/123456789012/q", AWS: aws.Config{
				Region: "eu-central-1", Credentials: aws.AnonymousCredentials{}, BaseEndpoint: row.base, ConfigSources: row.sources,
				HTTPClient: answers(func(r *http.Request) (any, error) { asked <- r.URL.Host; return map[string]any{}, nil }),
			}})
			if _, _, err := q.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := <-asked; got != row.want {
				t.Errorf("the queue at %s is asked at %s, want %s", row.host, got, row.want)
			}
		})
	}
}

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

// of returns a queue whose SQS answers so.
func of(a answers) *sqs.Queue {
	return sqs.New(sqs.Options{
		URL: "http://sqs.test/123456789012/interruptions", Visibility: time.Hour,
		AWS: aws.Config{Region: "eu-central-1", HTTPClient: a, Credentials: aws.AnonymousCredentials{}},
	})
}

// run runs a queue until it is stopped.
func run(t *testing.T, q *sqs.Queue, take func(*sqs.Message)) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		q.Run(ctx, take)
	}()
	synctest.Wait()
	return func() { cancel(); <-ended }
}

func TestStalled_not_while_SQS_is_silent_or_refuses(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]answers{
		"there are no messages":      nothing,
		"SQS refuses":                func(*http.Request) (any, error) { return nil, errors.New("connection refused") },
		"SQS does not answer at all": func(r *http.Request) (any, error) { <-r.Context().Done(); return nil, r.Context().Err() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := of(answer)
				defer run(t, q, func(*sqs.Message) {})()
				for range 60 {
					time.Sleep(time.Minute)
					if err := q.Stalled(); err != nil {
						t.Fatal(err)
					}
				}
			})
		})
	}
}

func TestStalled_while_a_receiver_hangs_for_over_90_s(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var given atomic.Bool
		goOn := make(chan struct{})
		q := of(func(r *http.Request) (any, error) {
			if !strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".ReceiveMessage") {
				return map[string]any{}, nil
			}
			if given.Swap(true) {
				return nothing(r) // The other receiver goes on all the time.
			}
			return map[string]any{"Messages": []any{map[string]any{"MessageId": "a", "ReceiptHandle": "b", "Body": state("stopping")}}}, nil
		})
		if err := q.Stalled(); err != nil {
			t.Errorf("before it begins: %v", err)
		}
		stop := run(t, q, func(m *sqs.Message) {
			<-goOn
			m.Done()
		})
		time.Sleep(90 * time.Second)
		if err := q.Stalled(); err != nil {
			t.Errorf("after 90 s: %v", err)
		}
		time.Sleep(time.Second)
		if err := q.Stalled(); err == nil || !strings.Contains(err.Error(), "neither an answer nor an error for 1m31s") {
			t.Errorf("after 91 s it says %v", err)
		}
		close(goOn)
		synctest.Wait()
		if err := q.Stalled(); err != nil {
			t.Errorf("when it goes on: %v", err)
		}
		stop()
		time.Sleep(time.Hour)
		if err := q.Stalled(); err != nil {
			t.Errorf("after the end: %v", err)
		}
	})
}
