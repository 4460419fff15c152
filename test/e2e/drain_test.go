package e2e

import (
	"net/http"
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

// populate puts one of everything on the node. It returns how many pods a drain has to evict; the names of those that it has to leave
// alone begin with "stays".
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

func TestDrain_OfANodeWithOneOfEverything(t *testing.T) {
	s := prepare(t, "")
	evictable := s.populate(t)
	s.node.AddSpare(t) // takes what is evicted, and so lets the budget of web yield
	s.watch(t)

	s.imds.SetSpot("terminate", twoMinutes())
	held := s.nth.WaitSays(t, "disruption budget db blocks the eviction of "+s.node.Namespace+"/db-")
	if held.Fields["MESSAGE_ID"] != systemd.PodHeld || !strings.HasPrefix(held.Fields[systemd.FieldPod], s.node.Namespace+"/db-") {
		t.Errorf("what the budget holds is logged with the fields %v", held.Fields)
	}
	s.waitLeft(t, "db", "stays-everywhere", "stays-static")
	s.nth.WaitStatus(t, "held by PDB db")
	s.node.Scale(t, "db", 2) // the second one runs on the spare, and the first may go
	s.waitDrained(t)
	s.nth.WaitStatus(t, "node "+s.node.Name+" is drained for spot-interruption")
	s.nth.Stop(t)

	s.waitLeft(t, "stays-everywhere", "stays-static")
	s.mustKeep(t, "stays-", 2)
	s.mustOwnTheCordon(t)
	e := s.mustRemember(t, state.Drained)
	if !e.OnNode || e.CordonedAt.IsZero() || e.BootID != s.machine.BootID() || e.Error != "" {
		t.Errorf("nth remembers %+v, want a drain that ended well, in this boot", e)
	}
	if r := *e.Result; r.Evicted != evictable || r.Deleted != 0 || r.Skipped != 2 || len(r.Left) != 0 || len(r.HeldBy) != 0 {
		t.Errorf("nth remembers the result %+v; want %d evicted, 0 deleted, 2 skipped and none left", r, evictable)
	}
	s.mustEvictOnce(t)
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
	id := s.machine.RecordOf(t, event.SpotInterruption).Event.ID
	want := claim{Writer: "nth", Event: id, Kind: "spot-interruption", Events: []string{id}, BootID: s.machine.BootID(), Since: got.Since}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the annotation says %+v, want %+v", got, want)
	}
	if written := byNTH(s.node.Object(t)); !strings.Contains(written, claimKey) || !strings.Contains(written, "f:unschedulable") {
		t.Errorf("the API server says that nth has written %s; want the annotation and the cordon", written)
	}
}

// mustEvictOnce fails the test if the API server has accepted two evictions of a pod from nth, which has stopped.
func (s *stage) mustEvictOnce(t *testing.T) {
	t.Helper()
	accepted := map[string]int{}
	for _, r := range s.node.Requests(t) {
		if r.Removes() && r.Status < http.StatusMultipleChoices {
			accepted[r.Name]++
		}
	}
	for pod, n := range accepted {
		if n > 1 {
			t.Errorf("%d evictions of %s by nth were accepted", n, pod)
		}
	}
	if len(accepted) == 0 {
		t.Error("no eviction by nth was accepted: the audit log is read wrongly")
	}
}

// Another program drains the node at the same time: kubectl, with an administrator's rights.
func TestDrain_BesideKubectlDrain(t *testing.T) {
	s := prepare(t, "")
	s.node.AddSpare(t)
	s.node.AddDaemonSet(t, "stays")
	s.node.AddPods(t, "slow", 3, lab.Grace(8*time.Second), lab.GoesAtGrace())
	s.node.AddDeployment(t, "web", 3, lab.MinAvailable(2), lab.Grace(2*time.Second), lab.GoesAtGrace())
	s.watch(t)
	other := s.cp.KubectlCommand(t.Context(), "drain", s.node.Name, "--ignore-daemonsets", "--force")
	ended := make(chan error, 1)
	go func() {
		said, err := other.CombinedOutput()
		if err != nil {
			t.Logf("kubectl drain: %s", said)
		}
		ended <- err
	}()

	s.imds.SetSpot("terminate", twoMinutes())

	s.waitDrained(t)
	if err := <-ended; err != nil {
		t.Errorf("kubectl drain: %v", err)
	}
	s.nth.Stop(t)
	s.mustEvictOnce(t)
	s.mustBeCordoned(t)
	s.mustSayNothingOf(t, systemd.DrainIncomplete, systemd.Uncordoned)
}
