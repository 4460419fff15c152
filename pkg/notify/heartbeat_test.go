package notify_test

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/state"
)

// beating lets a stage have a heartbeat every five minutes, as long as what it returns is true.
func beating(s *stage) *atomic.Bool {
	alive := &atomic.Bool{}
	alive.Store(true)
	s.opts.Events, s.opts.Heartbeat, s.opts.Alive = false, 5*time.Minute, alive.Load
	return alive
}

// age is how old the heartbeat is.
func (s *stage) age() time.Duration {
	s.t.Helper()
	c := s.cluster.condition()
	if c == nil {
		s.t.Fatal("there is no condition")
	}
	return time.Since(c.LastHeartbeatTime.Time)
}

// writes counts the writes of the condition since the requests were last asked for.
func (s *stage) writes() int {
	return len(slices.DeleteFunc(s.cluster.asked(), func(what string) bool { return what != "patch condition" }))
}

func TestHeartbeat_IsRenewedThoughNothingIsAnnounced(t *testing.T) {
	play(t, func(t *testing.T) *cluster { return newCluster(t, kubelets) }, func(s *stage) {
		beating(s)
		s.start()
		s.want(corev1.ConditionFalse, "NothingPending")
		first := *s.cluster.condition()
		s.writes()
		for range 24 * 60 {
			s.pass(time.Minute)
			if age := s.age(); age > 5*time.Minute+31*time.Second {
				t.Fatalf("the heartbeat is %s old", age)
			}
		}
		if n := s.writes(); n < 24*60*10/55-2 || n > 24*60*10/45+2 {
			t.Errorf("%d writes in a day, want one about every five minutes", n)
		}
		if again := *s.cluster.condition(); again.LastTransitionTime != first.LastTransitionTime || s.cluster.conditions[0] != kubelets {
			t.Errorf("the conditions became %+v, and ours was %+v at first", s.cluster.conditions, first)
		}
	})
}

func TestHeartbeat_StopsWhileNTHDoesNotWork(t *testing.T) {
	play(t, bare, func(s *stage) { // since the start
		beating(s).Store(false)
		s.start()
		s.pass(time.Hour)
		if c := s.cluster.condition(); c != nil {
			t.Errorf("the condition is %+v, want none", c)
		}
	})
	for name, test := range map[string]struct {
		pending, away bool
		status        int // of requests for the Node
	}{
		"nothing is announced": {}, "something is announced": {pending: true}, "there is no identity": {away: true},
		"there is no Node": {status: http.StatusNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, bare, func(s *stage) {
				alive := beating(s)
				s.start()
				if test.pending {
					s.tell(announced(spot(state.Seen)))
					s.pass(10 * time.Second)
				}
				alive.Store(test.away || test.status != 0)
				s.away.Store(test.away)
				s.cluster.answers("get node", test.status)
				s.writes()
				s.pass(30 * time.Hour)
				if n := s.writes(); n != 0 || s.age() < 30*time.Hour {
					t.Errorf("the condition was written %d times, and is %s old", n, s.age())
				}
				alive.Store(true)
				s.away.Store(false)
				s.cluster.answers("get node", 0)
				s.pass(2 * time.Minute)
				if age := s.age(); age > 2*time.Minute {
					t.Errorf("the heartbeat is %s old after all is well for two minutes", age)
				}
			})
		})
	}
}

func TestHeartbeat_DoesNotHoldUpWhatIsAnnounced(t *testing.T) {
	play(t, bare, func(s *stage) {
		beating(s).Store(false)
		s.start()
		s.tell(announced(spot(state.Seen)))
		s.pass(10 * time.Second)
		s.want(corev1.ConditionTrue, "SpotInterruption")
		s.over()
		s.want(corev1.ConditionFalse, "NothingPending")
	})
}

func TestHeartbeat_OfADryRunReportsNoEvent(t *testing.T) {
	play(t, func(t *testing.T) *cluster { return newCluster(t, stale()) }, func(s *stage) {
		beating(s)
		s.opts.DryRun = true
		s.start()
		s.want(corev1.ConditionFalse, "DryRun", "dry run")
		s.tell(announced(spot(state.Draining)))
		s.cordoned()
		s.pass(time.Hour)
		s.want(corev1.ConditionFalse, "DryRun")
		if age := s.age(); age > 6*time.Minute {
			t.Errorf("the heartbeat is %s old", age)
		}
		if strings.Contains(strings.Join(s.cluster.asked(), " "), "event") {
			t.Errorf("a dry run wrote Events")
		}
	})
}

// nth-queue hears of failed status checks, of which the machine knows nothing. Its condition and labels stay until the machine has an event.
func TestHeartbeat_LeavesWhatNTHQueueHasAnnounced(t *testing.T) {
	queues := stale()
	queues.Reason, queues.Message = "StatusCheckFailed", "nth-queue: EC2 says that the machine is impaired"
	for name, c := range map[string]struct {
		interval time.Duration
		dry      bool
	}{
		"without a heartbeat": {0, false}, "with one": {5 * time.Minute, false}, "in a dry run": {5 * time.Minute, true},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(t *testing.T) *cluster { return newCluster(t, queues) }, func(s *stage) {
				beating(s)
				s.cluster.labels[notify.KindLabel] = "status-check"
				s.opts.Heartbeat, s.opts.DryRun, s.opts.Labels = c.interval, c.dry, true
				s.start()
				s.pass(time.Hour)
				s.want(corev1.ConditionTrue, "StatusCheckFailed")
				s.wantLabels("status-check", "")
				if age := s.age(); (age < 6*time.Minute) != (c.interval > 0) {
					t.Errorf("the heartbeat is %s old", age)
				}
				if now := s.cluster.condition(); now.Message != queues.Message || !now.LastTransitionTime.Equal(&queues.LastTransitionTime) {
					t.Errorf("the condition became %+v", now)
				}
				if c.dry {
					return
				}
				s.tell(announced(spot(state.Seen)))
				s.pass(time.Second)
				s.want(corev1.ConditionTrue, "SpotInterruption")
				s.wantLabels("spot-interruption", "")
			})
		})
	}
}
