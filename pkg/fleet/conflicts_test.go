package fleet_test

import (
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nth-project/nth/pkg/event"
)

// A change of taints was tried eleven times against others who write to the Node. Nothing tries again later.
func TestATaintOutlastsSixConflicts(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance, nil))
		c.before("taint", func(times int) error {
			if times <= 6 {
				return apierrors.NewConflict(corev1.Resource("nodes"), "a", errors.New("the object has been modified"))
			}
			return nil
		})
		r := c.run(tainting(byKind))
		m := newParcel()
		r.Take(interruption(instance, event.SpotInterruption), 1, m)
		m.want(t, "done")
		if got, want := c.taintsOf("a"), []string{"spot-itn=spot-interruption-" + instance + ":NoSchedule"}; !slices.Equal(got, want) {
			t.Errorf("after %d tries the taints are %q, want %q", c.times("taint"), got, want)
		}
	})
}
