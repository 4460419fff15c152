package lab

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// volumeDriver is the CSI driver of the lab's volumes, called as that of EBS is.
const volumeDriver = "ebs.csi.aws.com"

// AddVolume makes a claim that is bound to a volume of its own, which one node at a time can use, and returns the name under
// which the control plane and kubelets know that volume.
func (n *Node) AddVolume(t TB, claim string) corev1.UniqueVolumeName {
	t.Helper()
	core, name, class := n.cp.Admin.CoreV1(), n.Namespace+"-"+claim, ""
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	made, err := core.PersistentVolumeClaims(n.Namespace).Create(t.Context(), &corev1.PersistentVolumeClaim{
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
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: volumeDriver, VolumeHandle: "vol-" + name}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("making the volume %s: %v", name, err)
	}
	// No controller of the lab binds claims. Until one is bound, nothing is attached for it.
	made.Status.Phase = corev1.ClaimBound
	if _, err = core.PersistentVolumeClaims(n.Namespace).UpdateStatus(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatalf("binding the claim %s: %v", claim, err)
	}
	return corev1.UniqueVolumeName("kubernetes.io/csi/" + volumeDriver + "^vol-" + name)
}

// Uses gives a workload's pods the volume of a claim.
func Uses(claim string) Option {
	return Edit(func(template *corev1.PodTemplateSpec) {
		template.Spec.Volumes = append(template.Spec.Volumes, corev1.Volume{Name: claim, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
		main := &template.Spec.Containers[0]
		main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: claim, MountPath: "/volumes/" + claim})
	})
}
