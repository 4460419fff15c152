package identity_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/identity"
)

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
	user := fmt.Sprintf(`{"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": %q, "args": ["token", "-i", "production"]}}`, command)
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
func TestPlugin_ThatHangsIsKilledAndRunAgain(t *testing.T) {
	t.Parallel()
	k, dir := scripted(t, startAPIServer(t), `if [ ! -e hung ]; then : >hung; sleep 600 & wait; fi
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
		time.Sleep(100 * time.Millisecond)
	}
}

func TestPlugin_IsRunBelowTheRootOfTheHost(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("changing the root directory needs root")
	}
	built := filepath.Join(t.TempDir(), "below")
	build := exec.Command("go", "build", "-o", built, "./testdata/below")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the plugin: %v\n%s", err, output)
	}
	program, err := os.ReadFile(built)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", "/usr/bin:/bin")
	t.Setenv("SSL_CERT_FILE", "/nowhere")
	for name, command := range map[string]string{
		"by its path":           "/usr/bin/aws-iam-authenticator",
		"by a link":             "/opt/authenticator",
		"beside the kubeconfig": "./plugin",
	} {
		t.Run(name, func(t *testing.T) {
			server, root := startAPIServer(t), t.TempDir()
			place(t, filepath.Join(root, "/etc/kubernetes/kubelet/kubeconfig"), []byte(server.kubeconfig(fmt.Sprintf(`{"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": %q, "args": ["token", "-i", "production"]}}`, command))))
			for _, at := range []string{"/usr/bin/aws-iam-authenticator", "/etc/kubernetes/kubelet/plugin"} {
				place(t, filepath.Join(root, at), program)
				if err := os.Chmod(filepath.Join(root, at), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.MkdirAll(filepath.Join(root, "opt"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("/usr/bin/aws-iam-authenticator", filepath.Join(root, "opt", "authenticator")); err != nil {
				t.Fatal(err)
			}
			id := identityOf(t, identity.New(identity.Options{Root: root}))
			if id.Node != "below" || !strings.HasSuffix(id.Credential, filepath.Base(command)) {
				t.Errorf("identity %+v", id)
			}
		})
	}
}
