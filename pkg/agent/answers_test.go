package agent_test

import (
	"context"
	"errors"
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

// counting counts the writes of the record.
type counting struct {
	agent.Record
	puts int
}

func (c *counting) Put(written func(error), entries ...state.Entry) {
	c.puts++
	c.Record.Put(written, entries...)
}

func webPod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
}

// A maintenance is canceled, and stays in EC2's list as such; the API server hangs for ten minutes.
func TestTheRecordIsNotWrittenEachSecondWhileACordonIsLifted(t *testing.T) {
	bubble(t, func(r *rig) {
		book := &counting{Record: r.record}
		r.cfg.Record = book
		r.node.toUncordon(func(ctx context.Context) (drain.UncordonResult, error) {
			<-ctx.Done()
			return "", errors.New("stopped")
		})
		ev := r.stopping("a", 7*24*time.Hour)
		r.runFor(ev)
		r.pass(10 * time.Second)
		ev.State = event.Canceled
		r.announce(ev)
		r.pass(10 * time.Second)
		if e := r.entry("a"); e.Phase != state.Undoing {
			t.Fatalf("not as it should be: %+v", e)
		}
		before, seen := book.puts, r.entry("a").FirstSeen
		r.pass(10 * time.Minute)
		if n := book.puts - before; n > 5 {
			t.Errorf("the record was written %d times in ten minutes; it says now that the event was seen first %s later", n, r.entry("a").FirstSeen.Sub(seen))
		}
	})
}

// A budget holds a pod; the API server is away for a moment; the budget holds it for an hour more.
func TestTheStatusNamesWhatHoldsAPodNow(t *testing.T) {
	bubble(t, func(r *rig) {
		s := apitest.New(r.t)
		s.AddPod(webPod("web"), apitest.Never)
		s.Always("evict", apitest.HeldBy("budget", 0))
		r.cfg.Node = drain.New(s.Client(), apitest.Node, drain.Options{})
		r.run()
		r.announce(r.stopping("a", 14*24*time.Hour))
		r.pass(time.Minute)
		r.wantStatus("draining node node-a for scheduled-maintenance: 0 of 1 pods gone, 1209540 s left, held by PDB budget")
		s.Always("evict", apitest.Unavailable())
		r.pass(10 * time.Second)
		s.Always("evict", apitest.HeldBy("budget", 0))
		r.pass(time.Hour)
		r.wantStatus("draining node node-a for scheduled-maintenance: 0 of 1 pods gone, 1205930 s left, held by PDB budget")
	})
}

// The Node registers anew; after that people open it. Then a recommendation has it closed again, and that only.
func TestAnOrderAboutANodeThatHadRegisteredAnewStands(t *testing.T) {
	bubble(t, func(r *rig) {
		s := apitest.New(r.t)
		r.cfg.Node = drain.New(s.Client(), apitest.Node, drain.Options{})
		r.cfg.Policy[event.RebalanceRecommendation] = policy.Rule{Action: policy.Cordon, WithdrawnAfter: time.Minute}
		r.run()
		s.AddPod(webPod("held"), apitest.Never)
		s.Always("evict default/held", apitest.HeldBy("budget", 0))
		a := r.stopping("a", 14*24*time.Hour)
		r.announce(a)
		r.pass(time.Minute)
		s.RegisterNode()
		r.pass(time.Minute)
		s.UncordonAs("kubectl")
		r.pass(time.Minute)
		s.AddPod(webPod("new"), apitest.Ending(time.Second))
		r.pass(time.Minute)
		if e := r.entry("a"); !e.Reopened || !s.HasPod("default/new") {
			t.Fatalf("not as it should be: %+v", e)
		}
		r.announce(a, recommended("b"))
		r.pass(time.Minute)
		if e := r.entry("a"); !e.Reopened || !s.HasPod("default/new") {
			t.Errorf("people's order stands: %t; the pod that came since is there: %t", e.Reopened, s.HasPod("default/new"))
		}
	})
}

// The answer to the cordon is lost.
func TestACordonIsLoggedThoughItsAnswerIsLost(t *testing.T) {
	bubble(t, func(r *rig) {
		s := apitest.New(r.t)
		s.Answer("patch", apitest.Lost())
		r.cfg.Node = drain.New(s.Client(), apitest.Node, drain.Options{})
		r.run()
		r.announce(r.stopping("a", 14*24*time.Hour))
		r.pass(time.Minute)
		if said := r.said(systemd.Cordoned); len(said) != 1 {
			t.Errorf("said %q", said)
		}
	})
}
