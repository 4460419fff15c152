package drain

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// conclude fills in the result from the pods that are left.
func (d *drainer) conclude() {
	d.result.Skipped = len(d.spared)
	for _, t := range d.targets {
		d.count(t)
		name := podName(t.pod)
		d.result.Left = append(d.result.Left, name)
		if t.held != "" {
			if d.result.HeldBy == nil {
				d.result.HeldBy = map[string]string{}
			}
			d.result.HeldBy[name] = t.held
		}
	}
	slices.Sort(d.result.Left)
}

// volumePoll is how often the node's volumes are looked at. The kubelet reports them with its status, about every ten
// seconds or when they change.
const volumePoll = time.Second

// awaitVolumes waits, within its setting and the deadline, until the node reports no volumes in use or attached, and
// returns how many are left. A volume that is still attached keeps its pod from starting elsewhere for minutes.
func (d *drainer) awaitVolumes(ctx context.Context) int {
	ctx, cancel := context.WithTimeout(ctx, d.node.opts.VolumeWait)
	defer cancel()
	told := -1
	for {
		node, err := d.node.get(ctx)
		if apierrors.IsNotFound(err) {
			return 0
		}
		if err == nil {
			left := max(len(node.Status.VolumesInUse), len(node.Status.VolumesAttached))
			if left == 0 {
				return 0
			}
			if left != told {
				d.tell(Progress{What: Volumes, Detail: fmt.Sprint(left)})
			}
			told = left
		}
		if !sleep(ctx, volumePoll) {
			return max(told, 0)
		}
	}
}
