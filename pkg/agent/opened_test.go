package agent_test

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// Somebody lifts the cordon while pods still go for a; b closes the node again and is canceled. Nothing needs the cordon then.
func TestACordonIsLiftedThoughAReopenedDrainGoesOn(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		s := apitest.New(r.t)
		s.AddPod(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
		}, apitest.Never)
		s.Always("evict", apitest.HeldBy("budget", 0))
		r.cfg.Node = drain.New(s.Client(), apitest.Node, drain.Options{})
		r.run()
		a, b := r.stopping("a", 14*24*time.Hour), r.stopping("b", 7*24*time.Hour)
		r.announce(a)
		r.pass(10 * time.Second)
		s.UncordonAs("kubectl")
		r.pass(10 * time.Second)
		if e := r.entry("a"); !e.Reopened || e.Phase != state.Draining || s.CurrentNode().Spec.Unschedulable {
			t.Fatalf("not as it should be: %+v", e)
		}
		r.announce(a, b)
		r.pass(10 * time.Second)
		if !s.CurrentNode().Spec.Unschedulable {
			t.Fatal("b did not close the node")
		}
		b.State = event.Canceled
		r.announce(a, b)
		r.pass(5 * time.Minute)
		if s.CurrentNode().Spec.Unschedulable {
			t.Errorf("five minutes after b was canceled the node is cordoned still, though a's cordon was lifted by people; b is %s", r.entry("b").Phase)
		}
	})
}

// People have opened it for the drain, and it is closed for what is only cordoned for. What goes on is still the drain for the first.
func TestWhatIsToldOfADrainIsWhatItIsForThoughTheNodeIsClosedForAnother(t *testing.T) {
	t.Parallel()
	listened(t, func(r *rig, e *ear) {
		s := apitest.New(r.t)
		s.AddPod(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
		}, apitest.Ending(time.Second))
		s.Always("evict", apitest.HeldBy("budget", 0))
		r.cfg.Node = drain.New(s.Client(), apitest.Node, drain.Options{})
		r.cfg.Policy[event.RebalanceRecommendation] = policy.Rule{Action: policy.Cordon, WithdrawnAfter: time.Minute}
		shown := &board{}
		r.cfg.Board = shown
		r.run()
		r.announce(r.spot("a", time.Hour))
		r.pass(10 * time.Second)
		s.UncordonAs("kubectl")
		r.pass(10 * time.Second)
		r.announce(r.spot("a", time.Hour), recommended("b"))
		r.pass(10 * time.Second)
		if e := r.entry("a"); !e.Reopened || e.Phase != state.Draining || !s.CurrentNode().Spec.Unschedulable {
			t.Fatalf("not as it should be: %+v", e)
		}
		r.wantStatus("draining node node-a for spot-interruption: 0 of 1 pods gone, 3570 s left, held by PDB budget")
		if step := shown.last().Step; step == nil || step.Event != "a" || !strings.HasPrefix(step.Reason, "EC2 will terminate") {
			t.Errorf("the step is %+v", step)
		}
		e.take()
		s.RemovePod("default/web")
		r.pass(time.Millisecond)
		if heard := e.take(); len(heard) == 0 || !strings.HasPrefix(heard[0], "pod-gone a drain") {
			t.Errorf("heard is %q", heard)
		}
	})
}

// handedOver has the node drained for an event a, which another one, b, joins and outlasts. EC2 has dropped a from its list then.
func handedOver(r *rig) (b event.Event) {
	a, b := r.stopping("a", 14*24*time.Hour), r.stopping("b", 7*24*time.Hour)
	r.announce(a)
	r.pass(10 * time.Second)
	r.announce(a, b)
	r.pass(10 * time.Second)
	a.State = event.Canceled
	r.announce(a, b)
	r.pass(10 * time.Second)
	r.announce(b)
	return b
}

