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
	// gathering is how long those who must know which Nodes there are wait for others who do, and pace how long it is from one answer to the
	// next question at least.
	gathering, pace = time.Second, 10 * time.Second
	// briefly is how long the watch may take to catch up before all Nodes are listed, for the first question in a long while. For others it
	// is a minute and a half: where nothing happens to any Node, a bookmark comes about each minute.
	briefly, lagging, while = 2 * time.Second, 90 * time.Second, 5 * time.Minute
	// page is how many Nodes are in memory at once while they are listed.
	page = 200
)

// nodeLister tells those who must know it that the watch is not behind. Everybody is answered by what the API server has said after they asked,
// and those who ask at the same time by the same. It asks for a list of one Node, which comes with the version of all: when the watch has
// told of that version, or of a later one, it has told of every Node that was there. Where it does not get there, or versions are no
// numbers, all Nodes are listed.
type nodeLister struct {
	client kubernetes.Interface
	nodes  *nodes
	begin  func(func(ctx context.Context))
	turn   chan struct{} // holds an element while a question is under way

	mu   sync.Mutex
	next *listCall // the one that has not begun yet; nil without one

	asked time.Time // when the last question was answered; who has the turn has it
}

// listCall is one question.
type listCall struct {
	done chan struct{}
	// instances are those that have a Node, where all were listed; nil where the watch knows.
	instances map[string]bool
	err       error
}

func newNodeLister(client kubernetes.Interface, nodes *nodes, begin func(func(ctx context.Context))) *nodeLister {
	return &nodeLister{client: client, nodes: nodes, begin: begin, turn: make(chan struct{}, 1)}
}

// has tells whether there is a Node of that EC2 instance now.
func (r *nodeLister) has(ctx context.Context, instance string) (bool, error) {
	r.mu.Lock()
	c := r.next
	if c == nil {
		c = &listCall{done: make(chan struct{})}
		r.next = c
		r.begin(func(ctx context.Context) { // Others may wait for it when the one who began it does not any more.
			defer close(c.done)
			defer r.begun(c) // Also if its term ended before that.
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

// begun has those who ask from now on wait for another question.
func (r *nodeLister) begun(c *listCall) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == c {
		r.next = nil
	}
}

// call waits for its turn, and asks.
func (r *nodeLister) call(ctx context.Context, c *listCall) error {
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if !drain.Await(ctx, nil, max(gathering, time.Until(r.asked.Add(pace)))) {
		return ctx.Err()
	}
	r.begun(c)
	one, err := r.page(ctx, 1, "")
	if err != nil {
		return err
	}
	within := lagging
	if time.Since(r.asked) > while {
		within = briefly
	}
	shown := r.nodes.waitForVersion(ctx, one.ResourceVersion, within)
	if r.asked = time.Now(); shown || ctx.Err() != nil {
		return ctx.Err()
	}
	c.instances, err = r.all(ctx)
	return err
}

// all lists all Nodes for their instances.
func (r *nodeLister) all(ctx context.Context) (map[string]bool, error) {
	instances := map[string]bool{}
	for more := ""; ; {
		some, err := r.page(ctx, page, more)
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
