package fleet_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/queue"
)

// message hears how it ends.
type message chan string

func (m message) Done()                { m <- "done" }
func (m message) Return(time.Duration) { m <- "returned" }

// watchOfNothing tells that there are no Nodes, and then no more.
func watchOfNothing() watch.Interface {
	w := watch.NewFakeWithChanSize(1, false)
	w.Action(watch.Bookmark, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		ResourceVersion: "1", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
	}})
	return w
}

// A Node may have joined since the watch broke off, and the message about it is the only one there is.
func TestAnInstanceIsAStrangerOnlyIfTheAPIServerSaysSoNow(t *testing.T) {
	const instance = "i-0123456789abcdef0"
	node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}, Spec: corev1.NodeSpec{ProviderID: "aws:///eu-central-1a/" + instance}}
	for name, row := range map[string]struct {
		list  func() (*corev1.NodeList, error)
		leave bool
		want  string
	}{
		"it has no Node":          {list: func() (*corev1.NodeList, error) { return &corev1.NodeList{}, nil }, want: "done"},
		"its Node has just come":  {list: func() (*corev1.NodeList, error) { return &corev1.NodeList{Items: []corev1.Node{node}}, nil }, want: "returned"},
		"nobody can say":          {list: func() (*corev1.NodeList, error) { return &corev1.NodeList{}, errors.New("not now") }, want: "returned"},
		"strangers are left here": {list: func() (*corev1.NodeList, error) { return &corev1.NodeList{}, nil }, leave: true, want: "returned"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := fake.NewClientset()
			client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
				list, err := row.list()
				return true, list, err
			})
			client.PrependWatchReactor("nodes", func(clienttesting.Action) (bool, watch.Interface, error) {
				return true, watchOfNothing(), nil
			})
			log := logrus.New()
			log.SetOutput(io.Discard)
			f := fleet.New(fleet.Options{
				Client: client, Holder: "test", Log: logrus.NewEntry(log), LeaveUnknown: row.leave,
				Policy: policy.Settings{event.SpotInterruption: {Action: policy.Drain}},
			})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			defer func() {
				cancel()
				<-ended
			}()
			told := make(message, 1)
			go func() {
				defer close(ended)
				f.Run(ctx, func() {
					f.Take([]queue.Notice{{
						About: queue.Interruption, Instance: instance, Event: event.Event{ID: "spot", Kind: event.SpotInterruption, State: event.Pending},
					}}, 1, told)
				})
			}()
			select {
			case got := <-told:
				if got != row.want {
					t.Errorf("the message is %s, want %s", got, row.want)
				}
			case <-time.After(time.Minute):
				t.Error("nothing becomes of the message")
			}
		})
	}
}