// The claim on the Node names an event that is over; another holds the cordon, as the record knows.
func TestARestartDoesNotBringAnEventBackThatIsOver(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		s := apitest.New(r.t)
		maintenance := r.cfg.Policy[event.ScheduledMaintenance]
		maintenance.WithdrawnAfter = time.Minute
		r.cfg.Policy[event.ScheduledMaintenance] = maintenance
		r.cfg.Node = drain.New(s.Client(), apitest.Node, drain.Options{})
		r.run()
		b := handedOver(r)
		if e := r.entry("a"); e.Phase != state.Closed || !r.entry("b").OnNode {
			t.Fatalf("not as it should be: %+v", e)
		}
		r.end(nil)
		heard := &ear{}
		r.cfg.Listeners = []agent.Listener{heard}
		r.run()
		r.announce(b)
		r.pass(2 * time.Minute)
		if e := r.entry("a"); e.Phase != state.Closed || e.Ending != state.Canceled {
			t.Errorf("a is %s %s", e.Phase, e.Ending)
		}
		heard.want(t)
		for _, e := range r.hook.AllEntries() {
			if strings.Contains(e.Message, "the record does not know") {
				t.Errorf("said: %s", e.Message)
			}
		}
	})
}

// And the zombie holds the cordon for an hour when b is over.
func TestAnEventThatIsOverHoldsNoCordonAfterARestart(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		s := apitest.New(r.t)
		r.cfg.Node = drain.New(s.Client(), apitest.Node, drain.Options{})
		r.run()
		b := handedOver(r)
		r.end(nil)
		r.run()
		r.announce(b)
		r.pass(10 * time.Second)
		b.State = event.Canceled
		r.announce(b)
		r.pass(time.Minute)
		if s.CurrentNode().Spec.Unschedulable {
			t.Errorf("a minute after the last event was canceled the node is still cordoned: a is %s", r.entry("a").Phase)
		}
	})
}

// Nth is stopped, the node is uncordoned by hand, nth is started.
func TestAnUncordonWhileNthIsStoppedIsAnOrder(t *testing.T) {
	t.Parallel()
	for _, both := range []bool{false, true} {
		bubble(t, func(r *rig) {
			s := apitest.New(r.t)
			r.cfg.Node = drain.New(s.Client(), apitest.Node, drain.Options{})
			r.run()
			a, b := r.stopping("a", 14*24*time.Hour), r.stopping("b", 7*24*time.Hour)
			r.announce(a)
			r.pass(10 * time.Second)
			events := []event.Event{a}
			if both {
				events = append(events, b)
			}
			r.announce(events...)
			r.pass(time.Minute)
			r.end(nil)
			s.UncordonAs("kubectl")
			r.pass(time.Minute)
			r.run()
			r.announce(events...)
			r.pass(time.Minute)
			if s.CurrentNode().Spec.Unschedulable {
				t.Errorf("two events: %t: the node that people have opened was cordoned again", both)
			}
		})
	}
}

// The clock is set before logind has been heard.
func TestASetClockDoesNotCallAShutdownOff(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		var by atomic.Int64
		r.cfg.Now = func() time.Time { return time.Now().Add(time.Duration(by.Load())) }
		r.cfg.Policy = rules()
		r.cfg.Policy[event.Shutdown] = policy.Rule{Action: policy.Drain, Hard: true}
		down := event.Event{ID: "down", Kind: event.Shutdown, State: event.Pending, Deadline: r.in(2 * time.Minute)}
		r.node.toGuard(stuck)
		r.run()
		r.source.sink.Snapshot(event.Snapshot{Kind: event.Shutdown, Events: []event.Event{down}})
		r.pass(time.Second)
		r.end(nil)
		r.run() // logind has not answered yet
		r.pass(time.Second)
		if e := r.entry("down"); e.Phase != state.Draining {
			t.Fatalf("the shutdown is %s", e.Phase)
		}
		by.Store(int64(10 * time.Second))
		r.pass(5 * time.Second)
		if e := r.entry("down"); e.Phase != state.Draining {
			t.Errorf("the clock was set, and the shutdown is %s %s, missing since %s", e.Phase, e.Ending, e.Missing)
		}
	})
}

