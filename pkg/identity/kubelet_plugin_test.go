package identity_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/identity"
)

// pluginVariable turns this test binary into an exec plugin, of the sort that the variable says.
const pluginVariable = "NTH_TEST_PLUGIN"

func TestMain(m *testing.M) {
	if sort := os.Getenv(pluginVariable); sort != "" {
		os.Exit(plugin(sort, os.Args[1]))
	}
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
			id := borrow(t, server.kubeconfig(pluginUser(t, sort, "system:node:exec")))
			if id.Node != "exec" || !strings.HasPrefix(id.Credential, "the exec plugin ") {
				t.Errorf("identity: %+v", id)
			}
			readNode(t, id) // With the same token, or a new one.
		})
	}
}

func TestPlugin_FailureIsOneLine(t *testing.T) {
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
			_, err := identity.New(identity.Options{Kubeconfig: path}).Identity(t.Context())
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
		_, err := identity.New(identity.Options{Kubeconfig: path}).Identity(ctx)
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

// scripted returns the kubelet of a kubeconfig whose plugin is a script, which runs in a directory of its own.
func scripted(t *testing.T, server *apiServer, script string) (k *identity.Kubelet, dir string) {
	t.Helper()
	dir = t.TempDir()
	command := filepath.Join(dir, "plugin")
	text := "#!/bin/sh\ncd " + dir + " && echo run >>runs\ncredential() {\n" +
		`printf '%s\n' '{"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1beta1", "status": {'"$1"'}}'` + "\n}\n" + script
	if err := os.WriteFile(command, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	user := fmt.Sprintf(`{"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": %q}}`, command)
	path := place(t, filepath.Join(dir, "kubeconfig"), []byte(server.kubeconfig(user)))
	return identity.New(identity.Options{Kubeconfig: path}), dir
}

// runs tells how often the plugin was run.
func runs(t *testing.T, dir string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "runs"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), "run")
}

// It takes the twenty seconds that a plugin is given.
func TestAPluginThatHangsIsKilledAndRunAgain(t *testing.T) {
	t.Parallel()
	for name, hang := range map[string]string{"itself": "exec sleep 600", "with a child": "sleep 600 & wait"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k, dir := scripted(t, startAPIServer(t), `if [ ! -e hung ]; then : >hung; `+hang+`; fi
credential '"token": "system:node:a"'`)
			for {
				id, err := k.Identity(t.Context())
				if err == nil {
					if id.Node != "a" || runs(t, dir) != 2 {
						t.Errorf("identity %+v, after the plugin was run %d times", id, runs(t, dir))
					}
					return
				}
				if !strings.Contains(err.Error(), "getting credentials") {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestAPluginThatFailsAndThenWorksIsRunAgain(t *testing.T) {
	t.Parallel()
	k, dir := scripted(t, startAPIServer(t), `if [ "$(wc -l <runs)" -lt 3 ]; then echo no network >&2; exit 1; fi
credential '"token": "system:node:a"'`)
	for {
		id, err := k.Identity(t.Context())
		if err == nil {
			if id.Node != "a" || runs(t, dir) != 3 {
				t.Errorf("identity %+v, after the plugin was run %d times", id, runs(t, dir))
			}
			return
		}
		if !strings.Contains(err.Error(), "getting credentials: the exec plugin plugin failed with exit code 1: no network") {
			t.Fatal(err)
		}
	}
}

// The server believes the token of each run for as long as it says itself.
func TestAPluginWhoseTokenExpiresIsRunForAnother(t *testing.T) {
	t.Parallel()
	server := startAPIServer(t)
	k, dir := scripted(t, server, `credential '"token": "system:node:a'"$(wc -l <runs)"'", "expirationTimestamp": "'"$(date -u -d @$(($(date +%s) + 2)) +%Y-%m-%dT%H:%M:%SZ)"'"'`)
	id := identityOf(t, k)
	for limit := time.Now().Add(30 * time.Second); runs(t, dir) < 3; time.Sleep(10 * time.Millisecond) {
		readNode(t, id)
		if time.Now().After(limit) {
			t.Fatalf("the plugin was run %d times", runs(t, dir))
		}
	}
	readNode(t, id)
	if heard := strings.Join(server.heard(), "\n"); !strings.Contains(heard, "by system:node:a2") {
		t.Errorf("the second token was not used:\n%s", heard)
	}
}

func TestAPluginsCertificateIsUsedAndReplacedWhenItIsRefused(t *testing.T) {
	t.Parallel()
	server := startAPIServer(t)
	k, dir := scripted(t, server, `if [ "$(wc -l <runs)" -gt 1 ]; then which=b; else which=a; fi
credential "$(cat "$which")"`)
	for _, node := range []string{"a", "b"} {
		pair := string(certificate(t, "system:node:"+node))
		chain, key, _ := strings.Cut(pair, "-----BEGIN PRIVATE")
		status, err := json.Marshal(map[string]string{"clientCertificateData": chain, "clientKeyData": "-----BEGIN PRIVATE" + key})
		if err != nil {
			t.Fatal(err)
		}
		place(t, filepath.Join(dir, node), []byte(strings.Trim(string(status), "{}")))
	}
	id := identityOf(t, k)
	if id.Node != "a" {
		t.Errorf("identity %+v", id)
	}
	server.bar("system:node:a")
	if err := use(t, id); err != nil {
		t.Error(err)
	}
	heard := server.heard()
	if last := heard[len(heard)-1]; !strings.HasSuffix(last, "by system:node:b") || runs(t, dir) != 2 {
		t.Errorf("the last request was %s, after %d runs of the plugin", last, runs(t, dir))
	}
}
