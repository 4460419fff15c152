package identity_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

func TestRights_AreAskedForAsTheyAreUsed(t *testing.T) {
	t.Parallel()
	server := startAPIServer(t)
	id := borrow(t, server.kubeconfig(tokenUser("system:node:a")))
	server.set(func() { server.denied["delete pods"] = true })
	var allowed, refused []string
	for _, right := range id.Rights() {
		may, err := id.CheckPermission(t.Context(), right)
		if err != nil {
			t.Fatal(err)
		}
		if right.For == "" {
			t.Errorf("it is not told what %q is for", right)
		}
		if may {
			allowed = append(allowed, right.String())
		} else {
			refused = append(refused, right.String())
		}
	}
	want := []string{
		"get nodes a", "patch nodes a", "list pods", "watch pods", "create pods/eviction", "patch nodes/status a", "create events",
	}
	if !slices.Equal(allowed, want) {
		t.Errorf("allowed: %q, want %q", allowed, want)
	}
	if !slices.Equal(refused, []string{"delete pods"}) {
		t.Errorf("refused: %q", refused)
	}
	// The Node authorizer lets a kubelet list the pods of its own node only.
	if got := server.reviews["list pods"]; !strings.Contains(got, `"key":"spec.nodeName","operator":"In","values":["a"]`) {
		t.Errorf("asked for the right to list pods: %s", got)
	}
}

func TestRights_FaultNamesRightAndServer(t *testing.T) {
	t.Parallel()
	server := startAPIServer(t)
	id := borrow(t, server.kubeconfig(tokenUser("system:node:a")))
	server.refuse(http.StatusServiceUnavailable)
	_, err := id.CheckPermission(t.Context(), id.Rights()[0])
	wantError(t, err, "for the right to get nodes a", server.URL)
}
