package fleet_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/loop"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/state"
)

const (
	instance = "i-0123456789abcdef0"
	other    = "i-0fedcba9876543210"
	third    = "i-00000000000000003"
)

// parcel is a message that says what became of it: "done", or "returned".
type parcel chan string

func (m parcel) Done()                { m <- "done" }
func (m parcel) Return(time.Duration) { m <- "returned" }

// want waits until the message is settled.
func (m parcel) want(t *testing.T, what string) {
	t.Helper()
	select {
	case became := <-m:
		if became != what {
			t.Errorf("the message was %s, want it %s", became, what)
		}
	case <-time.After(3 * time.Hour):
		t.Errorf("the message was not %s within three hours", what)
	}
}

// held fails the test if the message is settled.
func (m parcel) held(t *testing.T) {
	t.Helper()
	synctest.Wait()
	select {
	case became := <-m:
		t.Errorf("the message was %s, want it held", became)
	default:
	}
}

// ear hears what happens to nodes.
type ear struct {
	mu    sync.Mutex
	heard []state.Transition
}

// OnTransition implements agent.Listener.
func (e *ear) OnTransition(h state.Transition) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.heard = append(e.heard, h)
}

// times counts the transitions of a kind.
func (e *ear) times(kind state.TransitionKind) (times int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, h := range e.heard {
		if h.Kind == kind {
			times++
		}
	}
	return times
}

// nodeOf is a Ready node of an instance.
func nodeOf(name, id string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name + "-" + id), Annotations: map[string]string{}},
		Spec:       corev1.NodeSpec{ProviderID: "aws:///eu-central-1a/" + id},
		Status: corev1.NodeStatus{
			NodeInfo:   corev1.NodeSystemInfo{BootID: "boot-1"},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

// rig is a process with a fleet.
type rig struct {
	*fleet.Fleet
	ear   *ear
	hooks *group
	log   *bytes.Buffer
	way   *way
	stop  func()
	begun atomic.Int32 // sessions
}

// run begins a process in the cluster, and returns when it leads.
func (c *cluster) run(change func(*fleet.Options)) *rig {
	c.t.Helper()
	r := c.start("host-1", change)
	eventually(c.t, "it leads", func() bool { return r.Status().Leads })
	synctest.Wait()
	return r
}

// start begins a process in the cluster. By default every event drains, EC2 says that each instance runs, and hooks are completed.
func (c *cluster) start(identity string, change func(*fleet.Options)) *rig {
	c.t.Helper()
	r := &rig{ear: &ear{}, hooks: &group{}, log: &bytes.Buffer{}, way: &way{}}
	logger := logrus.New()
	logger.SetOutput(r.log)
	opts := fleet.Options{
		Client: c.client(r.way), Leases: c.client(&way{with: r.way}), Lease: "nth-queue", Identity: identity, Log: logrus.NewEntry(logger), EC2: &knowledge{}, Hooks: r.hooks,
		Rules: fleet.Rules{Policy: policy.Settings{}},
		Listeners: func(string, string, func() []state.Entry) []agent.Listener {
			r.begun.Add(1)
			return []agent.Listener{r.ear}
		},
	}
	for _, kind := range event.QueuedKinds() {
		opts.Policy[kind] = policy.Rule{Action: policy.Drain, Hard: kind == event.SpotInterruption, Codes: map[string]policy.When{policy.OtherCodes: policy.Lead}, Lead: time.Hour}
	}
	if change != nil {
		change(&opts)
	}
	r.Fleet = fleet.New(opts)
	freezable(opts.Client, r.way)
	freezable(opts.Leases, r.way)
	ctx, cancel := context.WithCancel(c.t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := r.Run(ctx, func(ctx context.Context) { <-ctx.Done() }); err != nil {
			c.t.Error(err)
		}
	}()
	r.stop = sync.OnceFunc(func() { cancel(); <-ended })
	c.t.Cleanup(r.stop)
	return r
}

// take has a message taken in.
func (r *rig) take(n sqs.Notice) parcel {
	m := make(parcel, 1)
	r.Take(n, m)
	return m
}

// eventually waits until something is the case.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Hour); !is(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waiting until %s: it is not", what)
		}
	}
}

