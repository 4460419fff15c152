package faultproxy

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// A Call says what a request asks for: a verb and a resource.
type Call string

// The calls that tests break or count. Others are called by their method and path.
const (
	EvictPod    Call = "evict pod"
	DeletePod   Call = "delete pod"
	WatchPods   Call = "watch pods"
	PatchNode   Call = "patch node"
	PatchStatus Call = "patch status"
	WriteEvent  Call = "write event"
)

func callOf(r *http.Request) Call {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	ofNode := len(parts) > 3 && parts[2] == "nodes" && r.Method == http.MethodPatch
	switch last := parts[len(parts)-1]; {
	case last == "eviction":
		return EvictPod
	case slices.Contains(parts, "events"):
		return WriteEvent
	case slices.Contains(parts, "pods") && r.Method == http.MethodDelete:
		return DeletePod
	case last == "pods" && r.URL.Query().Has("watch"):
		return WatchPods
	case ofNode && len(parts) == 4:
		return PatchNode
	case ofNode && last == "status":
		return PatchStatus
	}
	return Call(r.Method + " " + r.URL.Path)
}

// A Request is one request and what became of it.
type Request struct {
	Call Call
	Path string
	// Began and Ended are when the request reached the proxy and when its answer was complete; Ended is zero before.
	Began, Ended time.Time
	// Status is what the API server, or the fault in its place, answered; 0 if nothing yet.
	Status int
	// Fault is the kind of the fault that met the request; empty if none did.
	Fault Kind
}

// Pod is the name of the pod that the request is about; empty if it is about none.
func (r Request) Pod() string {
	parts := strings.Split(strings.Trim(r.Path, "/"), "/")
	if i := slices.Index(parts, "pods"); i >= 0 && i+1 < len(parts) {
		return parts[i+1]
	}
	return ""
}

// journal remembers requests.
type journal struct {
	mu       sync.Mutex
	requests []Request
}

// begin takes a request in and returns its number.
func (j *journal) begin(r Request) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	r.Began = time.Now()
	j.requests = append(j.requests, r)
	return len(j.requests) - 1
}

func (j *journal) answered(entry, status int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.requests[entry].Status = status
}

func (j *journal) end(entry int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.requests[entry].Ended = time.Now()
}

func (j *journal) all() []Request {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.requests)
}
