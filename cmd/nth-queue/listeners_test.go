package main_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	queue "github.com/nth-project/nth/cmd/nth-queue"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
)

// The API server does not take the condition while a node is worked on, and does minutes later.
func TestConditions_AreThoseOfTheLastDrainOfTheLeader(t *testing.T) {
	for name, row := range map[string]struct {
		again, replaced, deposed bool
		want                     string
	}{
		"one drain":                          {want: "is stopping"},
		"this process does not lead since":   {deposed: true},
		"another machine has its name since": {replaced: true},
		"another drain since":                {again: true, want: "someone uncordoned the node"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "one"}}
				client := fake.NewClientset(node)
				var away atomic.Bool
				away.Store(true)
				written := ""
				client.PrependReactor("patch", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
					if away.Load() {
						return true, nil, apierrors.NewServiceUnavailable("not now")
					}
					written = string(a.(clienttesting.PatchAction).GetPatch())
					return false, nil, nil
				})
				var cfg config.Queue
				cfg.Kubernetes.Condition, cfg.Events.StateChange.Action = true, "drain"
				of, stop := queue.Report(t.Context(), cfg, client, func() error {
					if row.deposed && !away.Load() {
						return errors.New("another process leads")
					}
					return nil
				})
				in := func(uncordoned time.Time) func() []state.Entry {
					e := state.Entry{Event: event.Event{ID: "stop", Kind: event.StateChange, State: event.Pending}, Phase: state.Cordoned, CordonedAt: time.Now(), ReleasedAt: uncordoned}
					return func() []state.Entry { return []state.Entry{e} }
				}
				of("a", "one", in(time.Time{}))
				time.Sleep(time.Minute)
				if row.again {
					of("a", "one", in(time.Now()))
				}
				if row.replaced {
					node.UID = "the next"
					if _, err := client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(time.Minute)
				away.Store(false)
				time.Sleep(3 * time.Minute)
				synctest.Wait()
				if (written == "") != (row.want == "") || !strings.Contains(written, row.want) {
					t.Errorf("written was %q, want that the node %q", written, row.want)
				}
				stop()
			})
		})
	}
}
