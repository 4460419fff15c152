package drain_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/state"
)

func TestOfANodeThatCannotBeReadNoClaimIsKnown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.ChangeNode(cordoned(claimBy(drain.Host)))
		s.Always("get", apitest.Forbidden("no nodes here"))
		_, found, err := drain.New(s.Client(), apitest.Node, drain.Options{}).Claim(within(t, plenty))
		if found || err == nil || !strings.Contains(err.Error(), "reading node") || !strings.Contains(err.Error(), "no nodes here") {
			t.Errorf("found %v, %v", found, err)
		}
	})
}

// That the UID differs is refused as what can never be, and yet the next look sees the Node that is there now.
func TestANodeThatRegistersAnewWhileItIsCordonedIsNoFailure(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.Answer("patch", func(w http.ResponseWriter, _ *http.Request) bool {
			s.RemoveNode()
			s.RegisterNode()
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnprocessableEntity)
			return json.NewEncoder(w).Encode(metav1.Status{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
				Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid, Message: "metadata.uid: field is immutable",
			}) == nil
		})
		r := begin(t, s, drain.Options{})
		r.await(state.NodeClosed)
		if told, after := r.of(state.NodeUnclosable), time.Since(r.began); len(told) > 0 || after > time.Second {
			t.Errorf("cordoned after %s, told %+v", after, told)
		}
	})
}

func TestANodeThatIsClosedAndLeftAloneIsNotSaidToBeOpened(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		r := drained(t, s, drain.Options{})
		s.ChangeNode(asking(drain.ActionAnnotation, drain.LeaveNode))
		r.await(state.NodeOptedOut)
		time.Sleep(time.Minute)
		if told := r.of(state.NodeReopened); len(told) > 0 || r.guard.Result().Cordon != drain.CordonLeft {
			t.Errorf("told %+v, the result is %+v", told, r.guard.Result())
		}
	})
}

// For an event that has joined by then, it is no order.
func TestWhatPeopleOpenWhileItIsLeftAloneIsToldOnceAndOfTheEventsThatWereThere(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		r := drained(t, s, drain.Options{})
		s.ChangeNode(asking(drain.ActionAnnotation, drain.LeaveNode))
		r.await(state.NodeOptedOut)
		s.UncordonAs("kubectl")
		r.adjust(func(g *drain.Goal) { g.Generation++ })
		r.await(state.NodeReopened)
		time.Sleep(time.Minute)
		if told := r.of(state.NodeReopened); len(told) != 1 || told[0].Closed != 1 {
			t.Errorf("told %+v", told)
		}
	})
}

// People have it open for what it was closed for. That somebody has closed it anew is no business of ours.
func TestANodeThatOthersCloseAfterPeopleHaveOpenedItGetsNoLabel(t *testing.T) {
	t.Parallel()
	opts := drain.Options{ExcludeFromLoadBalancers: true}
	labeled := func(s *apitest.Server) bool { return s.CurrentNode().Labels[drain.ExcludeLabel] != "" }
	run(t, "under the same guard", func(t *testing.T) {
		s := apitest.New(t)
		r := drained(t, s, opts)
		s.ChangeNode(unclaimed, "kubectl")
		r.await(state.NodeReopened)
		await(t, "that the label is gone", func() bool { return !labeled(s) })
		s.CordonAs("kubectl")
		time.Sleep(time.Minute)
		if labeled(s) {
			t.Error("it is labeled")
		}
	})
	run(t, "under another one", func(t *testing.T) {
		s := apitest.New(t)
		s.CordonAs("kubectl")
		goal := goalWithin(false, plenty)
		goal.Close = false
		start(t, s, opts, goal)
		time.Sleep(time.Minute)
		if labeled(s) {
			t.Error("it is labeled")
		}
	})
}

func TestEachWriterKnowsItsOwnCordonAgain(t *testing.T) {
	t.Parallel()
	for writer := range other {
		run(t, writer, func(t *testing.T) {
			s := apitest.New(t)
			before := drained(t, s, drain.Options{Writer: writer})
			before.cancel()
			<-before.done
			if r := drained(t, s, drain.Options{Writer: writer}); r.result.Cordon != drain.CordonOurs {
				t.Errorf("the result is %+v", r.result)
			}
		})
	}
}

// The API server remembers when nth has written to the Node, and when others have. Only what came since nth did may be meant to be there.
func TestWhenTheNodeWasClosedIsToldByWhatNthHasWritten(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.ChangeNode(func(n *corev1.Node) { n.Labels["zone"] = "a" }, "kubelet")
		time.Sleep(10 * time.Second)
		free := addHeld(s, pod("early"))
		time.Sleep(10 * time.Second)
		before := begin(t, s, drain.Options{})
		before.await(state.PodHeld)
		before.cancel()
		<-before.done
		time.Sleep(10 * time.Second)
		s.UncordonAs("kubectl")
		s.AddPod(pod("new"), 0)
		free()
		goal := goalWithin(false, plenty)
		r := start(t, s, drain.Options{}, goal)
		r.await(state.NodeReopened)
		r.await(state.PodGone, "default/early")
		time.Sleep(time.Minute)
		if !s.HasPod("default/new") {
			t.Error("a pod is gone that came to the open node")
		}
	})
}

// Our label beside it says nothing of when they closed it.
func TestAPodThatCameToANodeThatOthersHadClosedGoesThoughItIsOpenedLater(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.CordonAs("kubectl")
		r := drained(t, s, drain.Options{ExcludeFromLoadBalancers: true})
		r.await(state.NodeExcluded)
		time.Sleep(10 * time.Second)
		free := addHeld(s, pod("late"))
		r.await(state.PodHeld)
		time.Sleep(10 * time.Second)
		s.UncordonAs("kubectl")
		r.await(state.NodeReopened)
		free()
		r.await(state.PodGone, "default/late")
	})
}
