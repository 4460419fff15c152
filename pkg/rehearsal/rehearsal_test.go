package rehearsal_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/rehearsal"
)

// ask sends one request, and returns the status and the answer.
func ask(c *rehearsal.Cluster, method, path, body string) (int, string) {
	w := httptest.NewRecorder()
	c.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
	return w.Code, w.Body.String()
}

func evict(c *rehearsal.Cluster, pod string) int {
	status, _ := ask(c, http.MethodPost, "/api/v1/namespaces/default/pods/"+pod+"/eviction", `{"apiVersion":"policy/v1","kind":"Eviction"}`)
	return status
}

// pods are the names of those that are there.
func pods(t *testing.T, c *rehearsal.Cluster) string {
	t.Helper()
	_, text := ask(c, http.MethodGet, "/api/v1/pods", "")
	var list corev1.PodList
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, pod := range list.Items {
		names = append(names, pod.Name)
	}
	return strings.Join(names, " ")
}

func TestBudget_LetsTheNextPodGoOnceTheLastIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := rehearsal.New("boot")
		if first, second := evict(c, "web-1"), evict(c, "web-2"); first != http.StatusCreated || second != http.StatusTooManyRequests {
			t.Errorf("the first is answered with %d, the second with %d", first, second)
		}
		time.Sleep(4 * time.Second)
		if again := evict(c, "web-2"); again != http.StatusCreated {
			t.Errorf("when the first is replaced, the second is answered with %d", again)
		}
		time.Sleep(4 * time.Second)
		if left := pods(t, c); strings.Contains(left, "web") {
			t.Errorf("left: %s", left)
		}
	})
}

func TestPod_IsKilledAtTheEndOfItsGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := rehearsal.New("boot")
		evict(c, "deaf-1")
		time.Sleep(7 * time.Second)
		if left := pods(t, c); !strings.Contains(left, "deaf-1") {
			t.Errorf("before that, left: %s", left)
		}
		ask(c, http.MethodDelete, "/api/v1/namespaces/default/pods/deaf-1", `{"apiVersion":"v1","kind":"DeleteOptions","gracePeriodSeconds":1}`)
		time.Sleep(2 * time.Second)
		if left := pods(t, c); strings.Contains(left, "deaf-1") {
			t.Errorf("after that, left: %s", left)
		}
	})
}

func TestNode_APatchChangesIt(t *testing.T) {
	c := rehearsal.New("boot")
	const path = "/api/v1/nodes/" + rehearsal.Node
	if status, text := ask(c, http.MethodPatch, path, `{"metadata":{"annotations":{"a":"b"}},"spec":{"unschedulable":true}}`); status != http.StatusOK {
		t.Errorf("status %d: %s", status, text)
	}
	if _, text := ask(c, http.MethodGet, path, ""); !strings.Contains(text, `"unschedulable":true`) || !strings.Contains(text, `"a":"b"`) {
		t.Errorf("the node is %s", text)
	}
}

func TestRequest_ThatADrainDoesNotMakeIsRefused(t *testing.T) {
	if status, _ := ask(rehearsal.New("boot"), http.MethodGet, "/api/v1/secrets", ""); status != http.StatusForbidden {
		t.Errorf("status %d", status)
	}
}
