package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
)

// hiddenServer is a name that only the proxy knows the API server by.
const hiddenServer = "apiserver.test:443"

// newTunnel starts a proxy that leads to the API server at the address, under its hidden name alone, and counts its connections.
func newTunnel(t *testing.T, address string) (proxy string, made *atomic.Int64) {
	t.Helper()
	made = &atomic.Int64{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect || r.Host != hiddenServer {
			http.Error(w, "not here", http.StatusForbidden)
			return
		}
		server, err := net.Dial("tcp", address)
		if err != nil {
			http.Error(w, "no way", http.StatusBadGateway)
			return
		}
		defer server.Close()
		here, said, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer here.Close()
		if _, err := io.WriteString(here, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
			return
		}
		made.Add(1)
		go func() {
			_, _ = io.Copy(server, said)
			_ = server.Close() // the one who asked is gone
		}()
		_, _ = io.Copy(here, server)
	}))
	t.Cleanup(server.Close)
	return server.URL, made
}

// hide makes a host with a kubelet that reaches the API server through the proxy in its environment, as nodeadm sets it, and
// returns the host's root.
func hide(t *testing.T, node *lab.Node) (root string, connections *atomic.Int64) {
	t.Helper()
	config, err := clientcmd.LoadFromFile(node.Kubeconfig)
	if err == nil {
		err = api.MinifyConfig(config)
	}
	if err == nil {
		err = api.FlattenConfig(config)
	}
	if err != nil {
		t.Fatal(err)
	}
	var proxy string
	for _, cluster := range config.Clusters {
		server, err := url.Parse(cluster.Server)
		if err != nil {
			t.Fatal(err)
		}
		proxy, connections = newTunnel(t, server.Host)
		cluster.Server, cluster.TLSServerName = "https://"+hiddenServer, server.Hostname()
	}
	text, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	root = t.TempDir()
	for path, text := range map[string]string{
		"var/lib/kubelet/kubeconfig":                            string(text),
		"etc/systemd/system/kubelet.service":                    "[Service]\nExecStart=/usr/bin/kubelet\n",
		"etc/systemd/system/kubelet.service.d/environment.conf": fmt.Sprintf("[Service]\nEnvironment=\"HTTPS_PROXY=%s\"\nEnvironment=\"NO_PROXY=169.254.169.254\"\n", proxy),
	} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root, connections
}

func TestANodeIsDrainedThroughTheKubeletsProxy(t *testing.T) {
	t.Parallel()
	node, metadata := lab.Shared(t).AddNode(t), imdstest.NewServer()
	t.Cleanup(metadata.Close)
	root, connections := hide(t, node)
	node.AddPods(t, "work", 3)
	machine := daemon.NewMachine(t, daemon.Options{
		Kubeconfig: "/var/lib/kubelet/kubeconfig", IMDS: metadata.URL, Cadence: 50 * time.Millisecond,
		Settings: fmt.Sprintf("host_root = %q\n", root),
	})
	nth := machine.Start(t)
	nth.WaitWatching(t, node.Name)
	metadata.SetSpot("terminate", twoMinutes())
	node.WaitCordoned(t)
	node.WaitEmpty(t)
	if connections.Load() == 0 {
		t.Error("the proxy was asked for nothing")
	}
	nth.Stop(t)
}
