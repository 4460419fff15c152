package identity_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/nth-project/nth/pkg/identity"
)

// issuer makes tokens, and is the server that accepts or refuses them.
type issuer struct {
	takes time.Duration // each time
	life  time.Duration // 0 is for ever
	err   error
	// refuses are tokens that the server refuses; "all" is each.
	refuses []string

	mu     sync.Mutex
	made   []time.Time
	shown  []string
	client http.RoundTripper
}

func newIssuer(i *issuer) *issuer {
	i.client = identity.Authenticated(i, i.create)
	return i
}

func (i *issuer) create() (string, time.Time, error) {
	time.Sleep(i.takes)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.made = append(i.made, time.Now())
	if i.err != nil {
		return "", time.Time{}, i.err
	}
	token, expires := fmt.Sprint(len(i.made)), time.Time{}
	if i.life != 0 {
		expires = time.Now().Add(i.life)
	}
	return token, expires, nil
}

// times is when tokens were made.
func (i *issuer) times() []time.Time {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.made)
}

// RoundTrip implements http.RoundTripper.
func (i *issuer) RoundTrip(r *http.Request) (*http.Response, error) {
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	i.mu.Lock()
	defer i.mu.Unlock()
	i.shown = append(i.shown, token)
	status := http.StatusOK
	if slices.Contains(i.refuses, token) || slices.Contains(i.refuses, "all") {
		status = http.StatusUnauthorized
	}
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(http.StatusText(status)))}, nil
}

// request makes a request and returns its status, with which token it went, and how long it took.
func (i *issuer) request(ctx context.Context) (status int, token string, took time.Duration, err error) {
	began := time.Now()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://apiserver.test/", nil)
	if err != nil {
		return 0, "", 0, err
	}
	response, err := i.client.RoundTrip(request)
	if err != nil {
		return 0, "", time.Since(began), err
	}
	_ = response.Body.Close()
	i.mu.Lock()
	defer i.mu.Unlock()
	return response.StatusCode, i.shown[len(i.shown)-1], time.Since(began), nil
}

// mustShow fails the test unless a request is answered after that time, with that token.
func (i *issuer) mustShow(t *testing.T, want string, after time.Duration) {
	t.Helper()
	if status, token, took, err := i.request(t.Context()); err != nil || took != after || token != want || status != http.StatusOK {
		t.Errorf("status %d with the token %q after %s, %v; want %q after %s", status, token, took, err, want, after)
	}
}

func TestCredential_IsRenewedBeforeItExpires(t *testing.T) {
	for name, c := range map[string]struct {
		life    time.Duration
		renewed map[time.Duration]string // the token that is shown after so long
	}{
		"14 minutes": {14 * time.Minute, map[time.Duration]string{7 * time.Minute: "1", 10 * time.Minute: "2"}},
		"half of it": {4 * time.Minute, map[time.Duration]string{time.Minute: "1", 3 * time.Minute: "2"}},
		"for ever":   {0, map[time.Duration]string{48 * time.Hour: "1"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				i := newIssuer(&issuer{takes: 3 * time.Second, life: c.life})
				i.mustShow(t, "1", 3*time.Second)
				began := time.Now()
				for _, after := range slices.Sorted(maps.Keys(c.renewed)) {
					for time.Since(began) < after-time.Minute {
						time.Sleep(time.Minute) // the interval of the warm-ups
						if _, _, took, err := i.request(t.Context()); took != 0 || err != nil {
							t.Fatalf("a request took %s, %v", took, err)
						}
					}
					time.Sleep(time.Until(began.Add(after)))
					i.mustShow(t, c.renewed[after], 0)
				}
			})
		})
	}
}

func TestCredential_RequestsWaitForOneAndNotBeyondTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(&issuer{takes: 19 * time.Second})
		var waiting sync.WaitGroup
		for range 50 {
			waiting.Go(func() {
				if _, _, took, err := i.request(t.Context()); took != 19*time.Second || err != nil {
					t.Errorf("after %s: %v", took, err)
				}
			})
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, _, took, err := i.request(ctx)
		if took != 5*time.Second || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with five seconds, after %s: %v", took, err)
		}
		waiting.Wait()
		if len(i.times()) != 1 {
			t.Errorf("%d were made", len(i.times()))
		}
	})
}

