package identity_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/nth-project/nth/pkg/identity"
)

func TestClient_ReportsEachRequest(t *testing.T) {
	t.Parallel()
	server := startAPIServer(t)
	var mu sync.Mutex
	var reported []string
	k := identity.New(identity.Options{
		Kubeconfig: place(t, filepath.Join(t.TempDir(), "kubeconfig"), []byte(server.kubeconfig(tokenUser("system:node:a")))),
		ClientOptions: identity.ClientOptions{Requested: func(method string, status int) {
			mu.Lock()
			defer mu.Unlock()
			reported = append(reported, fmt.Sprintf("%s %d", method, status))
		}},
	})
	server.refuse(http.StatusForbidden)
	_, _ = k.Identity(t.Context()) // is refused
	server.refuse(0)
	if _, err := k.Identity(t.Context()); err != nil {
		t.Fatal(err)
	}
	server.Close()
	id, _ := k.Identity(t.Context())
	_, _ = id.Client.Discovery().ServerVersion() // nobody is there, which client-go may ask twice
	mu.Lock()
	defer mu.Unlock()
	if want := []string{"POST 403", "POST 201", "GET 0"}; !slices.Equal(slices.Compact(reported), want) {
		t.Errorf("reported are %q, want %q", reported, want)
	}
}