// The cordon was lifted in the midst of a drain, and then the rules ask for a cordon only.
func TestADrainThatTheRulesEndAfterAReopeningEnds(t *testing.T) {
	t.Parallel()
	listened(t, func(r *rig, e *ear) {
		r.node.toGuard(func(ctx context.Context, g *guard) {
			stuck(ctx, g)
			time.Sleep(10 * time.Second)
			g.becomes(func(s *drain.State) { s.Closed, s.Ours = false, true }, drain.Progress{Kind: state.NodeReopened, Events: g.wants().Events})
		})
		r.run()
		a := r.stopping("a", 14*24*time.Hour)
		r.announce(a)
		r.pass(time.Minute)
		only := rules()
		rule := only[event.ScheduledMaintenance]
		rule.Action = policy.Cordon
		only[event.ScheduledMaintenance] = rule
		r.agent.SetPolicy(only)
		r.pass(time.Hour)
		ended := slices.ContainsFunc(e.take(), func(s string) bool {
			return strings.HasPrefix(s, "preempted a") || strings.HasPrefix(s, "done a") || strings.HasPrefix(s, "deadline-exceeded a")
		})
		if entry := r.entry("a"); !ended {
			t.Errorf("nothing is done for a (%s, reopened %t) for an hour, and its drain has not ended for those who listen", entry.Phase, entry.Reopened)
		}
	})
}

// An event that comes back while what was lifted by people is being tidied up.
func TestNobodyIsToldOfACordonOnANodeThatPeopleHaveOpened(t *testing.T) {
	t.Parallel()
	listened(t, func(r *rig, e *ear) {
		r.node.toGuard(func(ctx context.Context, g *guard) {
			g.close()
			g.drain()
			time.Sleep(10 * time.Second)
			g.becomes(func(s *drain.State) { *s = drain.State{Ours: true, Seen: true, Drained: true} }, drain.Progress{Kind: state.NodeReopened, Events: g.wants().Events})
		})
		r.node.toUncordon(func(ctx context.Context) (drain.UncordonResult, error) { return "", wait(ctx) }) // the API server is away
		r.run()
		a := r.spot("a", 2*time.Minute)
		r.announce(a)
		r.pass(time.Minute)
		r.announce()
		r.pass(time.Minute)
		if entry := r.entry("a"); entry.Phase != state.Undoing || !entry.Reopened {
			t.Fatalf("not as it should be: %+v", entry)
		}
		e.take()
		r.announce(a)
		r.pass(time.Minute)
		for _, line := range e.take() {
			if strings.HasPrefix(line, "done a cordon") || strings.HasPrefix(line, "cordoned a") {
				t.Errorf("told of a node that is open: %q", line)
			}
		}
	})
}

// A dry run whose first look takes a while, with a second event meanwhile.
func TestADryRunEndsWhenAnotherEventComesDuringItsLook(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		s := apitest.New(r.t)
		for range 3 {
			s.Answer("get node", apitest.Unavailable())
		}
		r.cfg.Node = drain.NewDryRun(drain.New(s.Client(), apitest.Node, drain.Options{}))
		r.cfg.DryRun = true
		r.cfg.Policy = rules()
		r.cfg.Policy[event.RebalanceRecommendation] = policy.Rule{Action: policy.Cordon, WithdrawnAfter: 30 * time.Second}
		r.run()
		a, b := r.hibernating("a", time.Hour), recommended("b")
		r.announce(a)
		r.pass(0)
		r.announce(a, b)
		r.pass(5 * time.Minute)
		if a, b := r.entry("a"), r.entry("b"); a.Phase != state.Cordoned || b.Phase != state.Cordoned {
			t.Errorf("after five minutes a is %s and b is %s", a.Phase, b.Phase)
		}
	})
}

