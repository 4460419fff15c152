package fleet_test

import (
	"net/http"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// nodes answers for the list and the watch of all Nodes.
func (c *cluster) nodes(w http.ResponseWriter, r *http.Request) {
	if c.begins(w, "list") {
		return
	}
	query := r.URL.Query()
	if query.Get("watch") != "" {
		events, err := c.store.CoreV1().Nodes().Watch(r.Context(), metav1.ListOptions{ResourceVersion: query.Get("resourceVersion")})
		if err == nil && c.lag > 0 {
			events = delayed(events, c.lag)
		}
		c.mu.Lock()
		if err == nil && c.numbered {
			events = c.marked(events)
		}
		c.mu.Unlock()
		stream(w, r, events, err, func(runtime.Object) bool {
			c.mu.Lock()
			stalled := c.stalled
			c.mu.Unlock()
			if stalled != nil {
				select {
				case <-stalled:
				case <-r.Context().Done():
				}
			}
			return true
		})
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	list, err := c.store.CoreV1().Nodes().List(r.Context(), metav1.ListOptions{})
	if list != nil && c.numbered {
		list.ResourceVersion = strconv.Itoa(c.version)
	}
	if query.Get("limit") == "1" {
		if c.glances++; c.nameless {
			list.ResourceVersion = "none"
		}
		list.Items = list.Items[:min(len(list.Items), 1)]
	} else {
		c.lists++
	}
	answer(w, list, err)
}

// listed are how many lists there were of all Nodes, and of one.
func (c *cluster) listed() (lists, glances int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lists, c.glances
}

// join adds a Node as a kubelet does, in the midst of all.
func (c *cluster) join(n *corev1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.version++
	n.ResourceVersion = strconv.Itoa(c.version)
	if _, err := c.store.CoreV1().Nodes().Create(c.t.Context(), n, metav1.CreateOptions{}); err != nil {
		c.t.Error(err)
	}
}

// marked is a watch with bookmarks.
func (c *cluster) marked(from watch.Interface) watch.Interface {
	told := make(chan watch.Event)
	to := watch.NewProxyWatcher(told)
	go func() {
		defer close(told)
		defer from.Stop()
		ticks := time.NewTicker(time.Minute)
		defer ticks.Stop()
		for {
			var e watch.Event
			select {
			case <-to.StopChan():
				return
			case e = <-from.ResultChan():
			case <-ticks.C:
				c.mu.Lock()
				select {
				case e = <-from.ResultChan(): // The bookmark would be of a version after it.
				default:
					e = watch.Event{Type: watch.Bookmark, Object: &corev1.Node{ObjectMeta: metav1.ObjectMeta{ResourceVersion: strconv.Itoa(c.version)}}}
				}
				c.mu.Unlock()
			}
			select {
			case <-to.StopChan():
				return
			case told <- e:
			}
		}
	}()
	return to
}
