package lab

import (
	"bufio"
	"encoding/json"
	"os"
	"time"
)

// auditPolicy has the API server write down, once each is answered, what nodes and nth-queue ask it to change.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: Metadata
  userGroups: ["system:nodes", "nth-queue"]
  verbs: ["create", "patch", "delete"]
  resources: [{group: "", resources: ["nodes", "nodes/status", "pods", "pods/eviction", "events"]}]
- level: None
`

// A Request is one that the API server has answered, by its own audit log.
type Request struct {
	// Verb and Resource are as in "create" and "pods/eviction".
	Verb, Resource string
	// Name is that of the object.
	Name string
	// Status is the HTTP status of the answer, and At when the request came.
	Status int
	At     time.Time
}

// Removes tells whether the request is to evict or delete a pod.
func (r Request) Removes() bool {
	return r.Resource == "pods/eviction" || r.Resource == "pods" && r.Verb == "delete"
}

// Requests returns the requests for changes that were made with the node's credential and have been answered, in that sequence. One that
// was answered just now may not be there yet.
func (n *Node) Requests(t TB) []Request {
	t.Helper()
	log, err := os.Open(n.cp.path("audit.log"))
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		t.Fatalf("reading the audit log: %v", err)
	}
	defer func() { _ = log.Close() }()
	var found []Request
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event struct {
			Verb      string
			User      struct{ Username string }
			ObjectRef struct{ Resource, Subresource, Name string }
			// A part of a line that is being written is no JSON.
			ResponseStatus           struct{ Code int }
			RequestReceivedTimestamp time.Time
		}
		if json.Unmarshal(lines.Bytes(), &event) != nil || event.User.Username != n.user() {
			continue
		}
		r := Request{Verb: event.Verb, Resource: event.ObjectRef.Resource, Name: event.ObjectRef.Name, Status: event.ResponseStatus.Code, At: event.RequestReceivedTimestamp}
		if event.ObjectRef.Subresource != "" {
			r.Resource += "/" + event.ObjectRef.Subresource
		}
		found = append(found, r)
	}
	if err := lines.Err(); err != nil {
		t.Fatalf("reading the audit log: %v", err)
	}
	return found
}
