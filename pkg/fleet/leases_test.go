package fleet_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nth-project/nth/pkg/fleet"
)

var leaseResource = coordination.Resource("leases")

// serveLeases serves the Leases as an API server does, with what keeps one process from another: versions and UIDs.
func (c *cluster) serveLeases(mux *http.ServeMux) {
	const all = "/apis/coordination.k8s.io/v1/namespaces/" + fleet.LeaseNamespace + "/leases"
	handle := func(pattern, kind string, do func(name string, body []byte) (*coordination.Lease, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil || c.begins(w, kind) {
				return
			}
			c.mu.Lock()
			l, err := do(r.PathValue("name"), body)
			c.mu.Unlock()
			answer(w, l, err)
		})
	}
	handle("GET "+all+"/{name}", "get lease", func(name string, _ []byte) (*coordination.Lease, error) { return c.lease(name) })
	handle("POST "+all, "make", func(_ string, body []byte) (*coordination.Lease, error) { return c.makeLease(body) })
	handle("PUT "+all+"/{name}", "renew", c.updateLease)
}

// lease finds a Lease. c.mu is held.
func (c *cluster) lease(name string) (*coordination.Lease, error) {
	l, ok := c.leases[name]
	if !ok {
		return nil, apierrors.NewNotFound(leaseResource, name)
	}
	return l.DeepCopy(), nil
}

func (c *cluster) makeLease(body []byte) (*coordination.Lease, error) {
	l := &coordination.Lease{}
	if err := json.Unmarshal(body, l); err != nil {
		return nil, err
	}
	if _, ok := c.leases[l.Name]; ok {
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
	now, ok := c.leases[name]
	if !ok || now.ResourceVersion != l.ResourceVersion {
		return nil, apierrors.NewConflict(leaseResource, name, errors.New("the object has been modified"))
	}
	return c.keepLease(l), nil
}

// leader is who leads by the Lease; "" if nobody does.
func (c *cluster) leader() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.leases["nth-queue"]; l != nil && l.Spec.HolderIdentity != nil {
		return *l.Spec.HolderIdentity
	}
	return ""
}
