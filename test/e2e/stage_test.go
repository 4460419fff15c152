package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
)

// The documents of the metadata service, by the path at which they are asked for.
const (
	spotDocument        = "/latest/meta-data/spot/instance-action"
	rebalanceDocument   = "/latest/meta-data/events/recommendations/rebalance"
	maintenanceDocument = "/latest/meta-data/events/maintenance/scheduled"
	lifecycleDocument   = "/latest/meta-data/autoscaling/target-lifecycle-state"
)

// twoMinutes is the notice that EC2 gives; nth believes no longer one.
func twoMinutes() time.Time { return time.Now().Add(2 * time.Minute) }

// A stage is what most tests play on: a node whose only pod belongs to the Deployment "regular", its metadata service,
// and nth.
type stage struct {
	cp      *lab.ControlPlane
	node    *lab.Node
	imds    *imdstest.Server
	machine *daemon.Machine
	nth     *daemon.Daemon
	options daemon.Options
	// before are the pods that were on the node when nth started.
	before []types.UID
}

// prepare sets a stage on which nth does not run yet.
func prepare(t *testing.T, settings string) *stage {
	t.Helper()
	t.Parallel()
	s := prepareOn(t, lab.Shared(t), settings)
	s.node.AddDeployment(t, "regular", 1)
	return s
}

// prepareOn sets a stage without pods on a control plane.
func prepareOn(t *testing.T, cp *lab.ControlPlane, settings string) *stage {
	t.Helper()
	s := &stage{cp: cp, node: cp.AddNode(t), imds: imdstest.NewServer()}
	t.Cleanup(s.imds.Close)
	s.options = daemon.Options{
		Kubeconfig: s.node.Kubeconfig, IMDS: s.imds.URL, Cadence: 50 * time.Millisecond, Settings: settings,
	}
	s.machine = daemon.NewMachine(t, s.options)
	return s
}

// configure changes how nth is run from its next start on.
func (s *stage) configure(t *testing.T, change func(*daemon.Options)) {
	t.Helper()
	change(&s.options)
	s.machine.Configure(t, s.options)
}

// play sets a stage and starts nth, which watches when play returns.
func play(t *testing.T, settings string) *stage {
	t.Helper()
	s := prepare(t, settings)
	s.watch(t)
	return s
}

// watch starts nth and waits until it watches.
func (s *stage) watch(t *testing.T) {
	t.Helper()
	s.start(t)
	s.nth.WaitWatching(t, s.node.Name)
}

// start starts nth, for the first time or again.
func (s *stage) start(t *testing.T) {
	t.Helper()
	s.before = s.podIDs(t)
	s.nth = s.machine.Start(t)
}

func (s *stage) podIDs(t *testing.T) []types.UID {
	t.Helper()
	var ids []types.UID
	for _, pod := range s.node.Pods(t) {
		ids = append(ids, pod.UID)
	}
	return ids
}

// looks waits until nth has begun so many further looks at a document. What the first of them found has been judged by
// the time the third begins.
func (s *stage) looks(t *testing.T, document string, count int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	goal := s.imds.Requests().ByPath[document] + count
	err := s.imds.Await(ctx, func(c imdstest.Counts) bool { return c.ByPath[document] >= goal })
	if err != nil {
		t.Fatalf("waiting for nth to look %d times at %s: %v", count, document, err)
	}
}

// stopAfterLooks gives nth the time in which it would have done what it must not do, and stops it.
func (s *stage) stopAfterLooks(t *testing.T) {
	t.Helper()
	s.looks(t, lifecycleDocument, 4)
	s.nth.Stop(t)
}

// waitDrained waits until the node is cordoned and empty, and nth says that it has drained it, on disk too.
func (s *stage) waitDrained(t *testing.T) {
	t.Helper()
	s.node.WaitCordoned(t)
	s.node.WaitEmpty(t)
	s.nth.WaitLog(t, systemd.Drained)
	draining := func(e state.Entry) bool { return e.Phase == state.Draining }
	lab.Await(t, "what nth has just logged is on disk", func() bool { return !slices.ContainsFunc(s.machine.Record(t), draining) })
}

