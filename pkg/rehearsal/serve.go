package rehearsal

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	authentication "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
)

// routes returns the handlers of the requests that a drain makes. Any other request is refused as forbidden.
func (c *Cluster) routes() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /apis/authentication.k8s.io/v1/selfsubjectreviews", reviewSelf)
	mux.HandleFunc("GET /api/v1/nodes/{name}", c.getNode)
	mux.HandleFunc("PATCH /api/v1/nodes/{name}", c.patchNode)
	mux.HandleFunc("GET /api/v1/pods", c.getPods)
	mux.HandleFunc("POST /api/v1/namespaces/{namespace}/pods/{name}/eviction", c.endPod)
	mux.HandleFunc("DELETE /api/v1/namespaces/{namespace}/pods/{name}", c.endPod)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden, fmt.Sprintf("the simulated API server does not know %s %s", r.Method, r.URL.Path))
	})
	return mux
}

// write answers a request with an object, as JSON.
func write(w http.ResponseWriter, status int, object any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(object) // The client may have left.
}

// refuse answers a request with a Status object, as the API server does for a failure. code is the HTTP status.
func refuse(w http.ResponseWriter, code int32, reason metav1.StatusReason, message string, causes ...metav1.StatusCause) {
	write(w, int(code), metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
		Code: code, Reason: reason, Message: message, Details: &metav1.StatusDetails{Causes: causes},
	})
}

// reviewSelf answers who the client is: always the node's kubelet.
func reviewSelf(w http.ResponseWriter, _ *http.Request) {
	write(w, http.StatusCreated, authentication.SelfSubjectReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "SelfSubjectReview"},
		Status:   authentication.SelfSubjectReviewStatus{UserInfo: authentication.UserInfo{Username: "system:node:" + Node}},
	})
}

// getNode answers with the Node, whatever name is asked for.
func (c *Cluster) getNode(w http.ResponseWriter, _ *http.Request) {
	c.mu.Lock()
	node := c.node
	c.mu.Unlock()
	write(w, http.StatusOK, node)
}

// patchNode patches the Node, whatever name is asked for, and answers with the result.
func (c *Cluster) patchNode(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // The client has left.
	}
	c.mu.Lock()
	err = c.patch(body)
	node := c.node
	c.mu.Unlock()
	if err != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return
	}
	write(w, http.StatusOK, node)
}

// getPods answers a list or a watch of pods. It ignores field selectors, as all pods are on the only node.
func (c *Cluster) getPods(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("watch") != "" {
		c.watchPods(w, r)
		return
	}
	c.mu.Lock()
	list := corev1.PodList{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"},
		ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(len(c.history))},
	}
	for _, name := range slices.Sorted(maps.Keys(c.pods)) {
		list.Items = append(list.Items, *c.pods[name].object)
	}
	c.mu.Unlock()
	write(w, http.StatusOK, list)
}

// watchPods sends the changes after the resource version in the request, until the request's timeout is over or the client leaves.
func (c *Cluster) watchPods(w http.ResponseWriter, r *http.Request) {
	version, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion")) // nth always sends both.
	seconds, _ := strconv.Atoi(r.URL.Query().Get("timeoutSeconds"))
	timeout := time.NewTimer(time.Duration(seconds) * time.Second)
	defer timeout.Stop()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	for {
		changes, more := c.since(version)
		version += len(changes)
		for _, change := range changes {
			if change.Object != nil {
				_ = json.NewEncoder(w).Encode(change) // An error means that the client has left, which is seen below.
			}
		}
		_ = http.NewResponseController(w).Flush()
		select {
		case <-more:
		case <-timeout.C:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// endPod answers an eviction (POST) or a deletion (DELETE) of a pod. Only an eviction respects the disruption budget. The pod ends in the background.
func (c *Cluster) endPod(w http.ResponseWriter, r *http.Request) {
	options, err := optionsOf(r)
	if err != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return
	}
	name := r.PathValue("namespace") + "/" + r.PathValue("name")
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pods[name]
	if p == nil {
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, fmt.Sprintf("pods %q not found", name))
		return
	}
	isEviction, hasBudget, isTerminating := r.Method == http.MethodPost, p.object.Labels["app"] == budgetApp, p.object.DeletionTimestamp != nil
	if isEviction && hasBudget && !isTerminating && !c.disrupt() {
		refuse(w, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "Cannot evict pod as it would violate the pod's disruption budget.",
			metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: "The disruption budget " + budgetApp + " needs 1 healthy pods and has 1 currently"})
		return
	}
	grace := time.Duration(*p.object.Spec.TerminationGracePeriodSeconds) * time.Second
	if options.GracePeriodSeconds != nil {
		grace = time.Duration(*options.GracePeriodSeconds) * time.Second
	}
	c.terminate(p, grace)
	write(w, http.StatusCreated, metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess, Code: http.StatusCreated})
}

// disrupt reports whether the disruption budget allows a disruption now, and counts that disruption until budgetReplaces has passed. The caller
// holds c.mu.
func (c *Cluster) disrupt() (allowed bool) {
	if c.allowed == 0 {
		return false
	}
	c.allowed--
	time.AfterFunc(budgetReplaces, func() { // The evicted pod is replaced on another node.
		c.mu.Lock()
		defer c.mu.Unlock()
		c.allowed++
	})
	return true
}

// optionsOf returns the DeleteOptions in a request for an eviction or a deletion, which is JSON or protobuf. It returns empty options if the request
// has none.
func optionsOf(r *http.Request) (metav1.DeleteOptions, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil || len(body) == 0 {
		return metav1.DeleteOptions{}, err
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return metav1.DeleteOptions{}, fmt.Errorf("the simulated API server cannot decode the request body as an Eviction or DeleteOptions: %w", err)
	}
	switch request := object.(type) {
	case *policyv1.Eviction:
		if request.DeleteOptions != nil {
			return *request.DeleteOptions, nil
		}
	case *metav1.DeleteOptions:
		return *request, nil
	}
	return metav1.DeleteOptions{}, nil
}
