package main_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	queue "github.com/nth-project/nth/cmd/nth-queue"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// manager counts how often the watchdog is fed.
type manager struct{ beats atomic.Int32 }

func (m *manager) Beat()                 { m.beats.Add(1) }
func (m *manager) Status(string, ...any) {}

// line is a connection to an SQS whose queue is empty. While it is dead, no request ends, whatever becomes of its context.
type line struct {
	dead atomic.Bool
	back chan struct{}
}

func (l *line) Do(r *http.Request) (*http.Response, error) {
	if l.dead.Load() {
		<-l.back
	}
	select {
	case <-r.Context().Done():
		return nil, r.Context().Err()
	case <-time.After(20 * time.Second):
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("{}")), Request: r}, nil
	}
}

// queue is read over the line.
func (l *line) queue() *sqs.Queue {
	return sqs.New(sqs.Options{
		URL: "https://sqs.eu-central-1.amazonaws.com/123456789012/q", Visibility: time.Minute, Report: func(sqs.Report) {}, Trouble: func(error) {},
		AWS: aws.Config{Region: "eu-central-1", HTTPClient: l, Credentials: aws.AnonymousCredentials{}},
	})
}

func TestTheWatchdogStarvesWhileAReceiverIsStuck(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		service, systemdIs := &line{back: make(chan struct{})}, &manager{}
		log, said := logtest.NewNullLogger()
		messages := service.queue()
		ctx, stop := context.WithCancel(t.Context())
		go messages.Run(ctx, func(*sqs.Message) {})
		go queue.ShowAndBeat(ctx, messages, systemdIs, logrus.NewEntry(log), dir)
		fed := func(passed time.Duration) int {
			before := systemdIs.beats.Load()
			time.Sleep(passed)
			synctest.Wait()
			return int(systemdIs.beats.Load() - before)
		}

		if n := fed(5 * time.Minute); n < 299 || n > 301 {
			t.Errorf("in five minutes with an empty queue, the watchdog was fed %d times", n)
		}
		service.dead.Store(true)
		fed(2 * time.Minute)
		if n := fed(time.Minute); n != 0 {
			t.Errorf("while nobody reads the queue, the watchdog was fed %d times", n)
		}
		if entry := said.LastEntry(); entry == nil || entry.Data[systemd.FieldMessageID] != systemd.SourceTrouble || len(said.AllEntries()) != 1 {
			t.Errorf("it was said %v, want the trouble, once", said.AllEntries())
		}
		service.dead.Store(false)
		close(service.back)
		if n := fed(time.Minute); n < 59 || n > 61 {
			t.Errorf("in a minute in which the queue is read again, the watchdog was fed %d times", n)
		}
		stop()
		synctest.Wait()
	})
}

func TestReadyz_NeedsTheAPIServerAndTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := &line{back: make(chan struct{})}
		messages := service.queue()
		want := func(stand fleet.Status, why string) {
			t.Helper()
			synctest.Wait()
			if got := queue.Unready(stand, messages); (got == nil) != (why == "") || got != nil && !strings.HasPrefix(got.Error(), why) {
				t.Errorf("not ready because of %v, want %q", got, why)
			}
		}
		leads := fleet.Status{Known: true, Leads: true}
		want(fleet.Status{}, "no list of Nodes from the API server yet")
		want(leads, "SQS has not answered any ReceiveMessage request yet")
		want(fleet.Status{Known: true, Leader: "host-2"}, "")
		want(fleet.Status{Known: true, LeaseError: errors.New("forbidden")}, "nth-queue cannot read or write its leader-election Lease: forbidden")

		ctx, stop := context.WithCancel(t.Context())
		go messages.Run(ctx, func(*sqs.Message) {})
		time.Sleep(5 * time.Minute)
		want(leads, "")

		service.dead.Store(true)
		time.Sleep(90 * time.Second)
		want(leads, "SQS has not answered any ReceiveMessage request for ")
		service.dead.Store(false)
		close(service.back)
		time.Sleep(time.Minute)
		want(leads, "")
		stop()
		synctest.Wait()
	})
}

