package main_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/nth-project/nth/pkg/rehearsal"
)

func TestRehearse_NeedsNoRightsAndFitsATerminal(t *testing.T) {
	t.Parallel()
	if readme := shipped(t, "../../README.md"); !strings.Contains(readme, "    make build\n    bin/nth rehearse\n") {
		t.Error("README does not begin with a rehearsal")
	}
	program := exec.CommandContext(t.Context(), "/proc/self/exe", "rehearse")
	program.Dir, program.Env = "/", []string{asProgram + "=nth"}
	if os.Getuid() == 0 {
		program.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	out, err := program.CombinedOutput()
	said := string(out)
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	for _, line := range []string{
		`draining the node: EC2 will terminate this spot instance at`, `cordoned the node after`, `! disruption budget web blocks the eviction of default/web-\d;`,
		`evicted default/deaf-1`, `kube-system/coredns-1 is gone, 0 of 6 left`, `drained: 6 pods evicted, 0 deleted, 1 left in place`,
	} {
		if !regexp.MustCompile(line).MatchString(said) {
			t.Errorf("nothing is said that matches %q:\n%s", line, said)
		}
	}
	for line := range strings.Lines(said) {
		if strings.ContainsAny(line, "\x1b\r\t") || len(line) > len("\n")+80 && !strings.Contains(line, "settings in effect") {
			t.Errorf("not for every terminal: %q", line)
		}
	}
}

func TestWhatTheSettingsDoNotAskForIsNotRehearsed(t *testing.T) {
	for _, c := range []struct{ settings, said string }{
		{"[events.spot-interruption]\naction = \"ignore\"\n", `Nothing would be done: events.spot-interruption.action is "ignore".`},
		{"[imds]\nlife_cycles = [\"on-demand\"]\n", `Nothing would be done: imds.life_cycles is ["on-demand"], which leaves out spot instances.`},
		{"[events.spot-interruption]\naction = \"notify\"\n", `The node is not drained, since the settings do not ask for it: events.spot-interruption.action is "notify".`},
		{"dry_run = true\n[events.spot-interruption]\naction = \"cordon\"\n", "The service would only log this: dry_run is true."},
		{"[events.spot-interruption]\naction = \"cordon\"\n", `The node is not drained, since the settings do not ask for it: events.spot-interruption.action is "cordon".`},
	} {
		t.Run(c.said, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "nth.toml")
			if err := os.WriteFile(file, []byte(c.settings), 0o600); err != nil {
				t.Fatal(err)
			}
			status, said, stderr := call(t, "rehearse --config "+file)
			if status != 0 || stderr != "" || !strings.Contains(strings.Join(strings.Fields(said), " "), c.said) || !strings.Contains(said, "settings in effect here: "+file) {
				t.Errorf("status %d, on standard error %q, said\n%s", status, stderr, said)
			}
		})
	}
}

// realCluster serves a cluster to which a kubeconfig leads, and returns that and what was asked that would change something.
func realCluster(t *testing.T) (kubeconfig string, written func() []string) {
	t.Helper()
	cluster := rehearsal.New("00000000-0000-0000-0000-000000000001")
	var mu sync.Mutex
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && !strings.HasSuffix(r.URL.Path, "/selfsubjectreviews") {
			mu.Lock()
			asked = append(asked, r.Method+" "+r.URL.Path)
			mu.Unlock()
		}
		cluster.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, rehearsal.Kubeconfig(server.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	return kubeconfig, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(asked)
	}
}

func TestARealNodeIsOnlyLookedAtInARehearsal(t *testing.T) {
	kubeconfig, written := realCluster(t)
	status, said, stderr := call(t, "rehearse --deadline 20s --kubeconfig "+kubeconfig)
	if status != 0 || stderr != "" {
		t.Errorf("status %d, on standard error: %s", status, stderr)
	}
	for _, words := range []string{
		fmt.Sprintf("The node %s is real", rehearsal.Node), "dry run: would have evicted default/web-1",
		"dry run: the node would have been cordoned and drained of 6 pods, 1 left alone",
		"a drain of 6 pods takes up to 18 s of the 20 s of a spot notice",
		"! default/cache-0 has a grace period of 30 s, and would get 18 s of it",
	} {
		if !strings.Contains(strings.Join(strings.Fields(said), " "), words) {
			t.Errorf("%q is not said:\n%s", words, said)
		}
	}
	if asked := written(); len(asked) > 0 {
		t.Errorf("written: %q", asked)
	}
}

func TestAKubeconfigThatIsNoUseIsStatus1(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	status, said, stderr := call(t, "rehearse --kubeconfig "+file)
	if status != 1 || said != "" || !strings.Contains(stderr, "there is no kubeconfig at "+file) {
		t.Errorf("status %d, said %q, on standard error: %s", status, said, stderr)
	}
}
