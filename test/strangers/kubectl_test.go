package strangers

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestKubectl_DrainsWhatNthDrains(t *testing.T) {
	t.Parallel()
	const finished = "nth leaves a DaemonSet's finished pod: its controller replaces it, and a kubelet that shuts down fails the replacement too"
	dir, err := filepath.Abs("kubectl")
	if err != nil {
		t.Fatal(err)
	}
	kubectl, version := module(t, dir, "k8s.io/kubectl")
	runGo(t, dir, "kubectl "+version+", its tests of drain, nth decides", map[string]string{
		"TestDrain/DS-managed_terminated_pod":    finished,
		"TestDrain/DS-managed_terminated_pod#01": finished,
	}, nil, "-run", "TestDrain", "-overlay", overlay(t, dir, filepath.Join(kubectl, "pkg/cmd/drain/drain_test.go")), ".")
	runGo(t, dir, "kubectl "+version+", its tests of the filters that nth links", nil, nil, "k8s.io/kubectl/pkg/drain")
}

// module is where a module's files are, and its version, for the module in a directory.
func module(t *testing.T, dir, path string) (files, version string) {
	t.Helper()
	for _, command := range [][]string{{"mod", "download", path}, {"list", "-m", "-f", "{{.Dir}} {{.Version}}", path}} {
		run := exec.Command("go", command...)
		run.Dir, run.Stderr = dir, os.Stderr
		said, err := run.Output()
		if err != nil {
			t.Fatalf("running go %v: %v", command, err)
		}
		files, version, _ = strings.Cut(strings.TrimSpace(string(said)), " ")
	}
	return files, version
}

// overlay writes what makes the go command take files for those of a package in a directory.
func overlay(t *testing.T, dir string, files ...string) string {
	t.Helper()
	replace := map[string]string{}
	for _, file := range files {
		replace[filepath.Join(dir, filepath.Base(file))] = file
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "overlay.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// runGo runs tests of Go with an environment added, and judges each that has no others in it.
func runGo(t *testing.T, dir, suite string, reasons map[string]string, env []string, arguments ...string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", append([]string{"test", "-json", "-count=1", "-timeout=30m"}, arguments...)...)
	command.Dir, command.Env = dir, append(os.Environ(), env...)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	said, failed := command.Output() // a failure is judged case by case
	output, outcome, parents := map[string]string{}, map[string]string{}, map[string]bool{}
	for lines := json.NewDecoder(bytes.NewReader(said)); lines.More(); {
		var line struct{ Action, Test, Output string }
		if err := lines.Decode(&line); err != nil {
			t.Fatalf("reading what go test says: %v", err)
		}
		output[line.Test] += line.Output
		for parent := line.Test; strings.Contains(parent, "/"); {
			parent = parent[:strings.LastIndex(parent, "/")]
			parents[parent] = true
		}
		switch line.Action {
		case "pass", "fail", "skip":
			outcome[line.Test] = line.Action
		}
	}
	delete(outcome, "")
	if len(outcome) == 0 {
		t.Fatalf("%s: no test ran: %v\n%s%s", suite, failed, output[""], stderr.String())
	}
	for name, action := range outcome {
		if !parents[name] {
			table.judge(t, suite, name, action == "pass", reasons[name], output[name])
		}
	}
}
