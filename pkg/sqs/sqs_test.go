package sqs_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"

	"github.com/nth-project/nth/pkg/internal/querytest"
	"github.com/nth-project/nth/pkg/role"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/sqs/sqstest"
)

// rig is an SQS without a network, so that requests take place on the clock of testing/synctest, and a consumer of its queue.
type rig struct {
	*sqstest.Service
	t     *testing.T
	opts  sqs.Options
	queue *sqs.Queue
	stop  func()

	mu      sync.Mutex
	taken   []*sqs.Message
	reports map[sqs.Outcome]int
	trouble []error
}

// visibility is how long a message is hidden.
const visibility = 20 * time.Second

// bubble runs f with a queue that nobody reads yet.
func bubble(t *testing.T, f func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{Service: sqstest.New(), t: t, stop: func() {}}
		r.opts = sqs.Options{
			URL: "http://sqs.test" + sqstest.Path, Visibility: visibility,
			AWS: aws.Config{Region: "eu-central-1", Credentials: aws.AnonymousCredentials{}, HTTPClient: querytest.Client{Handler: r}},
			Report: func(report sqs.Report) {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.reports[report.Outcome]++
			},
			Trouble: func(err error) {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.trouble = append(r.trouble, err)
			},
		}
		defer func() { r.stop() }()
		f(r)
	})
}

// consume starts to read the queue, and keeps the messages.
func (r *rig) consume() {
	r.give(func(m *sqs.Message) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.taken = append(r.taken, m)
	})
}

// give starts to read the queue.
func (r *rig) give(take func(*sqs.Message)) {
	r.reports = map[sqs.Outcome]int{}
	r.queue = sqs.New(r.opts)
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.queue.Run(ctx, take)
	}()
	r.stop = sync.OnceFunc(func() { cancel(); <-done })
	synctest.Wait()
}

// pass lets time pass, and what happens at its end.
func (r *rig) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// take returns the only message that was taken.
func (r *rig) take() *sqs.Message {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.taken) != 1 {
		r.t.Fatalf("%d messages were taken, want one", len(r.taken))
	}
	m := r.taken[0]
	r.taken = nil
	return m
}

// mustBe fails unless the queue has so many visible messages, and others that are in flight.
func (r *rig) mustBe(visible, inFlight int) {
	r.t.Helper()
	if got, hidden := r.Visible(), r.InFlight(); got != visible || hidden != inFlight {
		r.t.Errorf("%d messages are visible and %d in flight, want %d and %d", got, hidden, visible, inFlight)
	}
}

// mustReport fails unless a report was made so often.
func (r *rig) mustReport(what sqs.Outcome, want int) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if got := r.reports[what]; got != want {
		r.t.Errorf("%d messages are reported as %s, want %d", got, what, want)
	}
}

