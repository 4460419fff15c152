package kubelet_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/transport"

	"github.com/nth-project/nth/pkg/kubelet"
)

// pluginVariable turns this test binary into an exec plugin, of the sort that the variable says.
const pluginVariable = "NTH_TEST_PLUGIN"

func TestMain(m *testing.M) {
	if sort := os.Getenv(pluginVariable); sort != "" {
		os.Exit(plugin(sort, os.Args[1]))
	}
	transport.CertCallbackRefreshDuration = 20 * time.Millisecond // Five minutes else.
	os.Exit(m.Run())
}

func plugin(sort, arg string) int {
	var expires string
	switch sort {
	case "expired":
		expires = `, "expirationTimestamp": "2025-01-01T00:00:00Z"`
	case "hanging": // until the test closes the connection
		connection, err := net.Dial("tcp", arg)
		if err != nil {
			return 1
		}
		_, _ = io.Copy(io.Discard, connection)
		return 1
	case "garbage":
		fmt.Println("usage:\n\n  plugin")
		return 0
	case "failing":
		return 3
	}
	fmt.Printf(`{"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1beta1", "status": {"token": %q%s}}`, arg, expires)
	return 0
}

// pluginUser is a kubeconfig's user with this test binary as its exec plugin.
func pluginUser(t *testing.T, sort, arg string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`{"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": %q, "args": [%q],
    "env": [{"name": %q, "value": %q}]}}`, self, arg, pluginVariable, sort)
}

func TestAnExecPluginProvesTheIdentity(t *testing.T) {
	for _, sort := range []string{"quick", "expired"} {
		t.Run(sort, func(t *testing.T) {
			server := startAPIServer(t)
			id := identity(t, server.kubeconfig(pluginUser(t, sort, "system:node:exec")))
			if id.Node != "exec" || !strings.HasPrefix(id.Credential, "the exec plugin ") {
				t.Errorf("identity: %+v", id)
			}
			readNode(t, id) // With the same token, or a new one.
		})
	}
}

func TestAnExecPluginThatDoesNotAnswerIsToldInOneLine(t *testing.T) {
	server := startAPIServer(t)
	missing := `{"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "nth-test-no-such-plugin",
    "installHint": "Install it\n\nfrom somewhere."}}`
	for name, test := range map[string]struct{ user, says string }{
		"not installed": {missing, "nth-test-no-such-plugin not found"},
		"failing":       {pluginUser(t, "failing", ""), "exit code 3"},
		"garbage":       {pluginUser(t, "garbage", ""), "getting credentials"},
	} {
		t.Run(name, func(t *testing.T) {
			path := place(t, filepath.Join(t.TempDir(), "kubeconfig"), []byte(server.kubeconfig(test.user)))
			_, err := kubelet.New(kubelet.Options{Kubeconfig: path}).Identity(t.Context())
			wantError(t, err, path, test.says)
		})
	}
}

func TestAHangingExecPluginDoesNotOutlastTheContext(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	server := startAPIServer(t)
	user := pluginUser(t, "hanging", listener.Addr().String())
	path := place(t, filepath.Join(t.TempDir(), "kubeconfig"), []byte(server.kubeconfig(user)))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := kubelet.New(kubelet.Options{Kubeconfig: path}).Identity(ctx)
		ended <- err
	}()
	running, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = running.Close() }() // This ends the plugin.
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want the context's", err)
	}
}
