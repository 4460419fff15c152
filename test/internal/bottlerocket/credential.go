package bottlerocket

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nth-project/nth/test/internal/lab"
)

// kubeconfig is that of a kubelet whose user is given as JSON. The cluster's certificate is in a file beside it.
func kubeconfig(server, user string) string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "kubelet",
  "clusters": [{"name": "kubernetes", "cluster": {"server": %q, "certificate-authority": %q}}],
  "contexts": [{"name": "kubelet", "context": {"cluster": "kubernetes", "user": "kubelet"}}],
  "users": [{"name": "kubelet", "user": %s}]}
`, server, authorityFile, user)
}

// credential is what a plugin prints that gives the node's own certificate.
func (h *Host) credential(t lab.TB) string {
	t.Helper()
	certificate, err := os.ReadFile(h.Node.Certificate)
	if err != nil {
		t.Fatalf("reading the node's certificate: %v", err)
	}
	chain, key, found := strings.Cut(string(certificate), "-----BEGIN EC")
	if !found {
		t.Fatalf("there is no key in %s", h.Node.Certificate)
	}
	text, err := json.Marshal(map[string]any{
		"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1beta1",
		"status": map[string]string{"clientCertificateData": chain, "clientKeyData": "-----BEGIN EC" + key},
	})
	if err != nil {
		t.Fatalf("%v", err)
	}
	return string(text)
}

// server is the address of the API server, and authority the certificate to trust there.
func (h *Host) server(t lab.TB) string    { return h.config(t).Host }
func (h *Host) authority(t lab.TB) []byte { return h.config(t).CAData }

func (h *Host) config(t lab.TB) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", h.Node.Kubeconfig)
	if err != nil {
		t.Fatalf("reading the node's kubeconfig: %v", err)
	}
	return config
}
