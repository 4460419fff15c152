package fleet

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	// gathering is how long a list of all Nodes waits for others who need one: there is at most one in that time.
	gathering = time.Second
	// page is how many Nodes are in memory at once while they are listed.
	page = 200
)

// confirm ends a task of an instance without a Node only once the API server says that there is none. The watch may be
// behind: a Node that has joined since it broke off is not in it.
func (f *Fleet) confirm(ctx context.Context, t *task) {
	ours, err := f.ours(ctx, t)
	if err == nil && !ours && f.opts.LeaveUnknown {
		f.nowhere(t)
		return
	}
	there := false
	if err == nil {
		there, err = f.roll.has(ctx, t.notice.Instance)
	}
	switch {
	case err != nil:
		f.failed(ctx, t, err)
	case there:
		t.failed() // The watch knows it when the message comes again.
	case ours:
		f.letGo(t)
	default:
		f.nowhere(t)
	}
}

// roll lists all Nodes for those who must know which there are now. Everybody is answered by a list that began after they
// asked, and those who ask at the same time by the same one.
type roll struct {
	client kubernetes.Interface
	calls  sync.Mutex // held by the list that is under way

	mu   sync.Mutex
	next *rollCall // the one that has not begun yet; nil without one
}

// rollCall is one list.
type rollCall struct {
	done      chan struct{}
	instances map[string]bool
	err       error
}

// has tells whether there is a Node of that EC2 instance now.
func (r *roll) has(ctx context.Context, instance string) (bool, error) {
	r.mu.Lock()
	c := r.next
	if c == nil {
		c = &rollCall{done: make(chan struct{})}
		r.next = c
		go r.call(context.WithoutCancel(ctx), c) // Others may wait for it when the one who began it does not any more.
	}
	r.mu.Unlock()
	select {
	case <-c.done:
		return c.instances[instance], c.err
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

func (r *roll) call(ctx context.Context, c *rollCall) {
	defer close(c.done)
	time.Sleep(gathering)
	r.calls.Lock()
	defer r.calls.Unlock()
	r.mu.Lock()
	r.next = nil
	r.mu.Unlock()
	if c.instances, c.err = r.list(ctx); c.err != nil {
		c.err = fmt.Errorf("listing the nodes: %w", c.err)
	}
}

func (r *roll) list(ctx context.Context) (map[string]bool, error) {
	instances := map[string]bool{}
	for more := ""; ; {
		some, err := r.page(ctx, more)
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

func (r *roll) page(ctx context.Context, from string) (*corev1.NodeList, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	return r.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{Limit: page, Continue: from})
}