// The same with one event, and a clock that was put right by an hour in between.
func TestAnUncordonWhileNthIsStoppedIsAnOrderAlsoAfterTheClockWasSet(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		s := apitest.New(r.t)
		r.cfg.Node = drain.New(s.Client(), apitest.Node, drain.Options{})
		var by atomic.Int64
		r.cfg.Now = func() time.Time { return time.Now().Add(time.Duration(by.Load())) }
		r.run()
		a := r.stopping("a", 14*24*time.Hour)
		r.announce(a)
		r.pass(10 * time.Second)
		by.Store(int64(time.Hour))
		r.pass(10 * time.Second)
		r.end(nil)
		s.UncordonAs("kubectl")
		r.run()
		r.announce(a)
		r.pass(time.Minute)
		if s.CurrentNode().Spec.Unschedulable {
			t.Error("the node that people have opened was cordoned again")
		}
	})
}

// A drain that was incomplete before a restart and succeeds after it.
func TestADrainThatEndsAfterItsTimeAndARestartIsWellFormed(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.node.toGuard(stuck)
		r.runFor(r.spot("a", 2*time.Minute))
		r.pass(3 * time.Minute)
		r.end(nil)
		heard := &ear{}
		r.cfg.Listeners = []agent.Listener{heard}
		r.node.toGuard(func(ctx context.Context, g *guard) {
			g.closeAs(state.NodeClosed, drain.CordonOurs)
			time.Sleep(10 * time.Second)
			emptied(ctx, g)
		})
		r.run()
		r.announce(r.spot("a", 2*time.Minute))
		r.pass(time.Minute)
		var begun bool
		for _, line := range heard.take() {
			begun = begun || strings.HasPrefix(line, "begun a drain") || strings.HasPrefix(line, "cordoned a drain")
			if strings.HasPrefix(line, "done a drain") && !begun {
				t.Errorf("%q without a beginning or a word of the cordon", line)
			}
		}
	})
}

// The guard is in the midst of a look when an event joins, and the look may show how the node was before.
func TestANodeCountsAsClosedForAnEventThatJoinsOnceTheGuardHasSaidSo(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		looked := make(chan struct{})
		r.node.toGuard(func(ctx context.Context, g *guard) {
			g.close()
			select {
			case <-looked:
			case <-ctx.Done():
			}
		})
		a, b, c := r.stopping("a", time.Hour), r.stopping("b", 2*time.Hour), r.stopping("c", 3*time.Hour)
		r.runFor(a)
		r.announce(a, b)
		r.announce(a, b, c)
		a.Deadline = r.in(90 * time.Minute)
		r.announce(a, b, c)
		for id, closed := range map[string]bool{"a": true, "b": false, "c": false} {
			if e := r.entry(id); e.CordonedAt.IsZero() == closed {
				t.Errorf("%s: cordoned at %s before the guard has looked", id, e.CordonedAt)
			}
		}
		close(looked)
		r.pass(0)
		for _, id := range []string{"a", "b", "c"} {
			if r.entry(id).CordonedAt.IsZero() {
				t.Errorf("%s: not cordoned, though the guard has looked", id)
			}
		}
	})
}

// The kubelet of the boot before has reported the Node Ready, and the cordon is from then, whatever the events are from.
func TestACordonFromAnEarlierBootIsLiftedOnceTheNodeIsReady(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		a := r.stopping("a", time.Hour)
		r.record.entries = []state.Entry{{
			Event: a, Phase: state.Drained, BootID: "boot-0", ListedIn: "boot-0", FirstSeen: r.start, Changed: r.start, CordonedAt: r.start, OnNode: true,
		}}
		r.node.toClaim(func(context.Context) (drain.Claim, bool, error) {
			return drain.Claim{Event: "a", Kind: string(event.ScheduledMaintenance), BootID: "boot-0", Since: r.start}, true, nil
		})
		r.runFor(a) // It was not the announced reboot.
		r.announce()
		r.pass(time.Hour)
		r.wantTape("put a drained, missing", "put a undoing", "guard ended", "uncordon when ready", "uncordon when ready ended", "put a closed withdrawn")
		b := r.stopping("b", 2*time.Hour)
		r.announce(b)
		r.tape.take()
		r.announce()
		r.pass(time.Hour)
		r.wantTape("put b drained, missing", "put b undoing", "guard ended", "uncordon", "uncordon ended", "put b closed withdrawn")
	})
}

