package notify_test

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

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
)

// outages are ways in which the API server does not answer.
var outages = map[string]int{"hanging": -1, "500": 500, "503": 503, "429": 429, "401": 401}

func TestWhatCannotBeWrittenIsWrittenWhenTheAPIServerIsBack(t *testing.T) {
	for name, status := range outages {
		t.Run(name, func(t *testing.T) {
			play(t, bare, func(s *stage) {
				s.start()
				s.cluster.asked()
				s.cluster.answers("", status)
				s.tell(announced(spot(state.Seen)))
				s.cordoned()
				s.tell(drained(0))
				s.pass(10 * time.Minute)
				if n := len(s.cluster.asked()); n < 16 || n > 40 {
					t.Errorf("%d requests in ten minutes of outage, want about one a minute for the condition, and one for Events", n)
				}
				if len(s.trouble) != 2 || !strings.Contains(s.trouble[0], "trying again") {
					t.Errorf("said %q, want one sentence about the condition and one about Events", s.trouble)
				}
				s.cluster.answers("", 0)
				s.pass(2 * time.Minute)
				s.want(corev1.ConditionTrue, "SpotInterruption")
				if lines := s.lines(); len(lines) != 3 {
					t.Errorf("the Events are %q, want 3", lines)
				}
			})
		})
	}
}

// An admission webhook that is down, or Events in an etcd of their own, let one kind of request fail and not the other.
func TestWhatCannotBeWrittenKeepsNothingElseWaiting(t *testing.T) {
	announce := func(s *stage) {
		s.tell(announced(spot(state.Seen)))
		s.cordoned()
		s.tell(drained(0))
	}
	t.Run("the conditions", func(t *testing.T) {
		play(t, bare, func(s *stage) {
			s.start()
			s.cluster.answers("patch", http.StatusInternalServerError)
			announce(s)
			s.pass(10 * time.Second)
			if lines := s.lines(); len(lines) != 3 {
				t.Errorf("the Events are %q, want 3", lines)
			}
		})
	})
	t.Run("the conditions, when nth stops", func(t *testing.T) {
		play(t, bare, func(s *stage) {
			s.start()
			s.cluster.answers("patch", http.StatusInternalServerError)
			announce(s)
			s.end()
			if lines := s.lines(); len(lines) != 3 {
				t.Errorf("the Events are %q, want 3", lines)
			}
		})
	})
	t.Run("Events", func(t *testing.T) {
		play(t, bare, func(s *stage) {
			s.start()
			s.cluster.answers("create", http.StatusInternalServerError)
			s.tell(announced(entry("r", event.RebalanceRecommendation, state.Seen)))
			s.pass(5 * time.Minute)
			s.tell(announced(spot(state.Draining)))
			s.cordoned()
			s.pass(time.Second)
			s.want(corev1.ConditionTrue, "SpotInterruption")
		})
	})
}

func TestWhatIsRefusedIsSaidOnceAndNotTriedForAnHour(t *testing.T) {
	play(t, bare, func(s *stage) {
		s.cluster.answers("", http.StatusForbidden)
		s.start()
		for range 5 {
			s.tell(announced(spot(state.Seen)))
			s.cordoned()
			s.tell(drained(0))
			s.pass(time.Minute)
		}
		s.cluster.wantAsked("get node", "create event SpotInterruption")
		if len(s.trouble) != 2 || !strings.Contains(s.trouble[0], "condition InterruptionPending") || !strings.Contains(s.trouble[1], "Events") {
			t.Errorf("said %q, want a sentence about the condition and one about Events", s.trouble)
		}
		s.cluster.answers("", 0)
		s.pass(time.Hour)
		s.want(corev1.ConditionTrue, "SpotInterruption")
		s.tell(drained(0))
		s.pass(time.Minute)
		if len(s.lines()) == 0 {
			t.Errorf("there are no Events an hour later")
		}
	})
}

func TestOnePodsEventThatIsRefusedLeavesTheOthers(t *testing.T) {
	for name, status := range map[string]int{"by a quota": 403, "for its namespace is gone": 404, "as no good": 422} {
		t.Run(name, func(t *testing.T) {
			play(t, bare, func(s *stage) {
				s.opts.Condition = false
				s.start()
				s.cluster.answers("create event PodEviction", status)
				s.cordoned()
				s.tell(pod(state.PodEvicted, "a"))
				s.tell(pod(state.PodEvicted, "b"))
				s.tell(drained(2))
				s.pass(time.Minute)
				if n := len(s.lines()); n != 2 {
					t.Errorf("the Events are %q, want the two about the node", s.lines())
				}
				if want := min(status-404, 1); len(s.trouble) != want*want {
					t.Errorf("said %q, want %d", s.trouble, want*want)
				}
			})
		})
	}
}

// An answer that was lost on its way leaves an Event that is there when it is created again.
func TestAnEventThatIsThereAlreadyIsWritten(t *testing.T) {
	play(t, bare, func(s *stage) {
		s.opts.Condition = false
		s.start()
		s.cluster.asked()
		s.cluster.answers("create", http.StatusConflict)
		s.tell(announced(spot(state.Seen)))
		s.pass(time.Minute)
		s.cluster.wantAsked("create event SpotInterruption")
		if len(s.trouble) != 0 {
			t.Errorf("said %q, want nothing", s.trouble)
		}
	})
}

func TestWithoutAnIdentityEverythingWaits(t *testing.T) {
	play(t, bare, func(s *stage) {
		s.away.Store(true)
		s.start()
		s.tell(announced(spot(state.Seen)))
		s.pass(time.Hour)
		s.cluster.wantAsked()
		s.away.Store(false)
		s.pass(2 * time.Minute)
		s.want(corev1.ConditionTrue, "SpotInterruption")
		if len(s.lines()) != 1 || len(s.trouble) != 0 {
			t.Errorf("the Events are %q, and said was %q", s.lines(), s.trouble)
		}
	})
}

