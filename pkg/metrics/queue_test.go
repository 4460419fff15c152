package metrics_test

import (
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/record"
)

// at is a happening of a drain at a node.
func at(node string, what record.What, total, left int) record.Happening {
	h := spot(what, 0, time.Minute)
	h.Node, h.Total, h.Left, h.Pod = node, total, left, "shop/"+node
	return h
}

func TestDrainsOfManyNodesAreAddedUp(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Options{Queue: true})
	m.Hear(at("a", record.Begun, 0, 0))
	m.Hear(at("b", record.Begun, 0, 0))
	m.Hear(at("a", record.PodEvicted, 4, 3))
	m.Hear(at("b", record.PodHeld, 2, 2))
	want(t, m, map[string]float64{"nth_draining": 2, "nth_drain_pods": 6, "nth_drain_pods_left": 5, "nth_drain_pods_held": 1})

	m.Hear(at("b", record.PodEvicted, 2, 2))
	m.Hear(at("a", record.Done, 4, 0))
	want(t, m, map[string]float64{"nth_draining": 1, "nth_drain_pods": 2, "nth_drain_pods_left": 2, "nth_drain_pods_held": 0})

	m.Hear(at("b", record.RanOut, 2, 1))
	want(t, m, map[string]float64{
		"nth_draining": 0, "nth_drain_pods": 2, "nth_drain_pods_left": 1, `nth_actions_total{action="drain",outcome="deadline-exceeded"}`: 1,
	})
}

func TestTheQueueTellsHowItStands(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := metrics.New(metrics.Options{Queue: true})
		m.Messages("received", "deleted")
		m.Message("received")
		m.Received(300 * time.Millisecond)
		m.ShowQueue(metrics.QueueStanding{
			InFlight: 3, Oldest: time.Now().Add(-20 * time.Second), Up: true, Heard: time.Now(), Leased: true, Known: 9, Draining: 2, Waiting: 1,
		})
		m.Show(record.Status{Events: []record.EventStatus{{Kind: event.StateChange}}})
		want(t, m, map[string]float64{
			`nth_queue_messages_total{outcome="received"}`: 1, `nth_queue_messages_total{outcome="deleted"}`: 0,
			"nth_queue_messages_in_flight": 3, "nth_queue_oldest_message_age_seconds": 20, "nth_queue_up": 1, "nth_queue_lease_held": 1,
			"nth_queue_receive_delay_seconds_count": 1, "nth_queue_receive_delay_seconds_sum": 0.3,
			`nth_queue_nodes{state="known"}`: 9, `nth_queue_nodes{state="draining"}`: 2, `nth_queue_nodes{state="waiting"}`: 1,
			`nth_events_pending{kind="state-change"}`: 1,
		})
		wantNone(t, m, "nth_credential_up")

		m.ShowQueue(metrics.QueueStanding{})
		want(t, m, map[string]float64{"nth_queue_up": 0, "nth_queue_lease_held": 0, "nth_queue_oldest_message_age_seconds": 0})
	})
}

func TestWhoIsAliveNeedNotBeReady(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var away error
		m := metrics.New(metrics.Options{Queue: true, Ready: func() error { return away }})
		wantAnswer := func(path string, code int, text string) {
			t.Helper()
			if answer := ask(t, m, path); answer.Code != code || answer.Body.String() != text+"\n" {
				t.Errorf("%s says %d %q, want %d %q", path, answer.Code, answer.Body, code, text)
			}
		}
		wantAnswer("/readyz", http.StatusOK, "ok")

		away = errors.New("nothing was received from the queue yet")
		wantAnswer("/readyz", http.StatusServiceUnavailable, "nothing was received from the queue yet")
		wantAnswer("/healthz", http.StatusOK, "ok")

		away = nil
		time.Sleep(31 * time.Second)
		wantAnswer("/readyz", http.StatusServiceUnavailable, "the loop that decides has given no sign of life for 31s")
	})
}

func TestAReceiverThatHasStoppedIsNoHealth(t *testing.T) {
	t.Parallel()
	var stuck error
	m := metrics.New(metrics.Options{Queue: true, Stuck: func() error { return stuck }})
	if code := ask(t, m, "/healthz").Code; code != http.StatusOK {
		t.Errorf("a receiver that goes on is answered with %d", code)
	}
	stuck = errors.New("receiving from the queue: neither an answer nor an error for 91s")
	if code := ask(t, m, "/healthz").Code; code != http.StatusServiceUnavailable {
		t.Errorf("a receiver that has stopped is answered with %d", code)
	}
}
