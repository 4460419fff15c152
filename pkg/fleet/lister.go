package fleet

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nth-project/nth/pkg/drain"
)

const (
	// listWindow is how long a request waits for other callers to share it, and listPause the shortest time between two requests.
	listWindow, listPause = time.Second, 10 * time.Second
	// The watch gets catchUpFirst to catch up before all Nodes are listed, if nobody has asked for listIdle, and otherwise catchUp: if no
	// Node changes, a bookmark comes about once a minute.
	catchUpFirst, catchUp, listIdle = 2 * time.Second, 90 * time.Second, 5 * time.Minute
	// pageSize is how many Nodes are listed in one request, and so how many are in memory at once.
	pageSize = 200
)

// nodeLister asks the API server whether an instance has a Node, for callers that cannot rely on the watch, which may be behind. Each
// caller gets an answer that the API server gave after it asked; callers at the same time share a request. The request is a list of one
// Node, which carries the resource version of the whole list: once the watch has reached that version, it knows every Node. If the watch
// does not get there, or versions cannot be compared, all Nodes are listed.
type nodeLister struct {
	client kubernetes.Interface
	nodes  *nodes
	begin  func(func(ctx context.Context))
	turn   chan struct{} // holds an element while a request is under way

	mu   sync.Mutex
	next *listCall // has not begun yet, so that callers can join it; nil if there is none

	asked time.Time // when the last request was answered; guarded by turn
}

// listCall is one request, shared by its callers.
type listCall struct {
	done chan struct{}
	// instances are those that have a Node, if all were listed; nil if the watch has caught up.
	instances map[string]bool
	err       error
}

func newNodeLister(client kubernetes.Interface, nodes *nodes, begin func(func(ctx context.Context))) *nodeLister {
	return &nodeLister{client: client, nodes: nodes, begin: begin, turn: make(chan struct{}, 1)}
}

// has asks the API server whether an EC2 instance has a Node.
func (r *nodeLister) has(ctx context.Context, instance string) (bool, error) {
	r.mu.Lock()
	c := r.next
	if c == nil {
		c = &listCall{done: make(chan struct{})}
		r.next = c
		r.begin(func(ctx context.Context) { // Other callers may wait for it when the first does not any more.
			defer close(c.done)
			defer r.begun(c) // If its term has ended before it began.
			if c.err = r.call(ctx, c); c.err != nil {
				c.err = fmt.Errorf("listing the nodes: %w", c.err)
			}
		})
	}
	r.mu.Unlock()
	select {
	case <-c.done:
		_, there := r.nodes.findInstance(instance)
		return there || c.instances[instance], c.err
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// begun makes later callers wait for another request.
func (r *nodeLister) begun(c *listCall) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == c {
		r.next = nil
	}
}

// call waits for its turn and for callers to join, and makes the request.
func (r *nodeLister) call(ctx context.Context, c *listCall) error {
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if !drain.Await(ctx, nil, max(listWindow, time.Until(r.asked.Add(listPause)))) {
		return ctx.Err()
	}
	r.begun(c)
	one, err := r.page(ctx, 1, "")
	if err != nil {
		return err
	}
	within := catchUp
	if time.Since(r.asked) > listIdle {
		within = catchUpFirst
	}
	shown := r.nodes.waitForVersion(ctx, one.ResourceVersion, within)
	if r.asked = time.Now(); shown || ctx.Err() != nil {
		return ctx.Err()
	}
	c.instances, err = r.all(ctx)
	return err
}

// all lists all Nodes and returns their instances.
func (r *nodeLister) all(ctx context.Context) (map[string]bool, error) {
	instances := map[string]bool{}
	for more := ""; ; {
		some, err := r.page(ctx, pageSize, more)
		if err != nil {
			return nil, err
		}
		for i := range some.Items {
			instances[instanceOf(some.Items[i].Spec.ProviderID)] = true
		}
		if more = some.Continue; more == "" {
			return instances, nil
		}
	}
}

func (r *nodeLister) page(ctx context.Context, length int64, from string) (*corev1.NodeList, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	return r.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{Limit: length, Continue: from})
}