// A drain makes hundreds of requests; a plugin is not run for each, whatever goes wrong.
func TestCredential_IsMadeEveryTenSecondsAtMost(t *testing.T) {
	for name, i := range map[string]*issuer{
		"it fails":              {err: errors.New("no credential provider")},
		"it is expired at once": {life: -time.Hour},
		"it expires soon":       {life: time.Second},
		"it is refused":         {refuses: []string{"all"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			newIssuer(i)
			for range 600 {
				status, _, took, err := i.request(t.Context())
				if took != 0 || !errors.Is(err, i.err) || err == nil && (status == http.StatusOK) == (i.refuses != nil) {
					t.Fatalf("%s: status %d after %s: %v", name, status, took, err)
				}
				time.Sleep(100 * time.Millisecond)
			}
			if n := len(i.times()); n < 4 || n > 6 {
				t.Errorf("%s: %d were made in a minute", name, n)
			}
			i.err, i.refuses, i.life = nil, nil, 0
			time.Sleep(10 * time.Second)
			if status, _, _, err := i.request(t.Context()); err != nil || status != http.StatusOK {
				t.Errorf("%s: when it works again: status %d, %v", name, status, err)
			}
		})
	}
}

func TestCredential_IsUsedUntilItExpiresIfNoOtherCanBeMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(&issuer{life: 14 * time.Minute})
		i.mustShow(t, "1", 0)
		i.takes, i.err = 20*time.Second, errors.New("the plugin hung and was killed")
		for range 13 {
			time.Sleep(time.Minute)
			i.mustShow(t, "1", 0)
		}
		if len(i.times()) < 5 {
			t.Errorf("another one was asked for %d times", len(i.times())-1)
		}
		time.Sleep(2 * time.Minute)
		if _, token, _, err := i.request(t.Context()); err == nil {
			t.Errorf("after its end it is used: %q", token)
		}
	})
}

func TestCredential_RefusedOneIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(&issuer{})
		i.mustShow(t, "1", 0)
		i.refuses = []string{"1"}
		time.Sleep(time.Minute)
		for range 2 { // The first is refused, and the second has another made.
			_, _, _, err := i.request(t.Context())
			if err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		i.mustShow(t, "2", 0)
	})
}

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
		"garbage":                   {"echo 'usage: " + secret + "'", "printed no valid ExecCredential"},
		"nothing":                   {"true", "printed no valid ExecCredential of apiVersion " + v1 + " (output: 0 bytes)"},
		"half":                      {`echo '{"kind": "ExecCredential", "status": {"token": "` + secret + `"'`, "printed no valid ExecCredential"},
		"another kind":              {`echo '{"kind": "Secret", "apiVersion": "v1", "token": "` + secret + `"}'`, "printed no valid ExecCredential"},
		"another version":           {strings.ReplaceAll(prints(`{"token": "`+secret+`"}`), v1, v1beta1), "printed no valid ExecCredential of apiVersion " + v1},
		"no status":                 {prints(`null`), "without a token"},
		"no token":                  {prints(`{}`), "without a token"},
		"a client certificate":      {prints(`{"clientKeyData": "` + secret + `", "clientCertificateData": "` + secret + `"}`), "without a token"},
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
		"the exec plugin aws has an unsupported apiVersion": func(c *api.ExecConfig) { c.APIVersion = "client.authentication.k8s.io/v1alpha1" },
		"the exec plugin aws requires a terminal":           func(c *api.ExecConfig) { c.InteractiveMode = api.AlwaysExecInteractiveMode },
		"the exec plugin no-such-plugin was not found: Install it from somewhere.": func(c *api.ExecConfig) {
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

// It takes the twenty seconds that a plugin is given.
func TestPlugin_ThatHangsIsKilledAndRunAgain(t *testing.T) {
	t.Parallel()
	plugin := configured(t, `cd "${0%/*}" && echo run >>runs
if [ ! -e hung ]; then : >hung; sleep 600 & wait; fi
`+strings.ReplaceAll(prints(`{"token": "system:node:a"}`), v1, v1beta1))
	user := fmt.Sprintf(`{"exec": {"apiVersion": %q, "command": %q}}`, v1beta1, plugin.Command)
	path := place(t, filepath.Join(t.TempDir(), "kubeconfig"), []byte(startAPIServer(t).kubeconfig(user)))
	k := identity.New(identity.Options{Kubeconfig: path})
	id, err := k.Identity(t.Context())
	for ; err != nil; id, err = k.Identity(t.Context()) {
		if !strings.Contains(err.Error(), "getting a token for the API server") {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	runs, err := os.ReadFile(filepath.Join(filepath.Dir(plugin.Command), "runs"))
	if err != nil || id.Node != "a" || string(runs) != "run\nrun\n" {
		t.Errorf("identity %+v, after the plugin was run as %q (%v)", id, runs, err)
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
