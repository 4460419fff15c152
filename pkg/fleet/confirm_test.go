package fleet_test

import (
	"errors"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
)

// A Node may have joined since the watch broke off, and the message about it is the only one there is.
func TestAnInstanceIsAStrangerOnlyIfTheAPIServerSaysSoNow(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		there []corev1.Node
		err   error
		leave bool
		want  string
	}{
		"it has no Node":          {want: "done"},
		"its Node has just come":  {there: []corev1.Node{*nodeOf("a", instance, nil)}, want: "returned"},
		"nobody can say":          {err: errors.New("not now"), want: "returned"},
		"strangers are left here": {leave: true, want: "returned"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset()
				client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
					return true, &corev1.NodeList{Items: row.there}, row.err
				})
				client.PrependWatchReactor("nodes", func(clienttesting.Action) (bool, watch.Interface, error) {
					return true, watchOf(nil), nil
				})
				r := begin(t, client, func(o *fleet.Options) {
					draining(o)
					o.LeaveUnknown = row.leave
				})
				m := newParcel()
				r.Take(interruption(instance, event.SpotInterruption), 1, m)
				m.want(t, row.want)
			})
		})
	}
}
