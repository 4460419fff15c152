package faults_test

import (
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/lab"
)

// addVolume makes a claim that is bound to a volume of the EBS driver, and returns the name under which a kubelet reports
// that volume.
func (s *scene) addVolume(t *testing.T, claim string) corev1.UniqueVolumeName {
	t.Helper()
	core, name, class := s.cp.Admin.CoreV1(), s.node.Namespace+"-"+claim, ""
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	made, err := core.PersistentVolumeClaims(s.node.Namespace).Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: claim, Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"}},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, VolumeName: name, StorageClassName: &class,
			Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("making the claim %s: %v", claim, err)
	}
	_, err = core.PersistentVolumes().Create(t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes,
			ClaimRef:               &corev1.ObjectReference{Namespace: made.Namespace, Name: made.Name, UID: made.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "ebs.csi.aws.com", VolumeHandle: "vol-" + name}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("making the volume %s: %v", name, err)
	}
	return corev1.UniqueVolumeName("kubernetes.io/csi/ebs.csi.aws.com^vol-" + name)
}

// uses gives a pod the volume of a claim.
func uses(claim string) lab.Option {
	return lab.Edit(func(template *corev1.PodTemplateSpec) {
		template.Spec.Volumes = []corev1.Volume{{Name: claim, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}}}
	})
}

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
	s := newScene(t, rebalanceDrains+patientWithVolumes)
	cache, data := s.addVolume(t, "cache"), s.addVolume(t, "data")
	s.node.AddDaemonSet(t, "agent", uses("cache"))
	s.node.AddPod(t, "db", uses("data"))
	s.reportVolumes(t, cache, data)
	s.watch(t)
	s.imds.SetRebalance(time.Now())
	s.nth.WaitSays(t, "waiting for volumes: 1 still in use")
	s.reportVolumes(t, cache)
	s.nth.WaitLog(t, systemd.Drained)
	s.nth.Stop(t)
}
