package notify_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/state"
)

// announceAndDrain is three Events, and the condition.
func (s *stage) announceAndDrain() {
	s.tell(announced(spot(state.Seen)))
	s.cordoned()
	s.tell(drained(0))
}

func (s *stage) wantEvents(count int) {
	s.t.Helper()
	if lines := s.lines(); len(lines) != count {
		s.t.Errorf("the Events are %q, want %d", lines, count)
	}
}

func TestKubernetes_WritesWhenTheAPIServerIsBack(t *testing.T) {
	for name, status := range map[string]int{"hanging": -1, "500": 500, "503": 503, "429": 429, "401": 401} {
		t.Run(name, func(t *testing.T) {
			play(t, bare, func(s *stage) {
				s.start()
				s.cluster.asked()
				s.cluster.answers("", status)
				s.announceAndDrain()
				s.pass(10 * time.Minute)
				if n := len(s.cluster.asked()); n < 16 || n > 92 { // 46 each, if all jitter is short
					t.Errorf("%d requests in ten minutes of outage, want about two a minute for the condition, and two for Events", n)
				}
				if len(s.trouble) != 2 || !strings.Contains(s.trouble[0], "trying again") {
					t.Errorf("said %q, want one sentence about the condition and one about Events", s.trouble)
				}
				s.cluster.answers("", 0)
				s.pass(2 * time.Minute)
				s.want(corev1.ConditionTrue, "SpotInterruption")
				s.wantEvents(3)
			})
		})
	}
}

// An admission webhook that is down, or Events in an etcd of their own, let one kind of request fail and not the other.
func TestKubernetes_WritesOnThoughSomeRequestsFail(t *testing.T) {
	for name, test := range map[string]struct {
		fails     string
		status    int
		stops     bool
		condition bool // it is written
		events    int
	}{
		"the condition":            {fails: "patch", status: 500, events: 4},
		"the condition, at a stop": {fails: "patch", status: 500, stops: true, events: 4},
		"all Events":               {fails: "create", status: 500, condition: true},
		"those about pods hang":    {fails: "create event PodEviction", status: -1, condition: true, events: 3},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, bare, func(s *stage) {
				s.start()
				s.cluster.answers(test.fails, test.status)
				s.announceAndDrain()
				s.tell(pod(state.PodEvicted, "a"))
				if test.stops {
					s.end()
				}
				s.pass(time.Minute)
				s.wantEvents(test.events)
				if c := s.cluster.condition(); (c != nil) != test.condition {
					t.Errorf("the condition is %v", c)
				}
				if test.stops {
					return
				}
				s.cluster.answers("", 0)
				s.pass(2 * time.Minute)
				s.wantEvents(4)
				s.want(corev1.ConditionTrue, "SpotInterruption")
			})
		})
	}
}

func TestKubernetes_SaysARefusalOnce(t *testing.T) {
	play(t, bare, func(s *stage) {
		s.cluster.answers("", http.StatusForbidden)
		s.start()
		for range 5 {
			s.announceAndDrain()
			s.pass(time.Minute)
		}
		if len(s.trouble) != 2 || !strings.Contains(s.trouble[0], "condition InterruptionPending") || !strings.Contains(s.trouble[1], "Events") {
			t.Errorf("said %q, want a sentence about the condition and one about Events", s.trouble)
		}
		s.cluster.answers("", 0)
		s.tell(drained(0))
		s.pass(time.Minute)
		s.want(corev1.ConditionTrue, "SpotInterruption")
		s.wantEvents(1)
	})
}

func TestKubernetes_JudgesTheAnswerToOneEvent(t *testing.T) {
	for name, test := range map[string]struct {
		status, tries, faults int
	}{
		"a quota":              {403, 2, 1},
		"a namespace is gone":  {404, 2, 0},
		"it is no good":        {422, 2, 1},
		"it exists since then": {409, 2, 0}, // The answer to the first attempt was lost.
	} {
		t.Run(name, func(t *testing.T) {
			play(t, bare, func(s *stage) {
				s.opts.Condition = false
				s.start()
				s.cluster.answers("create event PodEviction", test.status)
				s.cordoned()
				s.tell(pod(state.PodEvicted, "a"))
				s.tell(pod(state.PodEvicted, "b"))
				s.tell(drained(2))
				s.pass(time.Minute)
				s.wantEvents(2) // about the Node
				tries := slices.DeleteFunc(s.cluster.asked(), func(what string) bool { return what != "create event PodEviction" })
				if len(tries) != test.tries || len(s.trouble) != test.faults {
					t.Errorf("%d attempts and %q, want %d and %d faults", len(tries), s.trouble, test.tries, test.faults)
				}
			})
		})
	}
}

func TestKubernetes_WaitsForAnIdentity(t *testing.T) {
	play(t, bare, func(s *stage) {
		s.away.Store(true)
		s.start()
		s.tell(announced(spot(state.Seen)))
		s.pass(time.Hour)
		s.cluster.wantAsked()
		s.away.Store(false)
		s.pass(time.Hour)
		s.want(corev1.ConditionTrue, "SpotInterruption")
		s.wantEvents(1)
		if len(s.trouble) > 0 {
			t.Errorf("said %q, want nothing of the identity", s.trouble)
		}
	})
}

func TestKubernetes_WritesAtAStopWhatIsLeft(t *testing.T) {
	for status, longest := range map[int]time.Duration{0: 0, -1: 3 * time.Second} { // -1 is an API server that hangs.
		play(t, bare, func(s *stage) {
			s.start()
			s.cluster.answers("", status)
			s.tell(announced(spot(state.Seen)))
			s.cordoned()
			for i := range 20 {
				s.tell(pod(state.PodEvicted, fmt.Sprint(i)))
			}
			began := time.Now()
			s.end()
			if took := time.Since(began); took > longest {
				t.Errorf("stopping took %s, want %s", took, longest)
			}
			if status == 0 {
				s.want(corev1.ConditionTrue, "SpotInterruption")
				s.wantEvents(22)
			}
		})
	}
}

func TestKubernetes_WritesNothingThatIsSwitchedOff(t *testing.T) {
	play(t, bare, func(s *stage) {
		s.opts.Condition, s.opts.Events = false, false
		s.start()
		s.announceAndDrain()
		s.pass(time.Hour)
		s.cluster.wantAsked()
	})
}

// More updates of conditions wait than the queue holds, and the oldest is lost. Its node still gets the next update.
func TestKubernetes_WritesTheConditionAfterAnUpdateWasLost(t *testing.T) {
	play(t, bare, func(s *stage) {
		var ctx context.Context
		ctx, s.stop = context.WithCancel(s.t.Context())
		k := notify.NewKubernetes(s.opts)
		s.ended.Go(func() { k.Run(ctx) })
		s.node = k.Node(nodeName, s.identity, s.record)
		for i := range 4096 { // These wait for their first update.
			k.Node(fmt.Sprint(i), s.identity, func() []state.Entry { return nil })
		}
		s.pass(10 * time.Second)
		s.tell(announced(spot(state.Seen)))
		s.pass(10 * time.Second)
		s.want(corev1.ConditionTrue, "SpotInterruption")
	})
}
