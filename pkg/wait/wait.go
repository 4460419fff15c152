// Package wait has what a drain waits for before it evicts pods, and before it counts a node as drained. Each such thing is a Blocker; the one
// for volumes is here. Newcomers begin with Blocker. The drain sets the limits: a Blocker knows no deadline.
package wait

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"

	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/loop"
)

// Blocker is one thing that is waited for: scripts, load balancers or volumes.
type Blocker interface {
	// Wait returns nil when nothing has to be waited for any more. Otherwise it returns why it stops waiting: ctx has ended, or waiting
	// longer is of no use. It calls report with what is still missing, in words, whenever that changes.
	Wait(ctx context.Context, node Node, report func(left string)) error
}

// Node is what a Blocker may have to know of the node that is drained.
type Node struct {
	// Labeled is set if the drain labels the Node so that load balancers take it out.
	Labeled bool
	// Staying are the pods that need not go.
	Staying []*corev1.Pod
}

// volumePoll is how often the node's volumes are read. The kubelet reports them with its status, about every ten seconds or when they
// change.
const volumePoll = time.Second

// Volumes waits until the node reports no volumes in use or attached except those of pods that stay: a volume that is still attached keeps
// its pod from starting elsewhere for minutes.
type Volumes struct {
	// Node reads the Node.
	Node func(context.Context) (*corev1.Node, error)
	// Client reads the claims and volumes of pods. A node may read those of its own pods.
	Client rest.Interface
}

// Wait implements Blocker. It reports how many volumes are left, or "their number is not known yet" until the Node could be read once.
func (v Volumes) Wait(ctx context.Context, drained Node, report func(left string)) error {
	staying, reported := claimsOf(drained.Staying), ""
	left := "their number is not known yet"
	for {
		switch node, err := v.Node(ctx); {
		case kube.NotFound(err): // Volumes are reported on the Node, and it was deleted.
			return nil
		case err == nil:
			volumes := staying.without(ctx, v, volumesOf(node))
			if len(volumes) == 0 {
				return nil
			}
			left = fmt.Sprintf("%d left", len(volumes))
		} // After another error, the Node is read again, too.
		if left != reported {
			report(left)
		}
		reported = left
		if !loop.Await(ctx, nil, volumePoll) {
			return ctx.Err()
		}
	}
}

// volumesOf returns the volumes that a node reports.
func volumesOf(node *corev1.Node) sets.Set[corev1.UniqueVolumeName] {
	volumes := sets.New(node.Status.VolumesInUse...)
	for _, attached := range node.Status.VolumesAttached {
		volumes.Insert(attached.Name)
	}
	return volumes
}

// podVolumes are the volumes of pods that stay. The pods name only their claims. The names of the volumes are read from the API server when
// the first volume is waited for.
type podVolumes struct {
	claims []types.NamespacedName // claims whose volumes are not in names yet
	names  sets.Set[corev1.UniqueVolumeName]
}

// claimsOf returns the claims of the pods' volumes. The method without looks up the names of the volumes later.
func claimsOf(staying []*corev1.Pod) *podVolumes {
	p := &podVolumes{names: sets.Set[corev1.UniqueVolumeName]{}}
	for _, pod := range staying {
		for _, volume := range pod.Spec.Volumes {
			switch {
			case volume.PersistentVolumeClaim != nil:
				p.claims = append(p.claims, types.NamespacedName{Namespace: pod.Namespace, Name: volume.PersistentVolumeClaim.ClaimName})
			case volume.Ephemeral != nil:
				// A generic ephemeral volume has a claim of this name, which Kubernetes makes for the pod.
				p.claims = append(p.claims, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name + "-" + volume.Name})
			}
		}
	}
	return p
}

// without removes the volumes of pods that stay from a set, and returns the set: these volumes stay attached. It first looks up the names that
// are still unknown. If a claim cannot be read, and the failure may pass, the next call reads the claim again. Until then, its volume remains
// in the set.
func (p *podVolumes) without(ctx context.Context, v Volumes, volumes sets.Set[corev1.UniqueVolumeName]) sets.Set[corev1.UniqueVolumeName] {
	if len(volumes) > 0 {
		p.claims = slices.DeleteFunc(p.claims, func(claim types.NamespacedName) bool {
			name, err := v.volumeOf(ctx, claim)
			p.names.Insert(name) // "" if it is not known; that is no volume's
			return err == nil || !kube.Passing(err)
		})
	}
	return volumes.Difference(p.names)
}

// volumeOf returns the name under which the node reports the volume of a claim. The name has the CSI driver and the driver's handle for the
// volume (GetUniqueVolumeName in pkg/volume/util of Kubernetes). It is empty if the claim is not bound, or if the volume has no CSI driver.
func (v Volumes) volumeOf(ctx context.Context, claim types.NamespacedName) (corev1.UniqueVolumeName, error) {
	bound, volume := &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}
	err := kube.Attempt(ctx, func(ctx context.Context) error {
		return v.Client.Get().Namespace(claim.Namespace).Resource("persistentvolumeclaims").Name(claim.Name).MaxRetries(0).Do(ctx).Into(bound)
	})
	if err != nil || bound.Spec.VolumeName == "" {
		return "", err
	}
	err = kube.Attempt(ctx, func(ctx context.Context) error {
		return v.Client.Get().Resource("persistentvolumes").Name(bound.Spec.VolumeName).MaxRetries(0).Do(ctx).Into(volume)
	})
	if err != nil || volume.Spec.CSI == nil {
		return "", err
	}
	csi := volume.Spec.CSI
	return corev1.UniqueVolumeName("kubernetes.io/csi/" + csi.Driver + "^" + csi.VolumeHandle), nil
}
