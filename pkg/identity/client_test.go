package identity_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nth-project/nth/pkg/identity"
)

// connectTo returns the client of a kubeconfig for a server elsewhere, with more fields of its cluster.
func connectTo(t *testing.T, more string) (*identity.Client, error) {
	t.Helper()
	server := startAPIServer(t)
	text := strings.ReplaceAll(server.kubeconfig(tokenUser("system:node:a")), `"server": "`+server.URL+`"`, more+`"server": "https://apiserver.test"`)
	return identity.Connect(place(t, filepath.Join(t.TempDir(), "kubeconfig"), []byte(text)), identity.ClientOptions{})
}

// Without t.Parallel: the environment is set.
func TestProxy_IsTheKubeconfigsOrTheEnvironments(t *testing.T) {
	const own = "http://robot:hunter2%25@own.test:3128"
	for name, test := range map[string]struct{ environment, none, kubeconfig, want string }{
		"the environment's": {own, "10.0.0.0/8", "", "http://own.test:3128"},
		"an exception":      {own, ".test", "", ""},
		"the kubeconfig's":  {own, "", `"proxy-url": "http://robot:hunter2@other.test", `, "http://other.test"},
		"none":              {"", "", "", ""},
	} {
		t.Setenv("HTTPS_PROXY", test.environment)
		t.Setenv("NO_PROXY", test.none)
		if c, err := connectTo(t, test.kubeconfig); err != nil || c.Proxy != test.want {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
}

// An error is logged. What net/http cannot read as the address of a proxy, it ignores, as the kubelet does.
func TestProxy_FaultHidesItsUserAndPassword(t *testing.T) {
	const wrong = "HTTPS_PROXY or HTTP_PROXY is no address of a proxy"
	for address, own := range map[string]string{
		"http://robot:hunter2%@proxy.test": "", "http://robot:hunter2@[proxy.test": "", "ftp://robot:hunter2@proxy.test": "",
		"http://robot:1/hunter2@proxy.test:3128": wrong, "http://hunter2/1@proxy.test": wrong,
	} {
		t.Setenv("HTTPS_PROXY", "")
		_, err := connectTo(t, fmt.Sprintf(`"proxy-url": %q, `, address))
		wantError(t, err, "the cluster's proxy-url is no address of a proxy")
		t.Setenv("HTTPS_PROXY", address)
		_, ownErr := connectTo(t, "")
		if said := fmt.Sprint(ownErr); own != "" && !strings.Contains(said, own) {
			t.Errorf("%s: %s", address, said)
		}
		if said := fmt.Sprint(err, ownErr); regexp.MustCompile("hunter2|robot").MatchString(said) {
			t.Errorf("what may not be shown is: %s", said)
		}
	}
}

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
