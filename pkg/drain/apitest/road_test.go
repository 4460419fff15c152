package apitest_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/nth-project/nth/pkg/drain/apitest"
)

// roads are the two ways to a server.
var roads = map[string]func(*apitest.Server) kubernetes.Interface{
	"the short road": (*apitest.Server).Client,
	"HTTP on pipes":  func(s *apitest.Server) kubernetes.Interface { s.OverHTTP(); return s.Client() },
}

var ofNode = metav1.ListOptions{FieldSelector: "spec.nodeName=" + apitest.Node}

func newPod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
}

// onBothRoads runs f in a bubble for each road.
func onBothRoads(t *testing.T, f func(t *testing.T, s *apitest.Server, c kubernetes.Interface)) {
	t.Helper()
	for name, client := range roads {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := apitest.New(t)
				f(t, s, client(s))
			})
		})
	}
}

// getNode asks once, as pkg/drain does.
func getNode(ctx context.Context, c kubernetes.Interface) error {
	return c.CoreV1().RESTClient().Get().Resource("nodes").Name(apitest.Node).MaxRetries(0).Do(ctx).Error()
}

func TestAServerThatIsAwayRefusesUntilItComesBack(t *testing.T) {
	t.Parallel()
	onBothRoads(t, func(t *testing.T, s *apitest.Server, c kubernetes.Interface) {
		s.GoAway()
		if err := getNode(t.Context(), c); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("while it is away: %v", err)
		}
		s.ComeBack()
		if err := getNode(t.Context(), c); err != nil {
			t.Errorf("when it is back: %v", err)
		}
	})
}

func TestARequestThatHangsEndsWithItsContextOrItsConnection(t *testing.T) {
	t.Parallel()
	onBothRoads(t, func(t *testing.T, s *apitest.Server, c kubernetes.Interface) {
		s.Always("get node", apitest.Hang())
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		if err := getNode(ctx, c); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Hour {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		time.AfterFunc(time.Minute, s.GoAway)
		began = time.Now()
		if err := getNode(t.Context(), c); err == nil || time.Since(began) != time.Minute {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}

func TestAWatchStreamsUntilItBreaks(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*apitest.Server, watch.Interface, context.CancelFunc){
		"dropped":   func(s *apitest.Server, _ watch.Interface, _ context.CancelFunc) { s.DropWatches() },
		"broken":    func(s *apitest.Server, _ watch.Interface, _ context.CancelFunc) { s.GoAway() },
		"stopped":   func(_ *apitest.Server, w watch.Interface, _ context.CancelFunc) { w.Stop() },
		"given up":  func(_ *apitest.Server, _ watch.Interface, cancel context.CancelFunc) { cancel() },
		"all ended": func(s *apitest.Server, _ watch.Interface, _ context.CancelFunc) { s.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBothRoads(t, func(t *testing.T, s *apitest.Server, c kubernetes.Interface) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				o := ofNode
				o.ResourceVersion = "1"
				w, err := c.CoreV1().Pods("").Watch(ctx, o)
				if err != nil {
					t.Fatal(err)
				}
				s.AddPod(newPod("a"), 0)
				s.RemovePod("default/a")
				for _, want := range []watch.EventType{watch.Added, watch.Deleted} {
					if event := <-w.ResultChan(); event.Type != want {
						t.Errorf("event %+v, want %s", event, want)
					}
				}
				end(s, w, cancel)
				for event := range w.ResultChan() {
					if event.Type != watch.Error { // client-go's, of a read that it has ended itself
						t.Errorf("event %+v after the end", event)
					}
				}
			})
		})
	}
}
