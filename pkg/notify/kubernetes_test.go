package notify_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/event"
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
	each(t, map[string]int{"hanging": -1, "500": 500, "503": 503, "429": 429, "401": 401}, func(s *stage, status int) {
		s.start()
		s.cluster.asked()
		s.cluster.answers("", status)
		s.announceAndDrain()
		s.pass(10 * time.Minute)
		if n := len(s.cluster.asked()); n < 16 || n > 92 { // 46 each, if all jitter is short
			s.t.Errorf("%d requests in ten minutes of outage, want about two a minute for the condition, and two for Events", n)
		}
		if len(s.trouble) != 2 || !strings.Contains(s.trouble[0], "retrying") {
			s.t.Errorf("said %q, want one sentence about the condition and one about Events", s.trouble)
		}
		s.cluster.answers("", 0)
		s.pass(2 * time.Minute)
		s.want(corev1.ConditionTrue, "SpotInterruption")
		s.wantEvents(3)
	})
}

// An admission webhook that is down, or Events in an etcd of their own, let one kind of request fail and not the other.
func TestKubernetes_WritesOnThoughSomeRequestsFail(t *testing.T) {
	type row struct {
		fails     string
		status    int
		stops     bool
		condition bool // it is written
		events    int
	}
	each(t, map[string]row{
		"the condition":            {fails: "patch", status: 500, events: 4},
		"the condition, at a stop": {fails: "patch", status: 500, stops: true, events: 4},
		"all Events":               {fails: "create", status: 500, condition: true},
		"those about pods hang":    {fails: "create event PodEviction", status: -1, condition: true, events: 3},
	}, func(s *stage, row row) {
		s.start()
		s.cluster.answers(row.fails, row.status)
		s.announceAndDrain()
		s.tell(pod(state.PodEvicted, "a"))
		if row.stops {
			s.end()
		}
		s.pass(time.Minute)
		s.wantEvents(row.events)
		if c := s.cluster.condition(); (c != nil) != row.condition {
			s.t.Errorf("the condition is %v", c)
		}
		if row.stops {
			return
		}
		s.cluster.answers("", 0)
		s.pass(2 * time.Minute)
		s.wantEvents(4)
		s.want(corev1.ConditionTrue, "SpotInterruption")
	})
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
	type row struct {
		status, tries, faults int
	}
	each(t, map[string]row{
		"a quota":              {403, 2, 1},
		"a namespace is gone":  {404, 2, 0},
		"it is no good":        {422, 2, 1},
		"it exists since then": {409, 2, 0}, // The answer to the first attempt was lost.
	}, func(s *stage, row row) {
		s.opts.Condition = false
		s.start()
		s.cluster.answers("create event PodEviction", row.status)
		s.cordoned()
		s.tell(pod(state.PodEvicted, "a"))
		s.tell(pod(state.PodEvicted, "b"))
		s.tell(drained(2))
		s.pass(time.Minute)
		s.wantEvents(2) // about the Node
		tries := slices.DeleteFunc(s.cluster.asked(), func(what string) bool { return what != "create event PodEviction" })
		if len(tries) != row.tries || len(s.trouble) != row.faults {
			s.t.Errorf("%d attempts and %q, want %d and %d faults", len(tries), s.trouble, row.tries, row.faults)
		}
	})
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

// lines are the Events that are there, each as its object, type, reason and message.
func (s *stage) lines() []string {
	var lines []string
	for _, e := range s.cluster.written() {
		lines = append(lines, fmt.Sprintf("%s %s/%s %s %s: %s",
			e.InvolvedObject.Kind, e.Namespace, e.InvolvedObject.Name, e.Type, e.Reason, e.Message))
	}
	return lines
}

func (s *stage) wantLines(want ...string) {
	s.t.Helper()
	if got := s.lines(); !slices.Equal(got, want) {
		s.t.Errorf("the Events are\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// cordoned begins a drain and cordons the node.
func (s *stage) cordoned() {
	s.tell(step(state.Begun, "drain", spot(state.Draining)))
	s.tell(step(state.NodeCordoned, "drain", spot(state.Draining)))
}

// drained is the end of a drain that evicted so many.
func drained(evicted int) state.Transition {
	e := spot(state.Drained)
	e.Result = &state.Result{Evicted: evicted, Skipped: 2}
	return step(state.Done, "drain", e)
}

func TestEvents_ReportEachPhaseOfADrainAndEachPod(t *testing.T) {
	play(t, bare, func(s *stage) {
		s.opts.Condition = false
		s.start()
		s.tell(announced(spot(state.Seen)))
		s.cordoned()
		s.tell(pod(state.PodEvicted, "a"))
		held := pod(state.PodHeld, "b")
		held.Detail = "shop/db"
		s.tell(held)
		s.tell(pod(state.PodDeleted, "b"))
		s.tell(pod(state.PodGone, "a"))
		done := drained(1)
		done.Entry.Result.Deleted = 1
		s.tell(done)
		closed := spot(state.Closed)
		closed.Ending = state.Withdrawn
		s.tell(step(state.Done, "uncordon", closed))
		s.pass(time.Second)
		s.wantLines(
			"Node default/node-1 Normal SpotInterruption: spot-interruption: announced: EC2 will terminate this spot instance at 00:02:00 UTC on 1 Jan 2000; plan: drain now",
			"Node default/node-1 Normal Draining: spot-interruption: cordoned the node; draining it: EC2 will terminate this spot instance at 00:02:00 UTC on 1 Jan 2000; plan: drain now",
			"Pod shop/a Normal PodEviction: evicted from node node-1: the reason",
			"Pod shop/b Warning PodEviction: deleted from node node-1, as it would not have terminated before the deadline: the reason",
			"Node default/node-1 Warning CordonAndDrain: spot-interruption: drained after 250ms: 1 pod evicted, 1 deleted, 2 exempt (such as DaemonSet pods); deleted, as they would not have terminated before the deadline: shop/b (against the disruption budget shop/db)",
			"Node default/node-1 Normal Uncordon: spot-interruption: withdrawn; nothing of it is left on the node",
		)
		// The Node's name is its UID, as the kubelet does, so that "kubectl describe node" finds it.
		for uid, e := range map[string]corev1.Event{nodeName: s.cluster.written()[0], "uid-a": s.cluster.written()[2]} {
			got := fmt.Sprint(e.InvolvedObject.UID, " ", e.Source.Component, e.Source.Host, " ", e.ReportingController, e.ReportingInstance, " ", e.Annotations)
			const rest = " nthnode-1 nthnode-1 map[node:node-1 nth-project.github.io/event:spot-1 nth-project.github.io/kind:spot-interruption]"
			if got != uid+rest {
				t.Errorf("an Event is %s, want %s", got, uid+rest)
			}
		}
	})
}

func TestEvents_AreFewIfTheyAreToBeBrief(t *testing.T) {
	play(t, bare, func(s *stage) {
		s.opts.Brief = true
		s.start()
		s.tell(announced(spot(state.Seen)))
		s.tell(step(state.NodeCordoned, "drain", spot(state.Draining)))
		s.tell(pod(state.PodEvicted, "a"))
		s.pass(time.Second)
		s.tell(drained(1))
		s.pass(time.Second)
		s.wantLines(
			"Node default/node-1 Normal SpotInterruption: spot-interruption: announced: EC2 will terminate this spot instance at 00:02:00 UTC on 1 Jan 2000; plan: drain now",
			"Node default/node-1 Normal CordonAndDrain: spot-interruption: drained after 250ms: 1 pod evicted, 0 deleted, 2 exempt (such as DaemonSet pods)",
		)
		s.cluster.wantAsked("get node", // before anything was announced
			"get node", "get node", "patch condition", "create event SpotInterruption", "create event CordonAndDrain")
		if message := s.cluster.condition().Message; !strings.HasSuffix(message, "will terminate this spot instance at 00:02:00 UTC on 1 Jan 2000") {
			t.Errorf("the condition is %q", message)
		}
	})
}

func TestEvents_OfAFullNodeAreFiftyAboutPods(t *testing.T) {
	play(t, bare, func(s *stage) {
		s.opts.Condition = false
		s.start()
		for _, drain := range []string{"p", "q"} {
			s.cordoned()
			for i := range 110 {
				s.tell(pod(state.PodEvicted, fmt.Sprintf("%s%03d", drain, i)))
				s.tell(pod(state.PodDeleted, fmt.Sprintf("%s%03d", drain, i)))
			}
			s.tell(drained(110))
		}
		s.pass(time.Minute)
		pods := slices.DeleteFunc(s.cluster.written(), func(e corev1.Event) bool { return e.InvolvedObject.Kind != "Pod" })
		if len(pods) != 100 {
			t.Errorf("%d Events about pods of two drains, want 100", len(pods))
		}
	})
}

// One step, and the Event at its end.
func TestEvents_ReportHowAStepEnded(t *testing.T) {
	const alone = "NodeLeftAlone: spot-interruption: the node is left alone because of its annotation nth-project.github.io/action: its pods are not evicted"
	incomplete, left, withdrawn := spot(state.Incomplete), spot(state.Draining), spot(state.Closed)
	incomplete.Result = &state.Result{Evicted: 3, Left: []string{"shop/a", "shop/b"}, HeldBy: map[string]string{"shop/b": "PDB shop/pdb"}}
	left.LeftAlone = true
	withdrawn.Ending = state.Withdrawn
	rebalance := entry("r", event.RebalanceRecommendation, state.Closed)
	rebalance.Ending = state.Withdrawn
	to := step(state.Done, "uncordon", withdrawn)
	to.Detail = "Karpenter"
	failed := func(action string, phase state.Phase) state.Transition {
		h := step(state.Failed, action, spot(phase))
		h.Err = errors.New("no answer")
		return h
	}
	for want, happens := range map[string][]state.Transition{
		"Warning CordonError: spot-interruption: the cordon failed after 250ms and will be tried again: no answer":     {failed("cordon", state.Cordoning)},
		"Warning UncordonError: spot-interruption: the uncordon failed after 250ms and will be tried again: no answer": {failed("uncordon", state.Undoing)},
		"Warning CordonAndDrainError: spot-interruption: the drain ran out of time after 250ms: 3 pods evicted, 0 deleted, 0 exempt (such as DaemonSet pods); " +
			"left: shop/a, shop/b (held by PDB shop/pdb)": {step(state.RanOut, "drain", incomplete)},
		"Normal Cordon: spot-interruption: cordoned the node: the reason": {
			step(state.NodeCordoned, "cordon", spot(state.Cordoned)), step(state.Done, "cordon", spot(state.Cordoned)),
		},
		"Normal Cordon: spot-interruption: the node was already cordoned by someone else: the reason": {
			step(state.CordonFound, "cordon", spot(state.Cordoned)), step(state.Done, "cordon", spot(state.Cordoned)),
		},
		"Normal " + alone: {step(state.LeftAlone, "drain", left)},
		"Normal Uncordon: spot-interruption: withdrawn; nothing of it is left on the node; the node stays cordoned: Karpenter still needs the cordon": {to},
		"Normal InterruptionOver: rebalance-recommendation: withdrawn; nothing of it is left on the node":                                             {{Kind: state.ClosedWith, Entry: rebalance}},
	} {
		play(t, bare, func(s *stage) {
			s.opts.Condition = false
			s.start()
			s.tell(step(state.Begun, happens[0].Action, happens[0].Entry))
			for _, h := range happens {
				s.tell(h)
			}
			s.pass(6 * time.Second)
			s.wantLines("Node default/node-1 " + strings.TrimSpace(want))
		})
	}
}

func TestEvents_OmitWhatIsIgnored(t *testing.T) {
	play(t, bare, func(s *stage) {
		s.start()
		ignored := entry("i", event.ScheduledMaintenance, state.Seen)
		ignored.Event.Code = "system-maintenance"
		s.tell(announced(ignored))
		ignored.Phase, ignored.Ending = state.Closed, state.Completed
		s.tell(state.Transition{Kind: state.ClosedWith, Entry: ignored})
		s.pass(time.Minute)
		s.wantLines()
	})
}