// People have opened the node. That is no cordoned node.
func TestTheStatusOfANodeThatPeopleHaveOpenedDoesNotSayThatItIsCordoned(t *testing.T) {
	withNode(t, func(r *rig, s *apitest.Server) {
		r.cfg.Policy[event.RebalanceRecommendation] = policy.Rule{Action: policy.Cordon, WithdrawnAfter: 30 * time.Second}
		r.run()
		r.announce(recommended("a"))
		r.pass(10 * time.Second)
		s.UncordonAs("kubectl")
		r.pass(10 * time.Second)
		if got := r.service.sentence(); strings.Contains(got, "is cordoned") {
			t.Errorf("the node takes pods, and the status is %q", got)
		}
	})
}

// No more than a cordon was wanted, and people have lifted it. The settings ask for a drain since, of which there is none.
func TestATerminationWhoseCordonPeopleHaveLiftedIsNotSaidToBeDrained(t *testing.T) {
	t.Parallel()
	noting(t, func(r *rig, o *outcomes) {
		s := apitest.New(r.t)
		s.AddPod(served(), 0)
		r.cfg.Node = drain.New(s.Client(), apitest.Node, drain.Options{})
		drains := rules()
		cordons := drains[terminated("a").Kind]
		cordons.Action = policy.Cordon
		r.cfg.Policy[terminated("a").Kind] = cordons
		r.run()
		r.announce(terminated("a"))
		r.pass(10 * time.Second)
		o.want(t, "a after 0s", "a no-drain after 0s")
		s.UncordonAs("kubectl")
		r.pass(10 * time.Second)
		if !r.entry("a").Reopened {
			t.Fatalf("the entry is %+v", r.entry("a"))
		}
		r.agent.SetPolicy(drains)
		r.pass(time.Minute)
		o.want(t, "a left-alone after 20s")
		if len(s.Requests("evict")) > 0 {
			t.Error("a pod was evicted")
		}
	})
}

// The recommendation stands, and its cordon has had its time.
func TestWhatOnlyACordonHadExpiredForIsDrainedForOnceTheRulesAskForThat(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		s := apitest.New(r.t)
		s.AddPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}, apitest.Ending(time.Second))
		r.cfg.Node = drain.New(s.Client(), apitest.Node, drain.Options{})
		r.cfg.Policy[event.RebalanceRecommendation] = policy.Rule{Action: policy.Cordon, CordonFor: time.Minute, WithdrawnAfter: time.Minute}
		r.run()
		r.announce(recommended("b"))
		r.pass(2 * time.Minute)
		if e := r.entry("b"); e.Ending != state.Expired || s.CurrentNode().Spec.Unschedulable {
			t.Fatalf("not as it should be: %+v", e)
		}
		r.set(event.RebalanceRecommendation, func(rule *policy.Rule) { rule.Action = policy.Drain })
		r.pass(2 * time.Minute)
		if e := r.entry("b"); e.Phase != state.Drained || s.HasPod("default/web") {
			t.Errorf("the entry is %+v, and the pod is there: %t", e, s.HasPod("default/web"))
		}
	})
}

// A budget holds the pod.
func TestTheStatusOfADrainedNodeTellsOfPodsThatHaveComeSince(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		s := apitest.New(r.t)
		r.cfg.Node = drain.New(s.Client(), apitest.Node, drain.Options{})
		r.run()
		r.announce(r.stopping("a", time.Hour))
		r.pass(10 * time.Second)
		s.Always("evict", apitest.HeldBy("budget", 0))
		s.AddPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "late"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}, apitest.Ending(time.Second))
		r.pass(20 * time.Minute)
		r.wantStatus("node node-a is drained for scheduled-maintenance; 1 pods have come since, held by PDB budget")
		s.RemovePod("default/late")
		r.pass(10 * time.Second)
		r.wantStatus("node node-a is drained for scheduled-maintenance")
	})
}

