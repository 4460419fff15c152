package drain

import (
	"context"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

// volumePoll is how often the node's volumes are looked at. The kubelet reports them with its status, about every ten
// seconds or when they change.
const volumePoll = time.Second

// awaitVolumes waits until the node reports no volumes in use or attached but those of pods that stay, or ctx ends, and returns
// how many others are left, as far as is known. A volume that is still attached keeps its pod from starting elsewhere for minutes.
func (n *Node) awaitVolumes(ctx context.Context, staying *claims, tell func(left string)) int {
	left, told := VolumesUnknown, 0
	for {
		switch node, err := n.get(ctx, false); {
		case err == nil:
			left = len(staying.without(ctx, n, volumesOf(node)))
		case apierrors.IsNotFound(err):
			left = 0
		}
		switch {
		case left == 0:
			return 0
		case left != told && left == VolumesUnknown:
			tell("an unknown number")
		case left != told:
			tell(strconv.Itoa(left))
		}
		told = left
		if !Await(ctx, nil, volumePoll) {
			return left
		}
	}
}

// attaches tells whether a pod has volumes that are to be attached wherever it goes, which takes longest of all.
func attaches(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil || v.Ephemeral != nil })
}

// volumesFirst is the order of two pods of which one attaches volumes.
func volumesFirst(a, b *corev1.Pod) int {
	switch x, y := attaches(a), attaches(b); {
	case x == y:
		return 0
	case x:
		return -1
	}
	return 1
}

// volumesOf is the set of volumes that a node reports.
func volumesOf(node *corev1.Node) map[corev1.UniqueVolumeName]bool {
	volumes := map[corev1.UniqueVolumeName]bool{}
	for _, name := range node.Status.VolumesInUse {
		volumes[name] = true
	}
	for _, attached := range node.Status.VolumesAttached {
		volumes[attached.Name] = true
	}
	return volumes
}

// claim is a PersistentVolumeClaim of a pod that stays.
type claim struct{ namespace, name string }

// claims are those whose volumes stay in use. What they are is asked of the API server when the first volume is waited
// for: a node may read the claims and the volumes of its own pods.
type claims struct {
	unknown []claim
	known   []corev1.UniqueVolumeName
}

func claimsOf(staying map[types.UID]*corev1.Pod) *claims {
	c := &claims{}
	for _, pod := range staying {
		for _, volume := range pod.Spec.Volumes {
			switch {
			case volume.PersistentVolumeClaim != nil:
				c.unknown = append(c.unknown, claim{pod.Namespace, volume.PersistentVolumeClaim.ClaimName})
			case volume.Ephemeral != nil:
				c.unknown = append(c.unknown, claim{pod.Namespace, pod.Name + "-" + volume.Name})
			}
		}
	}
	return c
}

// without takes the volumes of the claims out of a set. Those that cannot be told are waited for like all others; a failure that may
// pass is asked about again.
func (c *claims) without(ctx context.Context, n *Node, volumes map[corev1.UniqueVolumeName]bool) map[corev1.UniqueVolumeName]bool {
	if len(volumes) > 0 {
		c.unknown = slices.DeleteFunc(c.unknown, func(of claim) bool {
			name, err := n.volumeOf(ctx, of)
			c.known = append(c.known, name)
			return err == nil || !passing(err)
		})
	}
	for _, name := range c.known {
		delete(volumes, name)
	}
	return volumes
}

// volumeOf returns the name under which the node reports the volume of a claim: the CSI driver's and its handle for the
// volume (GetUniqueVolumeName in pkg/volume/util of Kubernetes). It is empty for volumes of other sorts.
func (n *Node) volumeOf(ctx context.Context, of claim) (corev1.UniqueVolumeName, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	bound, volume := &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}
	err := n.rest().Get().Namespace(of.namespace).Resource("persistentvolumeclaims").Name(of.name).MaxRetries(0).Do(ctx).Into(bound)
	if err != nil || bound.Spec.VolumeName == "" {
		return "", err
	}
	err = n.rest().Get().Resource("persistentvolumes").Name(bound.Spec.VolumeName).MaxRetries(0).Do(ctx).Into(volume)
	if err != nil || volume.Spec.CSI == nil {
		return "", err
	}
	csi := volume.Spec.CSI
	return corev1.UniqueVolumeName("kubernetes.io/csi/" + csi.Driver + "^" + csi.VolumeHandle), nil
}