// notice is an interruption of which a message tells that was sent some time ago.
func notice(id string, kind event.Kind, code string, ago time.Duration) sqs.Notice {
	n := sqs.Notice{About: sqs.Interruption, Instance: id, Event: event.Event{
		ID: fmt.Sprintf("%s-%s-%s", kind, code, id), Kind: kind, Code: code, State: event.Pending, Noticed: time.Now().Add(-ago).Round(0),
	}}
	if kind == event.SpotInterruption {
		n.Event.Deadline = n.Event.Noticed.Add(2 * time.Minute)
	}
	n.Stopped = code == "stopped" || code == "terminated"
	return n
}

// spot is the warning, just now, that a spot instance is taken.
func spot(id string) sqs.Notice { return notice(id, event.SpotInterruption, "terminate", 0) }

// running tells that an instance ran some time ago.
func running(id string, ago time.Duration) sqs.Notice {
	return sqs.Notice{About: sqs.Running, Instance: id, Event: event.Event{Noticed: time.Now().Add(-ago).Round(0)}}
}

// termination is a lifecycle action of a group that waits, and launch one of a launch.
func termination(id string) sqs.Notice {
	n := notice(id, event.ASGTermination, "terminating", 0)
	n.Hook = &sqs.Hook{Group: "workers", Name: "drain", Token: "token"}
	return n
}

func launch(id string) sqs.Notice {
	return sqs.Notice{
		About: sqs.Launch, Instance: id, Event: event.Event{ID: "launch-" + id, Noticed: time.Now().Round(0)},
		Hook: &sqs.Hook{Group: "workers", Name: "ready", Token: "token", Launch: true},
	}
}

// group is an Auto Scaling group that waits at its hooks.
type group struct {
	mu        sync.Mutex
	completed []string
	held      int
}

// Hold implements fleet.Hooks.
func (g *group) Hold(ctx context.Context, _ asg.Action) {
	g.count(1)
	<-ctx.Done()
	g.count(-1)
}

// holds is how many hooks are held.
func (g *group) holds() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.held
}

func (g *group) count(by int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held += by
}

// Complete implements fleet.Hooks.
func (g *group) Complete(_ context.Context, action asg.Action, outcome event.Outcome) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.completed = append(g.completed, strings.TrimSpace(fmt.Sprintf("%s %s %s", action.Hook, action.Instance, outcome)))
	return nil
}

// want fails the test if other hooks were completed, or any is held.
func (g *group) want(t *testing.T, completed ...string) {
	t.Helper()
	synctest.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	if !slices.Equal(g.completed, completed) || g.held > 0 {
		t.Errorf("completed is %q, want %q, and %d are held", g.completed, completed, g.held)
	}
}

// wantDrained fails the test unless a node is cordoned, and all its pods were evicted.
func (c *cluster) wantDrained(name string) {
	c.t.Helper()
	synctest.Wait()
	if n := c.node(name); !n.Spec.Unschedulable || len(c.podsOn(name)) > 0 {
		c.t.Errorf("node %s is unschedulable: %t, and has the pods %q", name, n.Spec.Unschedulable, c.podsOn(name))
	}
}

// wantUntouched fails the test if anything was done to a node.
func (c *cluster) wantUntouched(name string) {
	c.t.Helper()
	synctest.Wait()
	if n := c.node(name); n.Spec.Unschedulable || len(n.Spec.Taints) > 0 || len(c.podsOn(name)) == 0 {
		c.t.Errorf("node %s is unschedulable: %t, has the taints %v and the pods %q", name, n.Spec.Unschedulable, n.Spec.Taints, c.podsOn(name))
	}
}

// want is wantDrained, or else wantUntouched.
func (c *cluster) want(name string, drained bool) {
	c.t.Helper()
	if drained {
		c.wantDrained(name)
	} else {
		c.wantUntouched(name)
	}
}

