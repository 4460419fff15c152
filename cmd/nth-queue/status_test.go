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

	queue "github.com/nth-project/nth/cmd/nth-queue"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/sqs"
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

func TestTheWatchdogStarvesWhileAReceiverIsStuck(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		service, systemdIs := &line{back: make(chan struct{})}, &manager{}
		log, said := logtest.NewNullLogger()
		messages := sqs.New(sqs.Options{
			URL: "https://sqs.eu-central-1.amazonaws.com/123456789012/q", Visibility: time.Minute,
			AWS: aws.Config{Region: "eu-central-1", HTTPClient: service, Credentials: aws.AnonymousCredentials{}},
		})
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
		messages := sqs.New(sqs.Options{
			URL: "https://sqs.eu-central-1.amazonaws.com/123456789012/q", Visibility: time.Minute,
			AWS: aws.Config{Region: "eu-central-1", HTTPClient: service, Credentials: aws.AnonymousCredentials{}},
		})
		want := func(stand fleet.Status, why string) {
			t.Helper()
			synctest.Wait()
			if got := queue.Unready(stand, messages); (got == nil) != (why == "") || got != nil && !strings.HasPrefix(got.Error(), why) {
				t.Errorf("not ready because of %v, want %q", got, why)
			}
		}
		leads := fleet.Status{Known: true, Leads: true}
		want(fleet.Status{}, "no list of Nodes from the API server yet")
		want(leads, "nothing was received from the queue yet")
		want(fleet.Status{Known: true, Leader: "host-2"}, "")
		want(fleet.Status{Known: true, LeaseError: errors.New("forbidden")}, "the Lease cannot be read or written: forbidden")

		ctx, stop := context.WithCancel(t.Context())
		go messages.Run(ctx, func(*sqs.Message) {})
		time.Sleep(5 * time.Minute)
		want(leads, "")

		service.dead.Store(true)
		time.Sleep(90 * time.Second)
		want(leads, "nothing was received from the queue for ")
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
		"waiting for the list of Nodes from the API server":                             {},
		"standing by; host-2 leads":                                                     {Known: true, Nodes: 9, Leader: "host-2"},
		"standing by; nobody leads; the Lease cannot be read or written since 12:00:00": {Known: true, LeaseError: errors.New("forbidden"), Since: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)},
		"reading the queue for 9 nodes; nothing is announced":                           {Known: true, Leads: true, Nodes: 9},
		"draining 1 node, 2 waiting, 3 left alone; 0 messages in flight":                {Known: true, Leads: true, Nodes: 9, Draining: 1, Waiting: 2, LeftAlone: 3},
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
		"the Lease cannot be read":           {fleet.Status{Known: true, LeaseError: errors.New("forbidden")}, http.StatusOK, http.StatusServiceUnavailable, ""},
		"the Nodes are not known":            {fleet.Status{}, http.StatusOK, http.StatusServiceUnavailable, ""},
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
