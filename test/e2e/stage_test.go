package e2e

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
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

// twoMinutes is the notice that EC2 gives.
func twoMinutes() time.Time { return time.Now().Add(2 * time.Minute) }

// A stage is what most tests play on: a node whose only pod belongs to the Deployment "regular", its metadata service,
// and nth.
type stage struct {
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
	node := lab.Shared(t).AddNode(t)
	imds := imdstest.NewServer()
	t.Cleanup(imds.Close)
	s := &stage{node: node, imds: imds, options: daemon.Options{
		Kubeconfig: node.Kubeconfig, IMDS: imds.URL,
		Cadence: 50 * time.Millisecond, Settings: settings,
	}}
	s.machine = daemon.NewMachine(t, s.options)
	node.AddDeployment(t, "regular", 1)
	return s
}

// play sets a stage and starts nth, which watches when play returns.
func play(t *testing.T, settings string) *stage {
	t.Helper()
	s := prepare(t, settings)
	s.start(t)
	s.nth.WaitWatching(t, s.node.Name)
	return s
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

// waitDrained waits until the node is cordoned and empty, and nth says that it has drained it.
func (s *stage) waitDrained(t *testing.T) {
	t.Helper()
	s.node.WaitCordoned(t)
	s.node.WaitEmpty(t)
	s.nth.WaitLog(t, systemd.Drained)
	s.waitRecorded(t)
}

// waitRecorded waits until what nth has just said is on disk, too: it does not wait for that itself.
func (s *stage) waitRecorded(t *testing.T) {
	t.Helper()
	draining := func(e state.Entry) bool { return e.Phase == state.Draining }
	for limit := time.Now().Add(time.Minute); slices.ContainsFunc(s.machine.Record(t), draining); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("nth has said that the node is drained, and the record does not: %+v", s.machine.Record(t))
		}
	}
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

// mustKeepPods fails the test unless all pods are there that were there before, and none is about to go.
func (s *stage) mustKeepPods(t *testing.T) {
	t.Helper()
	var found []types.UID
	for _, pod := range s.node.Pods(t) {
		found = append(found, pod.UID)
		if pod.DeletionTimestamp != nil {
			t.Errorf("pod %s is about to go, want it to stay", pod.Name)
		}
	}
	for _, id := range s.before {
		if !slices.Contains(found, id) {
			t.Errorf("the pod with the UID %s is gone, want it to stay", id)
		}
	}
}

// mustBeUntouched fails the test if nth has ever written to the node, or to its pods.
func (s *stage) mustBeUntouched(t *testing.T) {
	t.Helper()
	s.mustBeSchedulable(t)
	if written := byNTH(s.node.Object(t)); written != "" {
		t.Errorf("nth has written to the node: %s", written)
	}
	s.mustKeepPods(t)
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

// mustSayOnce fails the test unless nth has logged the message with the ID once.
func (s *stage) mustSayOnce(t *testing.T, messageID string) {
	t.Helper()
	if said := s.nth.Logged(messageID); len(said) != 1 {
		t.Errorf("nth said this %d times, want once: %+v", len(said), said)
	}
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