// podsOn are the names of the pods on a node that are not ending.
func (c *cluster) podsOn(node string) (names []string) {
	pods, err := c.store.CoreV1().Pods("").List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Error(err)
		return nil
	}
	for _, pod := range pods.Items {
		if pod.Spec.NodeName == node && pod.DeletionTimestamp == nil {
			names = append(names, pod.Name)
		}
	}
	return names
}

// TestMain keeps client-go from pausing after its errors: the pause is counted from the last one in the process, which
// may have been in another bubble, at another time. The fake's watches panic if more waits to be read than they have room for.
func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = nil
	watch.DefaultChanSize = 10_000
	os.Exit(m.Run())
}

// knowledge is what EC2 knows of instances.
type knowledge struct {
	mu sync.Mutex
	// states are those of the instances that are known, and launched is when they were last started.
	states   map[string]string
	launched map[string]time.Time
	// managed have the tag, and clusters are those that instances are tagged to be of.
	managed  map[string]bool
	clusters map[string][]string
	// addresses are their private IP addresses.
	addresses map[string]string
	// planned are the statuses of instances.
	planned map[string]ec2.Status
	err     error         // what EC2 answers instead
	lag     time.Duration // until it answers to Look and Notable
	unsure  error         // what it answers instead when it is first asked about an address
	// stays is why instances cannot be stopped, and asked are the requests that change instances.
	stays   map[string]string
	refused bool                                       // whether IAM refuses those requests
	silent  bool                                       // whether EC2 does not answer when they are only tried
	change  func(request ec2.Request, id string) error // carries such a request out, if set
	asked   []string
	broken  error // why EC2 cannot start instances
}

// Change implements fleet.EC2.
func (k *knowledge) Change(_ context.Context, request ec2.Request, id string, try bool) error {
	k.mu.Lock()
	refused, silent, change := k.refused, k.silent, k.change
	if !try {
		k.asked = append(k.asked, strings.TrimPrefix(string(request), "ec2:"))
	}
	k.mu.Unlock()
	switch {
	case refused:
		return fmt.Errorf("%w: %s", ec2.ErrRefused, request)
	case silent && try:
		return fmt.Errorf("%w: %s", ec2.ErrUnanswered, request)
	case try || change == nil:
		return nil
	}
	return change(request, id)
}

// requests are the requests that have changed instances so far.
func (k *knowledge) requests() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.asked)
}

// say changes what is known.
func (k *knowledge) say(how func(*knowledge)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	how(k)
}

// starts has an instance run from now on.
func (k *knowledge) starts(id string) {
	k.say(func(k *knowledge) { k.states[id], k.launched = "running", map[string]time.Time{id: time.Now()} })
}

// Look implements fleet.EC2.
func (k *knowledge) Look(ctx context.Context, id string) (ec2.Instance, bool, error) {
	k.await(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	i, known := k.find(id)
	return i, known, k.err
}

// await waits until an answer comes.
func (k *knowledge) await(ctx context.Context) {
	k.mu.Lock()
	lag := k.lag
	k.mu.Unlock()
	loop.Await(ctx, nil, lag)
}

// find returns what is known of an instance now. mu is held.
func (k *knowledge) find(id string) (ec2.Instance, bool) {
	state, known := k.states[id]
	return ec2.Instance{
		ID: id, State: state, Launched: k.launched[id], Managed: k.managed[id], Clusters: k.clusters[id], Address: k.addresses[id], Stays: k.stays[id],
	}, known
}

// InReservation implements fleet.EC2.
func (k *knowledge) InReservation(context.Context, string) ([]string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return []string{third}, k.err
}

// AtAddress implements fleet.EC2.
func (k *knowledge) AtAddress(_ context.Context, address string) (found []ec2.Instance, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for id, at := range k.addresses {
		if at == address {
			found = append(found, ec2.Instance{ID: id, Address: at, State: k.states[id], Clusters: k.clusters[id]})
		}
	}
	if err = cmp.Or(k.unsure, k.err); err != nil {
		found, k.unsure = nil, nil
	}
	return found, err
}

// Notable implements fleet.EC2.
func (k *knowledge) Notable(ctx context.Context, _ bool) (map[string]ec2.Status, error) {
	k.await(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.planned), k.err
}
