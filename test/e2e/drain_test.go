package e2e

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/lab"
)

// populate puts one of everything on the node beside the Deployment "regular". It returns how many pods a drain has to
// evict, and the names of those that it has to leave alone begin with "stays".
func (s *stage) populate(t *testing.T) (evictable int) {
	t.Helper()
	s.node.AddDaemonSet(t, "stays-everywhere")
	s.node.AddMirrorPod(t, "stays-static")
	s.node.AddPods(t, "bare", 2)
	s.node.AddFinishedPod(t, "succeeded", corev1.PodSucceeded)
	s.node.AddFinishedPod(t, "failed", corev1.PodFailed)
	s.node.AddStatefulSet(t, "store", 2)
	s.node.AddPods(t, "slow", 2, lab.Grace(3*time.Second), lab.GoesAtGrace())
	s.node.AddDeployment(t, "web", 3, lab.MinAvailable(2))
	s.node.AddDeployment(t, "db", 1, lab.MinAvailable(1))
	return len(s.node.Pods(t)) - 2
}

func TestAMixedNodeIsDrainedAsDesigned(t *testing.T) {
	s := prepare(t, "")
	cp := lab.Shared(t)
	evictable := s.populate(t)
	spare := s.node.AddSpare(t) // takes what is evicted, and so lets the budget of web yield
	web, db := guardPods(t, cp, s.node.Namespace, "web"), guardPods(t, cp, s.node.Namespace, "db")
	s.start(t)
	s.nth.WaitStatus(t, "watching")

	s.imds.SetSpot("terminate", twoMinutes())
	held := s.nth.WaitSays(t, "disruption budget db blocks the eviction of "+s.node.Namespace+"/db-")
	if held.Fields["MESSAGE_ID"] != systemd.PodHeld || !strings.HasPrefix(held.Fields[systemd.FieldPod], s.node.Namespace+"/db-") {
		t.Errorf("the budget is told with the fields %v", held.Fields)
	}
	s.waitLeft(t, "db", "stays-everywhere", "stays-static")
	s.nth.WaitStatus(t, "draining node "+s.node.Name+" for spot-interruption: ")
	s.nth.WaitStatus(t, "held by PDB db")
	s.node.Scale(t, "db", 2) // the second one runs on the spare, and the first may go
	s.waitDrained(t)
	s.nth.WaitStatus(t, "node "+s.node.Name+" is drained for spot-interruption")
	s.nth.Stop(t)

	web.mustHaveServed(t, 2, spare, 3)
	db.mustHaveServed(t, 1, spare, 1)
	s.waitLeft(t, "stays-everywhere", "stays-static")
	s.mustKeep(t, "stays-", 2)
	s.mustOwnTheCordon(t)
	s.mustRememberDrained(t, evictable)
}

// waitLeft waits until just the workloads with these names have pods on the node.
func (s *stage) waitLeft(t *testing.T, apps ...string) {
	t.Helper()
	s.node.WaitForPods(t, "only the pods of "+strings.Join(apps, ", ")+" are left", func(pods []*corev1.Pod) bool {
		for _, pod := range pods {
			if !slices.Contains(apps, pod.Labels["app"]) {
				return false
			}
		}
		return true
	})
}

// mustKeep fails the test unless so many pods whose names begin so were there before, and stay.
func (s *stage) mustKeep(t *testing.T, prefix string, count int) {
	t.Helper()
	kept := 0
	for _, pod := range s.node.Pods(t) {
		if strings.HasPrefix(pod.Name, prefix) && slices.Contains(s.before, pod.UID) && pod.DeletionTimestamp == nil {
			kept++
		}
	}
	if kept != count {
		t.Errorf("%d pods whose names begin with %q have been there all along, want %d", kept, prefix, count)
	}
}

// mustOwnTheCordon fails the test unless the node is cordoned and bears nth's claim for the spot interruption.
func (s *stage) mustOwnTheCordon(t *testing.T) {
	t.Helper()
	s.mustBeCordoned(t)
	got, ok := s.claim(t)
	if !ok {
		t.Fatalf("the node has no annotation %s", claimKey)
	}
	remembered := s.machine.RecordOf(t, event.SpotInterruption)
	id := remembered.Event.ID
	want := claim{Writer: "nth", Event: id, Kind: "spot-interruption", Events: []string{id}, BootID: s.machine.BootID(), Since: got.Since}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the annotation says %+v, want %+v", got, want)
	}
	if written := byNTH(s.node.Object(t)); !strings.Contains(written, claimKey) || !strings.Contains(written, "f:unschedulable") {
		t.Errorf("the API server tells that nth has written %s; want the annotation and the cordon", written)
	}
	if got.Since.Before(remembered.FirstSeen.Add(-time.Second)) {
		t.Errorf("the annotation says that the cordon is there since %s, before the notice was seen at %s", got.Since, remembered.FirstSeen)
	}
}

// mustRememberDrained fails the test unless the record on disk tells of a drain that evicted so many pods.
func (s *stage) mustRememberDrained(t *testing.T, evicted int) {
	t.Helper()
	e := s.machine.RecordOf(t, event.SpotInterruption)
	if e.Phase != state.Drained || !e.OnNode || e.CordonedAt.IsZero() || e.BootID != s.machine.BootID() || e.Error != "" {
		t.Errorf("nth remembers %+v, want a drain that ended well, in this boot", e)
	}
	if e.Result == nil {
		t.Fatalf("nth remembers no result")
	}
	if r := *e.Result; r.Evicted != evicted || r.Deleted != 0 || r.Skipped != 2 || len(r.Left) != 0 || len(r.HeldBy) != 0 {
		t.Errorf("nth remembers the result %+v; want %d evicted, 0 deleted, 2 skipped and none left", r, evicted)
	}
}