func TestStatus_SaysHowTheFleetStands(t *testing.T) {
	for want, stand := range map[string]fleet.Status{
		"waiting for the list of Nodes from the API server": {},
		"standing by; host-2 leads":                         {Known: true, Nodes: 9, Leader: "host-2"},
		"standing by; nobody leads; the leader-election Lease cannot be read or written since 12:00:00": {Known: true, LeaseError: errors.New("forbidden"), Since: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)},
		"reading the queue for 9 nodes; nothing is announced":                                           {Known: true, Leads: true, Nodes: 9},
		"draining 1 node, 2 waiting, 3 left alone; 0 messages in flight":                                {Known: true, Leads: true, Nodes: 9, Draining: 1, Waiting: 2, LeftAlone: 3},
	} {
		if got := queue.Sentence(stand); got != want {
			t.Errorf("%+v is shown as %q, want %q", stand, got, want)
		}
	}
}

func TestProbes_SayWhoLeads(t *testing.T) {
	for name, row := range map[string]struct {
		stand   fleet.Status
		healthz int
		readyz  int
		said    string // by both
	}{
		"it leads, and has received nothing": {fleet.Status{Known: true, Leads: true}, http.StatusOK, http.StatusServiceUnavailable, ""},
		"it stands by":                       {fleet.Status{Known: true, Leader: "host-2"}, http.StatusOK, http.StatusOK, "host-2 leads"},
		"nobody leads":                       {fleet.Status{Known: true}, http.StatusOK, http.StatusOK, "nobody is known to lead"},
	} {
		probes := queue.Probes(sqs.New(sqs.Options{}), row.stand)
		for path, code := range map[string]int{"/healthz": row.healthz, "/readyz": row.readyz} {
			answer := httptest.NewRecorder()
			probes.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
			if answer.Code != code || !strings.Contains(answer.Body.String(), row.said) {
				t.Errorf("%s: the answer of %s is %d: %s", name, path, answer.Code, answer.Body)
			}
		}
	}
}

// The API server does not take the condition while a node is worked on, and does minutes later.
func TestConditions_AreThoseOfTheLastDrainOfTheLeader(t *testing.T) {
	for name, row := range map[string]struct {
		again, replaced, deposed bool
		want                     string
	}{
		"one drain":                          {want: "is stopping"},
		"this process does not lead since":   {deposed: true},
		"another machine has its name since": {replaced: true},
		"another drain since":                {again: true, want: "someone uncordoned the node"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "one"}}
				client := fake.NewClientset(node)
				var away atomic.Bool
				away.Store(true)
				written := ""
				client.PrependReactor("patch", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
					if away.Load() {
						return true, nil, apierrors.NewServiceUnavailable("not now")
					}
					written = string(a.(clienttesting.PatchAction).GetPatch())
					return false, nil, nil
				})
				var cfg config.Queue
				cfg.Kubernetes.Condition, cfg.Events.StateChange.Action = true, "drain"
				of, stop := queue.Report(t.Context(), cfg, client, func() error {
					if row.deposed && !away.Load() {
						return errors.New("another process leads")
					}
					return nil
				})
				in := func(uncordoned time.Time) func() []state.Entry {
					e := state.Entry{Event: event.Event{ID: "stop", Kind: event.StateChange, State: event.Pending}, Phase: state.Cordoned, CordonedAt: time.Now(), ReleasedAt: uncordoned}
					return func() []state.Entry { return []state.Entry{e} }
				}
				of("a", "one", in(time.Time{}))
				time.Sleep(time.Minute)
				if row.again {
					of("a", "one", in(time.Now()))
				}
				if row.replaced {
					node.UID = "the next"
					if _, err := client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(time.Minute)
				away.Store(false)
				time.Sleep(3 * time.Minute)
				synctest.Wait()
				if (written == "") != (row.want == "") || !strings.Contains(written, row.want) {
					t.Errorf("written was %q, want that the node %q", written, row.want)
				}
				stop()
			})
		})
	}
}