// waitPodsBack waits until the node is schedulable and has taken a pod that was not there before.
func (s *stage) waitPodsBack(t *testing.T) {
	t.Helper()
	s.node.WaitUncordoned(t)
	s.node.WaitForPods(t, "a new pod runs", func(pods []*corev1.Pod) bool {
		return slices.ContainsFunc(pods, func(pod *corev1.Pod) bool {
			return pod.Status.Phase == corev1.PodRunning && !slices.Contains(s.before, pod.UID)
		})
	})
}

// mustBeCordoned fails the test unless the node is unschedulable now.
func (s *stage) mustBeCordoned(t *testing.T) {
	t.Helper()
	if !s.node.Object(t).Spec.Unschedulable {
		t.Errorf("the node is schedulable, want it to be cordoned")
	}
}

// mustBeSchedulable fails the test if the node is cordoned now.
func (s *stage) mustBeSchedulable(t *testing.T) {
	t.Helper()
	if s.node.Object(t).Spec.Unschedulable {
		t.Errorf("the node is cordoned, want it to be schedulable")
	}
}

// mustBeUntouched fails the test if nth has ever written to the node, or to its pods.
func (s *stage) mustBeUntouched(t *testing.T) {
	t.Helper()
	s.mustBeSchedulable(t)
	if written := byNTH(s.node.Object(t)); written != "" {
		t.Errorf("nth has written to the node: %s", written)
	}
	s.mustKeep(t, "", len(s.before))
}

// byNTH returns the fields of the node that nth has written, as the API server tells them. Its status, which holds a
// condition and steers nothing, is not among them.
func byNTH(node *corev1.Node) string {
	for _, change := range node.ManagedFields {
		if change.Manager == "nth" && change.Subresource == "" {
			return change.FieldsV1.String()
		}
	}
	return ""
}

// mustSayNothingOf fails the test if nth has logged a message with one of the IDs.
func (s *stage) mustSayNothingOf(t *testing.T, messageIDs ...string) {
	t.Helper()
	for _, id := range messageIDs {
		for _, e := range s.nth.Logged(id) {
			t.Errorf("nth said %q", e.Message)
		}
	}
}

// release removes the budget that holds the pods of a workload.
func (s *stage) release(t *testing.T, budget string) {
	t.Helper()
	budgets := s.cp.Admin.PolicyV1().PodDisruptionBudgets(s.node.Namespace)
	if err := budgets.Delete(t.Context(), budget, metav1.DeleteOptions{}); err != nil {
		t.Fatalf("removing the budget %s: %v", budget, err)
	}
}

// mustRemember waits until nth has that phase of its one event on disk, which follows what it logs, and returns the entry.
func (s *stage) mustRemember(t *testing.T, phase state.Phase) (e state.Entry) {
	t.Helper()
	lab.Await(t, fmt.Sprintf("nth remembers one event, as %s", phase), func() bool {
		entries := s.machine.Record(t)
		if len(entries) != 1 {
			return false
		}
		e = entries[0]
		return e.Phase == phase
	})
	return e
}

// claimKey is the annotation that makes a cordon nth's, as docs/node-contract.md has it.
const claimKey = "nth-project.github.io/cordon"

// A claim is what the annotation says.
type claim struct {
	Writer string    `json:"writer"`
	Event  string    `json:"event"`
	Kind   string    `json:"kind"`
	Events []string  `json:"events"`
	BootID string    `json:"boot_id"`
	Since  time.Time `json:"since"`
}

// claim returns what nth has written on the node to own its cordon. ok tells whether there is such a thing.
func (s *stage) claim(t *testing.T) (c claim, ok bool) {
	t.Helper()
	text, ok := s.node.Object(t).Annotations[claimKey]
	if !ok {
		return c, false
	}
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&c); err != nil {
		t.Fatalf("reading the annotation %s: %v\n%s", claimKey, err, text)
	}
	return c, true
}

// mustBearNoClaim fails the test if the node has such a thing.
func (s *stage) mustBearNoClaim(t *testing.T) {
	t.Helper()
	if c, ok := s.claim(t); ok {
		t.Errorf("the node bears %+v, want no cordon of nth's", c)
	}
}
