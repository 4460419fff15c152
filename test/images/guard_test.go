package images_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// A build ends with the first line that fails, and with nth running on the machine that the image is made of. Packer hands
// the lines to "sh -e" as one script; here they run beside programs that only say that all is well.
func TestProvisioner_FailsWhereNthRunsInTheBuild(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"al2023.pkr.hcl", "ubuntu.pkr.hcl"} {
		for _, tt := range []struct {
			name     string
			programs map[string]string // what they do, beside nothing
			fails    bool
		}{
			{"nothing is wrong", map[string]string{"systemctl": `[ "$1" != is-active ]`}, false},
			{"nth runs", nil, true}, // every program is content: "systemctl is-active" says that it does
			{"nth cannot be enabled", map[string]string{"systemctl": "exit 1"}, true},
			{"the check finds a fault", map[string]string{"systemctl": `[ "$1" != is-active ]`, "nth": "exit 1"}, true},
			{"the settings are not there", map[string]string{"systemctl": `[ "$1" != is-active ]`, "install": "exit 1"}, true},
		} {
			t.Run(file+"/"+tt.name, func(t *testing.T) {
				t.Parallel()
				said, err := build(t, file, tt.programs)
				if (err != nil) != tt.fails {
					t.Errorf("the build ends with %v, it says %q", err, said)
				}
			})
		}
	}
}

// build runs the lines of a template's provisioner.
func build(t *testing.T, file string, programs map[string]string) (string, error) {
	t.Helper()
	bin := t.TempDir()
	for _, name := range []string{"sudo", "cloud-init", "apt-get", "dnf", "install", "rm", "ln", "systemctl", "nth"} {
		text := programs[name]
		if name == "sudo" {
			text = `exec "$@"`
		}
		path := filepath.Join(bin, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil { // it is a program
			t.Fatal(err)
		}
	}
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), sh, "-e", "-c", strings.Join(provisioner(t, file), "\n"))
	cmd.Env = []string{"PATH=" + bin}
	said, err := cmd.CombinedOutput()
	return string(said), err
}

// line is one line of a template's script.
var line = regexp.MustCompile(`(?m)^ {6}("(?:[^"\\]|\\.)*"),$`)

// provisioner is the script of a template.
func provisioner(t *testing.T, file string) []string {
	t.Helper()
	_, inline, found := strings.Cut(string(read(t, "packer/"+file)), "    inline = [\n")
	if !found {
		t.Fatalf("%s runs no script", file)
	}
	inline, _, _ = strings.Cut(inline, "\n    ]")
	var script []string
	for _, quoted := range line.FindAllStringSubmatch(inline, -1) {
		text, err := strconv.Unquote(quoted[1])
		if err != nil {
			t.Fatal(err)
		}
		script = append(script, text)
	}
	if len(script) < 5 {
		t.Fatalf("%s has a script of %q", file, script)
	}
	return script
}
