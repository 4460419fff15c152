package identity_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/nth-project/nth/pkg/identity"
)

const (
	v1      = "client.authentication.k8s.io/v1"
	v1beta1 = "client.authentication.k8s.io/v1beta1"
)

// configured is a plugin called "aws", which is a script.
func configured(t *testing.T, script string) *api.ExecConfig {
	t.Helper()
	path := filepath.Join(t.TempDir(), "aws")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return &api.ExecConfig{APIVersion: v1, Command: path, InteractiveMode: api.NeverExecInteractiveMode}
}

// prints is a script that prints an ExecCredential with this status.
func prints(status string) string {
	return fmt.Sprintf(`echo '{"kind": "ExecCredential", "apiVersion": %q, "status": %s}'`, v1, status)
}

func TestPlugin_GivesATokenAndItsExpiry(t *testing.T) {
	t.Parallel()
	given := configured(t, `[ "$COLOUR $1" = "blue token" ] || exit 1
case "$KUBERNETES_EXEC_INFO" in '{"kind":"ExecCredential","apiVersion":"`+v1+`"'*) ;; *) exit 2 ;; esac
`+prints(`{"token": "a", "expirationTimestamp": "2026-01-01T00:00:00Z"}`))
	given.Args, given.Env = []string{"token"}, []api.ExecEnvVar{{Name: "COLOUR", Value: "blue"}}
	token, expires, err := identity.RunPlugin(t.Context(), given)
	if err != nil || token != "a" || !expires.Equal(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("%s until %s, %v", token, expires, err)
	}
	yaml := "echo 'kind: ExecCredential'; echo 'apiVersion: " + v1 + "'; echo 'status: {token: a}'" // client-go takes it
	if token, expires, err = identity.RunPlugin(t.Context(), configured(t, yaml)); token != "a" || err != nil || !expires.IsZero() {
		t.Errorf("without an expiry: %s, %v", expires, err)
	}
}

// A plugin may leave a process behind that has its output open.
func TestPlugin_LeavesNoChildBehind(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "child")
	token, _, err := identity.RunPlugin(t.Context(), configured(t, "sleep 600 & echo $! >"+file+"\n"+prints(`{"token": "a"}`)))
	if token != "a" || err != nil {
		t.Errorf("the token is %q, %v", token, err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); syscall.Kill(child, 0) == nil; time.Sleep(10 * time.Millisecond) {
		if stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child)); strings.Contains(string(stat), ") Z ") {
			break // It was killed, and nobody has asked how it ended.
		}
		if time.Since(began) > time.Minute {
			_ = syscall.Kill(child, syscall.SIGKILL)
			t.Fatal("the child still runs")
		}
	}
}

func TestPlugin_FaultIsOneLineWithoutItsOutput(t *testing.T) {
	t.Parallel()
	const secret = "k8s-aws-v1.c2VjcmV0"
	long := strings.Repeat("c2VjcmV0", 100)
	for name, test := range map[string]struct{ script, says string }{
		"garbage":                   {"echo 'usage: " + secret + "'", "prints no ExecCredential"},
		"nothing":                   {"true", "prints no ExecCredential of " + v1 + " (0 bytes)"},
		"half":                      {`echo '{"kind": "ExecCredential", "status": {"token": "` + secret + `"'`, "prints no ExecCredential"},
		"another kind":              {`echo '{"kind": "Secret", "apiVersion": "v1", "token": "` + secret + `"}'`, "prints no ExecCredential"},
		"another version":           {strings.ReplaceAll(prints(`{"token": "`+secret+`"}`), v1, v1beta1), "prints no ExecCredential of " + v1},
		"no status":                 {prints(`null`), "gives no token"},
		"no token":                  {prints(`{}`), "gives no token"},
		"a client certificate":      {prints(`{"clientKeyData": "` + secret + `", "clientCertificateData": "` + secret + `"}`), "gives no token"},
		"an exit status":            {"echo " + secret + "; exit 3", "failed with exit code 3"},
		"a complaint":               {"echo 'Unable to locate credentials.\n\nYou can configure' >&2; exit 255", "exit code 255: Unable to locate credentials. You can configure"},
		"a long complaint":          {"yes 'no credentials' | head -c 100000 >&2; exit 1", "credentials no credentials"},
		"a complaint with a secret": {"echo 'the token is " + long + " and no good' >&2; exit 1", "the token is … and no good"},
		"a signal":                  {"kill -9 $$", "signal: killed"},
		"too much":                  {"yes | head -c 2000000", "prints more than"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			token, _, err := identity.RunPlugin(t.Context(), configured(t, test.script))
			if err == nil {
				t.Fatalf("it gives %q", token)
			}
			if line := err.Error(); !strings.Contains(line, test.says) || !strings.HasPrefix(line, "the exec plugin aws") {
				t.Errorf("the error %q does not say %q", line, test.says)
			} else if strings.Contains(line, "\n") || len(line) > 800 || strings.Contains(line, secret) || strings.Contains(line, long) {
				t.Errorf("the error says too much: %q", line)
			}
		})
	}
}

func TestPlugin_ThatNthCannotRunIsNamed(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*api.ExecConfig){
		"the exec plugin aws: its apiVersion must be": func(c *api.ExecConfig) { c.APIVersion = "client.authentication.k8s.io/v1alpha1" },
		"the exec plugin aws wants a terminal":        func(c *api.ExecConfig) { c.InteractiveMode = api.AlwaysExecInteractiveMode },
		"the exec plugin no-such-plugin not found: Install it from somewhere.": func(c *api.ExecConfig) {
			c.Command, c.InstallHint = "no-such-plugin", "Install it\n\nfrom somewhere."
		},
	} {
		given := configured(t, "")
		change(given)
		if _, _, err := identity.RunPlugin(t.Context(), given); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
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
