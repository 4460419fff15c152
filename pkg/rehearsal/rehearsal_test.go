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

func TestPod_IsKilledAtTheEndOfItsGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := rehearsal.New("boot")
		ask(c, http.MethodPost, "/api/v1/namespaces/default/pods/deaf-1/eviction", `{"apiVersion":"policy/v1","kind":"Eviction"}`)
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

func TestRequest_ThatADrainDoesNotMakeIsRefused(t *testing.T) {
	if status, _ := ask(rehearsal.New("boot"), http.MethodGet, "/api/v1/secrets", ""); status != http.StatusForbidden {
		t.Errorf("status %d", status)
	}
}
