package identity_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/identity"
)

func TestKubelet_FollowsARotatedCertificate(t *testing.T) {
	t.Parallel()
	server, dir := startAPIServer(t), t.TempDir()
	pair := place(t, filepath.Join(dir, "current.pem"), certificate(t, "system:node:a"))
	path := place(t, filepath.Join(dir, "kubeconfig"), []byte(server.kubeconfig(fmt.Sprintf(`{"client-certificate": %q, "client-key": %q}`, pair, pair))))
	k := identity.New(identity.Options{Kubeconfig: path})
	first := identityOf(t, k)
	place(t, pair, certificate(t, "system:node:renamed"))
	second := becomes(t, k, "renamed")
	if second.Client != first.Client {
		t.Error("it has another client")
	}
	readNode(t, second)
	if last := server.requests[len(server.requests)-1]; last != "GET /api/v1/nodes/renamed by system:node:renamed" {
		t.Errorf("the last request was %s", last)
	}
}

// A certificate may be renewed under another name, and the kubeconfig stay as it is.
func TestKubelet_AsksAgainWhoseTheCredentialIs(t *testing.T) {
	t.Parallel()
	for name, cause := range map[string]func(*testing.T, *identity.Kubelet, identity.Identity){
		"when a request is refused": func(t *testing.T, _ *identity.Kubelet, id identity.Identity) {
			t.Helper()
			if use(t, id) == nil {
				t.Error("the Node of another name was read")
			}
		},
		"with the next warm-up": func(t *testing.T, k *identity.Kubelet, _ identity.Identity) {
			t.Helper()
			keepWarm(t, k)("it is warm", warm)
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := startAPIServer(t)
			path := place(t, filepath.Join(t.TempDir(), "kubeconfig"), []byte(server.kubeconfig(tokenUser("system:node:a"))))
			k := identity.New(identity.Options{Kubeconfig: path})
			id := identityOf(t, k)
			server.set(func() { server.renamed = "system:node:b" })
			cause(t, k, id)
			readNode(t, becomes(t, k, "b"))
		})
	}
}

func TestCertificate_ThatHasExpiredIsNamed(t *testing.T) {
	t.Parallel()
	server := startAPIServer(t)
	server.refuse(http.StatusUnauthorized)
	to := time.Now().Add(-24 * time.Hour)
	pair := base64.StdEncoding.EncodeToString(certificateFor(t, "system:node:a", to.Add(-time.Hour), to))
	path := place(t, filepath.Join(t.TempDir(), "kubeconfig"),
		[]byte(server.kubeconfig(fmt.Sprintf(`{"client-certificate-data": %q, "client-key-data": %q}`, pair, pair))))
	_, err := identity.New(identity.Options{Kubeconfig: path}).Identity(t.Context())
	wantError(t, err, path, "the client certificate has expired: it was valid until "+to.UTC().Format("2006-01-02 15:04 UTC"))
}

// use makes a request with the identity.
func use(t *testing.T, id identity.Identity) error {
	t.Helper()
	return id.Client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/" + id.Node).Do(t.Context()).Error()
}