func TestPodsThatWereThereBeforePeopleOpenedTheNodeGoAfterARestartWhateverTheClocksSay(t *testing.T) {
	withNode(t, func(r *rig, s *apitest.Server) {
		s.SetSkew(2 * time.Hour)
		s.AddPod(web("web", 30), apitest.Never)
		s.Always("evict", apitest.HeldBy("web", 0))
		r.pass(time.Hour)
		r.run()
		ev := r.spot("a", time.Hour+2*time.Minute)
		r.announce(ev)
		r.pass(10 * time.Second)
		s.UncordonAs("kubectl")
		r.pass(10 * time.Second)
		if e := r.entry("a"); !e.Reopened || e.Phase != state.Draining {
			t.Fatalf("the entry is %+v", e)
		}
		r.end(nil)
		r.run()
		r.announce(ev)
		r.pass(95 * time.Second)
		if p := s.Pod("default/web"); p != nil && p.DeletionTimestamp == nil {
			t.Errorf("5 s before the machine is lost the pod runs, and nobody has told it to end; the event is %s, the journal says %q",
				r.entry("a").Phase, r.said(systemd.Drained))
		}
	})
}

func TestPodsThatCameSincePeopleOpenedTheNodeStayAfterARestartWhateverTheClocksSay(t *testing.T) {
	withNode(t, func(r *rig, s *apitest.Server) {
		s.SetSkew(-2 * time.Hour)
		s.AddPod(web("web", 30), apitest.Never)
		s.Always("evict default/web", apitest.HeldBy("web", 0))
		r.pass(time.Hour)
		r.run()
		ev := r.stopping("a", 10*time.Hour)
		r.announce(ev)
		r.pass(10 * time.Second)
		s.UncordonAs("kubectl")
		r.pass(30 * time.Second)
		s.AddPod(web("since", 30), apitest.Never)
		r.pass(30 * time.Second)
		if e := r.entry("a"); !e.Reopened || e.Phase != state.Draining || len(s.Requests("evict default/since")) > 0 {
			t.Fatalf("the entry is %+v", e)
		}
		r.end(nil)
		r.run()
		r.announce(ev)
		r.pass(time.Minute)
		if p := s.Pod("default/since"); p == nil || p.DeletionTimestamp != nil || len(s.Requests("evict default/since")) > 0 {
			t.Error("a pod that came since people opened the node is evicted")
		}
	})
}

func TestAnOrderToOpenANodeEndsWithThatNode(t *testing.T) {
	withNode(t, func(r *rig, s *apitest.Server) {
		s.AddPod(web("web", 30), apitest.Never)
		s.Always("evict default/web", apitest.HeldBy("web", 0))
		r.run()
		ev := r.stopping("a", 10*time.Hour)
		r.announce(ev)
		r.pass(10 * time.Second)
		s.UncordonAs("kubectl")
		r.pass(10 * time.Second)
		if e := r.entry("a"); !e.Reopened {
			t.Fatalf("the entry is %+v", e)
		}
		s.RegisterNode()
		r.pass(10 * time.Second)
		if e := r.entry("a"); e.Reopened || !e.OnNode || !s.CurrentNode().Spec.Unschedulable {
			t.Errorf("the other Node is closed: %t; the entry is %+v", s.CurrentNode().Spec.Unschedulable, e)
		}
		ev.State = event.Canceled
		r.announce(ev)
		r.pass(5 * time.Minute)
		if s.CurrentNode().Spec.Unschedulable {
			t.Errorf("the event is over, and the node stays closed; the entry is %+v", r.entry("a"))
		}
	})
}