// The work for a message lasts three minutes, while SQS and the network do what they like. It is begun once, and the message is deleted at
// its end; another consumer gets it only where SQS cannot know better.
func TestMessage_IsWorkedOnOnceAndDeleted(t *testing.T) {
	t.Parallel()
	const receive, remove, extend = "ReceiveMessage", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"
	outage := func(r *rig, f sqstest.Fault) {
		r.Fail(f)
		time.AfterFunc(5*time.Minute, r.Lift)
	}
	for name, row := range map[string]struct {
		before, midst, end func(r *rig, id string)
		lost               int // reports
		another            bool
	}{
		"all is well":    {},
		"deletions fail": {end: func(r *rig, _ string) { r.Fail(sqstest.Fault{Action: remove, Status: 503, Times: 20}) }},
		"deletions are throttled": {end: func(r *rig, _ string) {
			r.Fail(sqstest.Fault{Action: remove, Status: 400, Code: "ThrottlingException", Times: 20})
		}},
		"deletions hang":                    {end: func(r *rig, _ string) { r.Fail(sqstest.Fault{Action: remove, Times: 3}) }},
		"the answer to a deletion is lost":  {end: func(r *rig, _ string) { r.Fail(sqstest.Fault{Action: remove, Status: 500, Times: 1, After: true}) }, lost: 1},
		"deletions are refused for a while": {end: func(r *rig, _ string) { r.Deny(remove); time.AfterFunc(5*time.Minute, func() { r.Allow() }) }, lost: 1},
		"SQS is away during the work":       {midst: func(r *rig, _ string) { outage(r, sqstest.Fault{Status: 503}) }},
		"SQS is silent during the work":     {midst: func(r *rig, _ string) { outage(r, sqstest.Fault{}) }},
		"it answers 429 without a code":     {midst: func(r *rig, _ string) { outage(r, sqstest.Fault{Status: 429}) }},
		"extensions are refused":            {before: func(r *rig, _ string) { r.Deny(extend) }, lost: 1},
		"two receivers hang":                {before: func(r *rig, _ string) { r.Fail(sqstest.Fault{Action: receive, Times: 2}) }},
		"the message comes twice":           {midst: func(r *rig, id string) { r.Reveal(id) }},
		"it comes after its work":           {end: func(r *rig, id string) { r.Steal(id); time.AfterFunc(time.Minute, func() { r.Reveal(id) }) }, lost: 1, another: true},
		"its receipt handle expires":        {midst: func(r *rig, id string) { r.Steal(id) }, lost: 1, another: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				do := func(at func(*rig, string), id string) {
					if at != nil {
						at(r, id)
					}
				}
				do(row.before, "")
				r.consume()
				id := r.Send(state("stopping"))[0]
				synctest.Wait()
				m := r.take()
				if m.Notice.Instance != instance || m.Receives != 1 || !m.Sent.Equal(time.Now()) {
					t.Errorf("the message is %+v", m)
				}
				r.pass(time.Minute)
				do(row.midst, id)
				r.pass(2 * time.Minute)
				if name == "all is well" {
					r.mustBe(0, 1)
				}
				do(row.end, id)
				m.Done()
				r.pass(15 * time.Minute)
				if r.Visible()+r.InFlight() > 0 && !row.another || len(r.taken) > 0 || r.queue.Status().Held > 0 {
					t.Errorf("after a quarter of an hour the queue has %d and %d messages, and %d were taken again", r.Visible(), r.InFlight(), len(r.taken))
				}
				r.pass(15 * time.Minute)
				r.mustBe(0, 0)
				r.mustReport(sqs.Lost, row.lost)
				if len(r.taken) > 0 {
					t.Error("the work was begun again")
				}
			})
		})
	}
}

func TestReturn_ShowsTheMessageAfterATime(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.consume()
		r.Send(state("stopping"))
		synctest.Wait()
		r.take().Return(0)
		r.pass(time.Second)
		m := r.take()
		if m.Receives != 2 {
			t.Errorf("it was received %d times, want 2", m.Receives)
		}
		m.Return(time.Hour)
		r.pass(59 * time.Minute)
		r.mustBe(0, 1)
		if held := r.queue.Status().Held; held > 0 {
			t.Errorf("%d messages are held", held)
		}
		r.pass(2 * time.Minute)
		r.take().Done()
	})
}

func TestRun_DeletesWhatIsNotOursAndLeavesPoison(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.consume()
		r.Send("poison", state("pending"), "["+strings.Repeat("[", 100_000), strings.Repeat("x", 1<<20))
		r.pass(10 * time.Minute)
		r.mustReport(sqs.Poisoned, 3)
		r.mustReport(sqs.NotOurs, 1)
		if left := r.Visible() + r.InFlight(); left != 3 || len(r.taken) > 0 {
			t.Errorf("%d messages are left, and %d were taken", left, len(r.taken))
		}
	})
}