func TestAnOutageOfDaysKeepsTheNewestEvents(t *testing.T) {
	play(t, bare, func(s *stage) {
		s.opts.Condition = false
		s.away.Store(true)
		s.start()
		for i := range 1000 {
			s.tell(announced(entry(fmt.Sprint(i), event.RebalanceRecommendation, state.Seen)))
		}
		s.tell(announced(spot(state.Seen)))
		s.away.Store(false)
		s.pass(time.Hour)
		lines := s.lines()
		if len(lines) > 256 || !slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, "SpotInterruption") }) {
			t.Errorf("%d Events, want at most 256 with the last one among them", len(lines))
		}
	})
}

func TestStoppingWritesWhatIsLeft(t *testing.T) {
	play(t, bare, func(s *stage) {
		s.start()
		s.tell(announced(spot(state.Seen)))
		s.cordoned()
		for i := range 20 {
			s.tell(pod(state.PodEvicted, fmt.Sprint(i)))
		}
		began := time.Now()
		s.end()
		if took := time.Since(began); took > 0 {
			t.Errorf("stopping took %s with an API server that answers at once", took)
		}
		s.want(corev1.ConditionTrue, "SpotInterruption")
		if n := len(s.lines()); n != 22 {
			t.Errorf("%d Events, want 22", n)
		}
	})
}

func TestStoppingDoesNotWaitForAnAPIServerThatHangs(t *testing.T) {
	play(t, bare, func(s *stage) {
		s.start()
		s.cluster.answers("", -1)
		s.tell(announced(spot(state.Seen)))
		s.pass(2 * time.Second)
		began := time.Now()
		s.end()
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("stopping took %s", took)
		}
	})
}

func TestNeitherIsWrittenWhenItIsSwitchedOff(t *testing.T) {
	play(t, bare, func(s *stage) {
		s.opts.Condition, s.opts.Events = false, false
		s.start()
		s.tell(announced(spot(state.Seen)))
		s.cordoned()
		s.pass(time.Hour)
		s.cluster.wantAsked()
	})
}

// One that tells of a node among many ends by itself, with all that it was told written, when it is its turn.
func TestWhatWasToldBeforeTheFinishIsWritten(t *testing.T) {
	play(t, bare, func(s *stage) {
		turn := make(chan struct{}, 1)
		s.opts.Condition = false
		s.opts.Turn = func(ctx context.Context, _ bool) (func(), error) {
			select {
			case turn <- struct{}{}:
				return func() { <-turn }, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		s.start()
		turn <- struct{}{} // Somebody else makes a request.
		s.cordoned()
		s.tell(drained(1))
		s.k.Finish()
		s.pass(10 * time.Second)
		if lines := s.lines(); len(lines) > 0 {
			t.Errorf("while it is not its turn it wrote %v", lines)
		}
		<-turn
		s.ended.Wait()
		if lines := s.lines(); len(lines) != 2 {
			t.Errorf("it wrote %v, want the cordon and the end", lines)
		}
	})
}

// Whoever watches nodes acts upon the condition, and upon Events later.
func TestTheConditionIsHurriedAndEventsAreNot(t *testing.T) {
	play(t, bare, func(s *stage) {
		var counting sync.Mutex
		hurried := map[bool]int{}
		s.opts.Turn = func(_ context.Context, so bool) (func(), error) {
			counting.Lock()
			defer counting.Unlock()
			hurried[so]++
			return func() {}, nil
		}
		s.start()
		s.cordoned()
		s.tell(drained(1))
		s.k.Finish()
		s.ended.Wait()
		if len(s.lines()) != 2 || hurried[false] != 2 || hurried[true] == 0 {
			t.Errorf("of %d Events and the condition, %d turns were for what is not hurried, and %d for what is", len(s.lines()), hurried[false], hurried[true])
		}
	})
}

func TestAfterTheFinishAnOutageIsWaitedForOnlyAWhile(t *testing.T) {
	play(t, bare, func(s *stage) {
		s.start()
		s.away.Store(true)
		s.tell(step(state.Begun, "drain", spot(state.Draining)))
		s.k.Finish()
		began := time.Now()
		s.ended.Wait()
		if took := time.Since(began); took < 4*time.Minute || took > 7*time.Minute {
			t.Errorf("it ended after %s", took)
		}
		synctest.Wait()
	})
}

func TestACordonThatIsLeftToOthersSaysToWhom(t *testing.T) {
	play(t, bare, func(s *stage) {
		s.opts.Condition = false
		s.start()
		left := step(state.Done, "uncordon", spot(state.Closed))
		left.Entry.Ending = state.Withdrawn
		left.Detail = "Karpenter"
		s.tell(left)
		s.pass(time.Second)
		s.wantLines("Node default/node-1 Normal Uncordon: spot-interruption: withdrawn; nothing of it is left on the node; the cordon is left to Karpenter, who still needs it")
	})
}

// Somebody else works on the node since, and says how it stands.
func TestWhoCedesTheConditionsWritesWhatHappenedAndNoCondition(t *testing.T) {
	play(t, bare, func(s *stage) {
		s.start()
		s.away.Store(true)
		s.cordoned()
		s.k.Cede()
		s.k.Finish()
		s.pass(time.Minute)
		s.away.Store(false)
		s.ended.Wait()
		if lines, condition := s.lines(), s.cluster.condition(); len(lines) != 1 || condition != nil {
			t.Errorf("it wrote %v, and the condition is %v", lines, condition)
		}
	})
}
