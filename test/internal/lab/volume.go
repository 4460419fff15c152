package lab

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	storageclient "k8s.io/client-go/kubernetes/typed/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// VolumeDriver is the CSI driver of the lab's volumes, called as that of EBS is.
const VolumeDriver = "ebs.csi.aws.com"

// AddVolume makes a claim that is bound to a volume of its own, which one node at a time can use, and returns the name under
// which the control plane and kubelets know that volume. It is attached if there is an attacher: see AttachVolumes.
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
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: VolumeDriver, VolumeHandle: "vol-" + name}},
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
	return corev1.UniqueVolumeName("kubernetes.io/csi/" + VolumeDriver + "^vol-" + name)
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

// AttachVolumes has the volumes of the node's namespace attached and detached, as the controller manager asks for that. For
// EC2, and for the part of the driver that speaks to it, a stand-in works, which takes so long for each. As EC2 does, it
// refuses to attach a volume that is attached elsewhere.
func (n *Node) AttachVolumes(t TB, attaching, detaching time.Duration) {
	t.Helper()
	storage, yes := n.cp.Admin.StorageV1(), true
	_, err := storage.CSIDrivers().Create(t.Context(), &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: VolumeDriver}, Spec: storagev1.CSIDriverSpec{AttachRequired: &yes},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatalf("attaching volumes: %v", err)
	}
	a := &attacher{
		client: storage.VolumeAttachments(), attaching: attaching, detaching: detaching, at: map[string]string{},
		work: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]()),
	}
	add := func(object any) {
		if volume := object.(*storagev1.VolumeAttachment).Spec.Source.PersistentVolumeName; volume != nil && strings.HasPrefix(*volume, n.Namespace+"-") {
			a.work.Add(object.(*storagev1.VolumeAttachment).Name)
		}
	}
	source := cache.NewListWatchFromClient(storage.RESTClient(), "volumeattachments", "", fields.Everything())
	informer := cache.NewSharedIndexInformer(source, &storagev1.VolumeAttachment{}, 0, nil)
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, object any) { add(object) }})
	if err != nil {
		t.Fatalf("attaching volumes: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() { informer.RunWithContext(ctx) })
	ended.Go(func() { a.run(ctx, t) })
	t.Cleanup(func() { cancel(); a.work.ShutDown(); ended.Wait() })
}

// An attacher attaches volumes and detaches them, one after the other.
type attacher struct {
	client               storageclient.VolumeAttachmentInterface
	attaching, detaching time.Duration
	work                 workqueue.TypedRateLimitingInterface[string]
	at                   map[string]string // the node that has the volume
}

// attacherFinalizer keeps a VolumeAttachment until its volume is detached.
const attacherFinalizer = "external-attacher/" + VolumeDriver

// run works until the queue is shut down. What fails is tried again, later each time.
func (a *attacher) run(ctx context.Context, t TB) {
	for {
		name, over := a.work.Get()
		if over {
			return
		}
		if err := a.settle(ctx, name); err != nil && ctx.Err() == nil {
			t.Logf("attaching or detaching, %s: %v", name, err)
			a.work.AddRateLimited(name)
		} else {
			a.work.Forget(name)
		}
		a.work.Done(name)
	}
}

// settle does what is asked for of a volume and a node.
func (a *attacher) settle(ctx context.Context, name string) error {
	asked, err := a.client.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	volume, node := *asked.Spec.Source.PersistentVolumeName, asked.Spec.NodeName
	mine := slices.Index(asked.Finalizers, attacherFinalizer)
	switch {
	case asked.DeletionTimestamp != nil && mine >= 0:
		sleep(ctx, a.detaching)
		if a.at[volume] == node {
			delete(a.at, volume)
		}
		asked.Finalizers = slices.Delete(asked.Finalizers, mine, mine+1)
		_, err = a.client.Update(ctx, asked, metav1.UpdateOptions{})
	case asked.DeletionTimestamp != nil || asked.Status.Attached:
	case mine < 0: // first, so that it is not forgotten what is attached; then it comes again
		asked.Finalizers = append(asked.Finalizers, attacherFinalizer)
		_, err = a.client.Update(ctx, asked, metav1.UpdateOptions{})
	case a.at[volume] != "" && a.at[volume] != node:
		err = fmt.Errorf("%s is attached to %s, and cannot be to %s", volume, a.at[volume], node)
	default:
		sleep(ctx, a.attaching)
		a.at[volume] = node
		asked.Status.Attached = true
		_, err = a.client.UpdateStatus(ctx, asked, metav1.UpdateOptions{})
	}
	return err
}

// sleep lets time pass, for as long as ctx lasts.
func sleep(ctx context.Context, last time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(last):
	}
}