func TestRun_ReportsAnOutageAndItsEnd(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.Deny("ReceiveMessage")
		r.consume()
		r.pass(10 * time.Minute)
		if n := len(r.Calls("")); n < 10 || n > 150 || len(r.trouble) != 1 || r.queue.Status().Up {
			t.Errorf("%d attempts and %d reports in ten minutes; the queue is up: %t", n, len(r.trouble), r.queue.Status().Up)
		}
		const want = "the IAM role does not allow sqs:ReceiveMessage"
		if first := r.trouble[0].Error(); first != want {
			t.Errorf("the trouble is %q, want %q", first, want)
		}
		r.Allow()
		r.pass(time.Minute)
		if last := r.trouble[len(r.trouble)-1]; last != nil || !r.queue.Status().Up {
			t.Errorf("the last trouble is %v", last)
		}
	})
}

func TestRun_ADryRunDeletesNothingAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.opts.DryRun = true
		r.consume()
		r.Send(state("stopping"))
		synctest.Wait()
		r.take().Done()
		r.pass(10 * time.Minute)
		if n := len(r.Calls("DeleteMessageBatch")); n > 0 || r.Visible()+r.InFlight() != 1 || len(r.taken) > 0 {
			t.Errorf("%d deletions, and the message was taken again %d times", n, len(r.taken))
		}
	})
}

func TestRun_ReturnsWhatIsInFlightAtItsEnd(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.opts.Visibility = time.Hour
		r.consume()
		r.Send(state("stopping"))
		synctest.Wait()
		m := r.take()
		time.AfterFunc(time.Second, func() { m.Return(0) }) // when the end has begun
		r.stop()
		r.mustBe(1, 0)
	})
}

func TestRun_DeletesAStormInBatches(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		const storm = 1000
		r.Send(slices.Repeat([]string{state("stopping")}, storm)...)
		r.consume()
		if len(r.taken) != storm {
			t.Fatalf("%d messages were taken", len(r.taken))
		}
		for _, m := range r.taken {
			m.Done()
		}
		r.pass(time.Minute)
		r.mustBe(0, 0)
		if n := len(r.Calls("DeleteMessageBatch")); n > storm/5 {
			t.Errorf("%d requests deleted %d messages", n, storm)
		}
	})
}

func TestNew_AsksTheHostOfTheURL(t *testing.T) {
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
				HTTPClient: querytest.Client{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { asked <- r.URL.Host; fmt.Fprint(w, "{}") })},
			}})
			if _, _, err := q.Setup(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := <-asked; got != row.want {
				t.Errorf("the queue at %s is asked at %s, want %s", row.host, got, row.want)
			}
		})
	}
}

// Nothing hangs while SQS is silent or refuses. A receiver hangs if who gets the messages does not return.
func TestStalled_OnlyWhileAllReceiversHang(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		prepare func(r *rig)
		want    string
	}{
		"no messages":         {prepare: func(*rig) {}},
		"SQS refuses":         {prepare: func(r *rig) { r.Deny("ReceiveMessage") }},
		"SQS does not answer": {prepare: func(r *rig) { r.Fail(sqstest.Fault{}) }},
		"messages are not taken": {
			prepare: func(r *rig) { r.Send(slices.Repeat([]string{state("stopping")}, 100)...) }, want: "SQS has given neither an answer nor an error for 1h0m0s",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				r.opts.Visibility = 2 * time.Hour
				taken := make(chan struct{})
				wants := func(when, want string) {
					t.Helper()
					if got := fmt.Sprint(r.queue.Stalled()); want == "" && got != "<nil>" || !strings.Contains(got, want) {
						t.Errorf("%s it says %s, want %q", when, got, want)
					}
				}
				row.prepare(r)
				r.give(func(m *sqs.Message) { <-taken; m.Done() })
				r.pass(time.Hour)
				wants("after an hour", row.want)
				close(taken)
				r.stop()
				r.pass(time.Hour)
				wants("after the end", "")
			})
		})
	}
}

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
		"few receipts":       {"RedrivePolicy", fmt.Sprintf(redrive, `"9"`), "a message becomes a dead letter after 9 receipts (maxReceiveCount)"},
		"enough receipts":    {"RedrivePolicy", fmt.Sprintf(redrive, "10"), ""},
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
