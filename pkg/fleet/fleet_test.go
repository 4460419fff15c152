package fleet_test

import (
	"context"
	"encoding/json"

	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/state"
)

// parcel is a message that says what became of it.
type parcel struct{ became chan outcome }

// outcome is what became of a message: "done", or "returned" until after that time.
type outcome struct {
	what  string
	after time.Duration
}

func newParcel() parcel { return parcel{make(chan outcome, 1)} }

func (m parcel) Done()                      { m.became <- outcome{what: "done"} }
func (m parcel) Return(after time.Duration) { m.became <- outcome{"returned", after} }

func (m parcel) want(t *testing.T, what string) outcome {
	t.Helper()
	select {
	case became := <-m.became:
		if became.what != what {
			t.Errorf("the message was %s, want it %s", became.what, what)
		}
		return became
	case <-time.After(time.Minute):
		t.Errorf("the message was not %s within a minute", what)
		return outcome{}
	}
}

// ear hears what happens to a node.
type ear struct {
	mu    sync.Mutex
	heard []state.Transition
}

func (e *ear) OnTransition(h state.Transition) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.heard = append(e.heard, h)
}

func (e *ear) whats(node string) (all []state.TransitionKind) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, h := range e.heard {
		if h.Node == node {
			all = append(all, h.Kind)
		}
	}
	return all
}

const instance = "i-0123456789abcdef0"

// nodeOf is a Ready node of an instance, with annotations.
func nodeOf(name, id string, annotations map[string]string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Annotations: annotations},
		Spec:       corev1.NodeSpec{ProviderID: "aws:///eu-central-1a/" + id},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
}

// watchOf tells of Nodes, and then no more.
func watchOf(nodes []*corev1.Node) watch.Interface {
	w := watch.NewFakeWithChanSize(len(nodes)+1, false)
	for _, n := range nodes {
		w.Add(n.DeepCopy())
	}
	w.Action(watch.Bookmark, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		ResourceVersion: "1", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
	}})
	return w
}

// rig is a fleet over a cluster in memory, of empty nodes.
type rig struct {
	*fleet.Fleet
	client kubernetes.Interface
	ear    *ear
	stop   func()
}

func newRig(t *testing.T, change func(*fleet.Options), nodes ...*corev1.Node) *rig {
	t.Helper()
	client := fake.NewClientset()
	for _, n := range nodes {
		if err := client.Tracker().Add(n); err != nil {
			t.Fatal(err)
		}
	}
	client.PrependWatchReactor("nodes", func(clienttesting.Action) (bool, watch.Interface, error) {
		return true, watchOf(nodes), nil
	})
	return begin(t, client, change)
}

// begin runs a fleet, and returns when it knows the nodes.
func begin(t *testing.T, client kubernetes.Interface, change func(*fleet.Options)) *rig {
	t.Helper()
	r := &rig{client: client, ear: &ear{}}
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	opts := fleet.Options{
		Client: client, Host: "host", Log: logrus.NewEntry(logger),
		Rules: fleet.Rules{Policy: policy.Settings{
			event.SpotInterruption: {Action: policy.Notify}, event.StateChange: {Action: policy.Notify},
		}},
		Listeners: func(string, func() []state.Entry) ([]agent.Listener, func(bool)) {
			return []agent.Listener{r.ear}, func(bool) {}
		},
	}
	if change != nil {
		change(&opts)
	}
	r.Fleet = fleet.New(opts)
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		r.Run(ctx, func() { close(ready) })
	}()
	r.stop = sync.OnceFunc(func() { cancel(); <-ended })
	t.Cleanup(r.stop)
	select {
	case <-ready:
	case <-time.After(time.Minute):
		t.Fatal("the nodes are not known after a minute")
	}
	return r
}

func (r *rig) node(t *testing.T, name string) *corev1.Node {
	t.Helper()
	n, err := r.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// eventually waits until something is the case.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waiting until %s: it is not", what)
		}
	}
}

// interruption is a notice that an instance is taken: in two minutes, unless people or Auto Scaling do, who leave more time.
func interruption(id string, kind event.Kind) []sqs.Notice {
	left := 2 * time.Minute
	if kind == event.StateChange || kind == event.ASGTermination {
		left = 10 * time.Minute
	}
	return []sqs.Notice{{About: sqs.Interruption, Instance: id, Event: event.Event{
		ID: string(kind) + "-" + id, Kind: kind, Code: "terminate", State: event.Pending, Deadline: time.Now().Add(left).Round(0),
	}}}
}

func TestAnInterruptionIsClaimedDoneAndToldOfItsNodeAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, nodeOf("a", instance, nil), nodeOf("b", "i-0fedcba9876543210", nil))
	m := newParcel()
	r.Take(interruption(instance, event.SpotInterruption), 1, m)
	m.want(t, "done")
	eventually(t, "the claim has ended", func() bool { return r.node(t, "a").Annotations[fleet.ClaimAnnotation] == "" })
	if !slices.Contains(r.ear.whats("a"), state.Announced) || len(r.ear.whats("b")) > 0 {
		t.Errorf("of a was told %v, of b %v", r.ear.whats("a"), r.ear.whats("b"))
	}
}

// claimed are a node's annotations while somebody drains it.
func claimed(holder string, until time.Time) map[string]string {
	text, _ := json.Marshal(map[string]any{"holder": holder, "until": until}) // a string and a time encode
	return map[string]string{fleet.ClaimAnnotation: string(text)}
}

func TestWhatWaitsInTheLineIsGivenBackAtTheEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *fleet.Options) { o.Limits.Draining = 1 },
		nodeOf("a", instance, nil), nodeOf("b", "i-0fedcba9876543210", claimed("other/space/2", time.Now().Add(time.Hour))))
	m := newParcel()
	r.Take(interruption(instance, event.StateChange), 1, m)
	eventually(t, "it waits", func() bool { return r.Status().Waiting == 1 })
	r.stop()
	m.want(t, "returned")
}

func TestOtherRulesHoldForWhatBeginsAfterThem(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, nodeOf("a", instance, nil))
	r.Use(fleet.Rules{Policy: policy.Settings{event.SpotInterruption: {Action: policy.Ignore}}})
	m := newParcel()
	r.Take(interruption(instance, event.SpotInterruption), 1, m)
	m.want(t, "done")
	if told := r.ear.whats("a"); len(told) > 0 {
		t.Errorf("of what is ignored by now was told %v", told)
	}
}
