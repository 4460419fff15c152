package fleet_test

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nth-project/nth/pkg/fleet"
)

var leaseResource = coordination.Resource("leases")

// serveLeases serves the Leases as an API server does, with what keeps one process from another: versions and UIDs.
func (c *cluster) serveLeases(mux *http.ServeMux) {
	const all = "/apis/coordination.k8s.io/v1/namespaces/" + fleet.LeaseNamespace + "/leases"
	handle := func(pattern string, kind func(name string) string, do func(name string, body []byte) (*coordination.Lease, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil || c.begins(w, kind(r.PathValue("name"))) {
				return
			}
			c.mu.Lock()
			l, err := do(r.PathValue("name"), body)
			c.mu.Unlock()
			answer(w, l, err)
		})
	}
	is := func(kind string) func(string) string { return func(string) string { return kind } }
	mux.HandleFunc("GET "+all, func(w http.ResponseWriter, _ *http.Request) {
		if c.begins(w, "list leases") {
			return
		}
		list := &coordination.LeaseList{}
		c.mu.Lock()
		for _, name := range slices.Sorted(maps.Keys(c.leases)) {
			list.Items = append(list.Items, *c.leases[name].DeepCopy())
		}
		c.mu.Unlock()
		answer(w, list, nil)
	})
	handle("GET "+all+"/{name}", is("get lease"), func(name string, _ []byte) (*coordination.Lease, error) { return c.lease(name) })
	handle("POST "+all, is("make"), func(_ string, body []byte) (*coordination.Lease, error) { return c.makeLease(body) })
	handle("PUT "+all+"/{name}", func(name string) string {
		return map[bool]string{true: "place", false: "renew"}[name == "places"]
	}, c.updateLease)
	handle("DELETE "+all+"/{name}", is("end"), c.deleteLease)
}

// lease finds a Lease. c.mu is held.
func (c *cluster) lease(name string) (*coordination.Lease, error) {
	l, there := c.leases[name]
	if !there {
		return nil, apierrors.NewNotFound(leaseResource, name)
	}
	return l.DeepCopy(), nil
}

func (c *cluster) makeLease(body []byte) (*coordination.Lease, error) {
	l := &coordination.Lease{}
	if err := json.Unmarshal(body, l); err != nil {
		return nil, err
	}
	if _, there := c.leases[l.Name]; there {
		return nil, apierrors.NewAlreadyExists(leaseResource, l.Name)
	}
	l.UID = types.UID("uid-" + l.Name)
	return c.keepLease(l), nil
}

// keepLease makes a Lease the next version. c.mu is held.
func (c *cluster) keepLease(l *coordination.Lease) *coordination.Lease {
	c.version++
	l.ResourceVersion = strconv.Itoa(c.version)
	c.leases[l.Name] = l
	return l.DeepCopy()
}

func (c *cluster) updateLease(name string, body []byte) (*coordination.Lease, error) {
	l := &coordination.Lease{}
	if err := json.Unmarshal(body, l); err != nil {
		return nil, err
	}
	now, there := c.leases[name]
	if !there || now.UID != l.UID || now.ResourceVersion != l.ResourceVersion {
		return nil, apierrors.NewConflict(leaseResource, name, errors.New("the object has been modified"))
	}
	return c.keepLease(l), nil
}

func (c *cluster) deleteLease(name string, body []byte) (*coordination.Lease, error) {
	now, err := c.lease(name)
	if err != nil {
		return nil, err
	}
	var as metav1.DeleteOptions
	if err := json.Unmarshal(body, &as); err != nil {
		return nil, err
	}
	p := as.Preconditions
	if p != nil && (p.UID != nil && *p.UID != now.UID || p.ResourceVersion != nil && *p.ResourceVersion != now.ResourceVersion) {
		return nil, apierrors.NewConflict(leaseResource, name, errors.New("the precondition failed"))
	}
	delete(c.leases, name)
	return now, nil
}

// processes are those that have a Lease.
func (c *cluster) processes() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := slices.Sorted(maps.Keys(c.leases))
	return slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, "nth-queue-") })
}

// stranger is the Lease of a process elsewhere, which the test renews.
func (c *cluster) stranger(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := metav1.NewMicroTime(time.Now().Add(-time.Hour)) // Nobody goes by its clock.
	c.keepLease(&coordination.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: fleet.LeaseNamespace, UID: types.UID("uid-" + name)},
		Spec:       coordination.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: new(int32(20)), RenewTime: &old},
	})
}

// changeLease changes a Lease as others would, or deletes it.
func (c *cluster) changeLease(name string, how func(*coordination.Lease)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.leases[name].DeepCopy()
	if how == nil {
		delete(c.leases, name)
		return
	}
	how(l)
	c.keepLease(l)
}

// late is a watch that tells what happened some time ago.
type late struct {
	watch.Interface
	events chan watch.Event
	over   chan struct{}
}

// ResultChan implements watch.Interface.
func (l late) ResultChan() <-chan watch.Event { return l.events }

// Stop implements watch.Interface.
func (l late) Stop() {
	close(l.over)
	l.Interface.Stop()
}

func delayed(w watch.Interface, lag time.Duration) watch.Interface {
	type dated struct {
		event watch.Event
		due   time.Time
	}
	l, waiting := late{w, make(chan watch.Event), make(chan struct{})}, make(chan dated, 10_000)
	go func() {
		defer close(waiting)
		for e := range w.ResultChan() {
			waiting <- dated{e, time.Now().Add(lag)}
		}
	}()
	go func() {
		defer close(l.events)
		for e := range waiting {
			select {
			case <-time.After(time.Until(e.due)):
			case <-l.over:
				continue
			}
			select {
			case l.events <- e.event:
			case <-l.over:
			}
		}
	}()
	return l
}
