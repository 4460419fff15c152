package faults_test

import (
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/lab"
)

// reportVolumes has the node say that it uses these volumes, as its kubelet would.
func (s *scene) reportVolumes(t *testing.T, volumes ...corev1.UniqueVolumeName) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"volumesInUse": volumes}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.cp.Admin.CoreV1().Nodes().Patch(t.Context(), s.node.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatalf("reporting volumes: %v", err)
	}
}

// A node may read which volumes its own pods use, and no others.
func TestVolumesOfPodsThatStayAreNotWaitedFor(t *testing.T) {
	s := newScene(t, rebalanceDrains)
	cache, data := s.node.AddVolume(t, "cache"), s.node.AddVolume(t, "data")
	s.node.AddDaemonSet(t, "agent", lab.Uses("cache"))
	s.node.AddPod(t, "db", lab.Uses("data"))
	s.reportVolumes(t, cache, data)
	s.watch(t)
	s.imds.SetRebalance(time.Now())
	s.nth.WaitSays(t, "waiting for volumes: 1 still in use")
	s.reportVolumes(t, cache)
	s.nth.WaitLog(t, systemd.Drained)
	s.nth.Stop(t)
}
