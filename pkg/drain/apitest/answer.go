package apitest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Answer answers a request. If it returns false, the server answers by itself.
type Answer func(w http.ResponseWriter, r *http.Request) bool

// Answer sets the answers of the next requests of a kind, one for each request. what is a Request's What, or its first word. After these
// answers, the server answers by itself again.
func (s *Server) Answer(what string, answers ...Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.once[what] = append(s.once[what], answers...)
}

// Always sets the answer of all requests of a kind; nil lets the server answer by itself again.
func (s *Server) Always(what string, answer Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.always[what] = answer
}

// HeldBy is the refusal of a disruption budget that needs two pods. retryAfter, in seconds, is what the API server asks for
// while it has not worked through the budget; usually it is 0.
func HeldBy(budget string, retryAfter int32) Answer {
	return heldBy("The disruption budget "+budget+" needs 2 healthy pods and has 2 currently", retryAfter)
}

// Throttled is the answer of a busy API server.
func Throttled(retryAfter int32) Answer {
	return status(metav1.Status{
		Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests, Message: "too many requests",
		Details: &metav1.StatusDetails{RetryAfterSeconds: retryAfter},
	})
}

// TwoBudgets is the answer for a pod that two disruption budgets select: a failure in the body of a 201 (Create in
// pkg/registry/core/pod/storage/eviction.go of Kubernetes returns it as what was created).
func TwoBudgets() Answer {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		write(w, http.StatusCreated, metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: http.StatusInternalServerError,
			Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
		})
		return true
	}
}

// Unavailable is the answer of an API server that is starting or stopping.
func Unavailable() Answer {
	return status(metav1.Status{Code: http.StatusServiceUnavailable, Reason: metav1.StatusReasonServiceUnavailable, Message: "not ready"})
}

// NotFound is the answer for an object that the API server does not know.
func NotFound() Answer {
	return func(w http.ResponseWriter, r *http.Request) bool {
		resource := "nodes"
		if r.PathValue("namespace") != "" {
			resource = "pods"
		}
		notFound(w, resource, r.PathValue("name"))
		return true
	}
}

// Reborn is the answer for a pod that has another UID than the one that was meant.
func Reborn() Answer {
	return func(w http.ResponseWriter, r *http.Request) bool {
		return conflict(r.PathValue("name"), "the UID in the precondition (old) does not match the UID in record (new). "+
			"The object might have been deleted and then recreated")(w, r)
	}
}

// Page is the answer of a proxy or load balancer between the client and the API server: a page that is not JSON.
func Page(code int) Answer {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(code)
		_, _ = w.Write([]byte("<html>default backend - " + strconv.Itoa(code) + "</html>"))
		return true
	}
}

// Conflict is the answer for an object that changed in the meantime.
func Conflict() Answer {
	return status(metav1.Status{Code: http.StatusConflict, Reason: metav1.StatusReasonConflict, Message: "the object has been modified"})
}

// Refused is a refusal with any code. The API server keeps the code that an admission webhook denies a request with (ToStatusErr in
// pkg/admission/plugin/webhook/errors of k8s.io/apiserver).
func Refused(code int32, reason metav1.StatusReason, message string) Answer {
	return status(metav1.Status{Code: code, Reason: reason, Message: message})
}

// Forbidden is a refusal by an authorizer or an admission webhook.
func Forbidden(message string) Answer {
	return Refused(http.StatusForbidden, metav1.StatusReasonForbidden, message)
}

// NoRelationship is the Node authorizer's refusal for a pod that is not bound to the node, or no longer.
func NoRelationship() Answer { return Forbidden(noRelationship) }

const noRelationship = `pods "x" is forbidden: User "system:node:` + Node + `" cannot delete resource "pods" in API group "": ` +
	`no relationship found between node '` + Node + `' and this object`

// Expired is the answer to a list or a watch from a version that is no longer kept.
func Expired() Answer {
	return status(metav1.Status{Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "too old resource version"})
}

// ExpiredEvent accepts a watch, and ends it with an event that says that its version is no longer kept.
func ExpiredEvent() Answer {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		write(w, http.StatusOK, map[string]any{"type": "ERROR", "object": metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
			Status:   metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "too old resource version",
		}})
		return true
	}
}

// Reset breaks the connection without an answer.
func Reset() Answer {
	return func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }
}

// Hang never answers.
func Hang() Answer {
	return func(_ http.ResponseWriter, r *http.Request) bool {
		<-r.Context().Done()
		return true
	}
}

// Silence accepts a watch and never says anything on it.
func Silence() Answer {
	return func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush() // a client that has left is noticed below
		<-r.Context().Done()
		return true
	}
}

// Together holds requests until n of them are there, and then lets the server answer them by itself.
func Together(n int) Answer {
	var mu sync.Mutex
	arrived, all := 0, make(chan struct{})
	return func(_ http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		if arrived++; arrived == n {
			close(all)
		}
		mu.Unlock()
		select {
		case <-all:
			return false
		case <-r.Context().Done():
			return true
		}
	}
}

// status returns an Answer with a failure as the API server reports it.
func status(st metav1.Status) Answer {
	st.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	st.Status = metav1.StatusFailure
	return func(w http.ResponseWriter, _ *http.Request) bool {
		if st.Details != nil && st.Details.RetryAfterSeconds > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(st.Details.RetryAfterSeconds)))
		}
		write(w, int(st.Code), st)
		return true
	}
}

// refuse answers a request at once with a failure.
func refuse(w http.ResponseWriter, code int32, reason metav1.StatusReason, message string) {
	Refused(code, reason, message)(w, nil)
}

// write answers a request with body as JSON.
func write(w http.ResponseWriter, code int, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		panic(fmt.Sprintf("encoding an answer: %v", err)) // a mistake in this package
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(text) // a client that has left needs no answer
}
