package fleet_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nth-project/nth/pkg/fleet"
)

// serveLeases serves the Leases as an API server does, with what keeps one process from another: versions and UIDs.
func (c *cluster) serveLeases(mux *http.ServeMux) {
	const all = "/apis/coordination.k8s.io/v1/namespaces/" + fleet.LeaseNamespace + "/leases"
	leases := c.store.CoordinationV1().Leases(fleet.LeaseNamespace)
	mux.HandleFunc("GET "+all+"/{name}", func(w http.ResponseWriter, r *http.Request) {
		if !c.begins(w, "get lease") {
			l, err := leases.Get(r.Context(), r.PathValue("name"), metav1.GetOptions{})
			answer(w, l, err)
		}
	})
	write := func(pattern, kind string, do func(r *http.Request, l *coordination.Lease) (*coordination.Lease, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil || c.begins(w, kind) {
				return
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			l := &coordination.Lease{}
			if err = json.Unmarshal(body, l); err == nil {
				l, err = do(r, l)
			}
			answer(w, l, err)
		})
	}
	next := func() string {
		c.version++
		return strconv.Itoa(c.version)
	}
	write("POST "+all, "make", func(r *http.Request, l *coordination.Lease) (*coordination.Lease, error) {
		l.UID, l.ResourceVersion = types.UID("uid-"+l.Name), next()
		return leases.Create(r.Context(), l, metav1.CreateOptions{})
	})
	write("PUT "+all+"/{name}", "renew", func(r *http.Request, l *coordination.Lease) (*coordination.Lease, error) {
		now, err := leases.Get(r.Context(), l.Name, metav1.GetOptions{})
		if err != nil || now.ResourceVersion != l.ResourceVersion {
			return nil, apierrors.NewConflict(coordination.Resource("leases"), l.Name, errors.New("the object has been modified"))
		}
		l.ResourceVersion = next()
		return leases.Update(r.Context(), l, metav1.UpdateOptions{})
	})
}

// leader is who leads by the Lease; "" if nobody does.
func (c *cluster) leader() string {
	l, err := c.store.CoordinationV1().Leases(fleet.LeaseNamespace).Get(c.t.Context(), "nth-queue", metav1.GetOptions{})
	if err != nil || l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}
