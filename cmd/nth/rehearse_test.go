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

// firstBlock is the first block of commands in the part of the README of that name.
func firstBlock(t *testing.T, part string) string {
	t.Helper()
	_, text, found := strings.Cut(shipped(t, "../../README.md"), "\n## "+part+"\n")
	if !found {
		t.Fatalf("the README has no part %q", part)
	}
	var block strings.Builder
	for line := range strings.Lines(text) {
		command, indented := strings.CutPrefix(line, "    ")
		switch {
		case indented:
			block.WriteString(command)
		case block.Len() > 0:
			return block.String()
		}
	}
	return block.String()
}

// asNobody is a directory that everybody can enter, with this test's binary as bin/nth, and with a make that has made it.
func asNobody(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "nth-readme-") //nolint:usetesting // Others may not be let into the test's own directory.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"bin/nth": program, "tools/make": []byte("#!/bin/sh\n[ \"$*\" = build ]\n")} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{dir, dir + "/bin", dir + "/tools"} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestTheFirstBlockOfTheREADMEWorksAsItIsPastedWithoutRootsRights(t *testing.T) {
	t.Parallel()
	block := firstBlock(t, "See it work")
	if !strings.Contains(block, "make build\n") || !strings.Contains(block, "bin/nth rehearse\n") {
		t.Fatalf("the block is\n%s", block)
	}
	dir := asNobody(t)
	shell := exec.CommandContext(t.Context(), "/bin/sh", "-e", "-c", block)
	shell.Dir, shell.Env = dir, []string{"PATH=" + dir + "/tools:/usr/bin:/bin", "TERM=dumb", asProgram + "=nth"}
	if os.Getuid() == 0 {
		shell.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	out, err := shell.CombinedOutput()
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
