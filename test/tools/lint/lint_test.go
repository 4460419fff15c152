// Package lint is where the linter is built. Its tests, which "make lint" runs, show that each linter finds what it is there for.
package lint

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var (
	want      = regexp.MustCompile(`// want ([\w ]+)$`)
	complaint = regexp.MustCompile(`(?m)^(\S+\.go:\d+)(?::\d+)?: .* \((\w+)\)$`)
	enabled   = regexp.MustCompile(`(?m)^    - (\w+)$`)
)

// The example is judged in a directory of its own: there, its files have the paths that .golangci.yml means.
func TestTheLinterFindsWhatBreaksEachRuleAndNothingElse(t *testing.T) {
	linter := os.Getenv("LINT")
	if linter == "" {
		t.Fatal("nothing is shown without the linter: run \"make lint\"")
	}
	config, err := os.ReadFile("../../../.golangci.yml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".golangci.yml"), config, 0o600); err != nil {
		t.Fatal(err)
	}
	wanted, linters := wants(t, dir)
	for _, name := range enabled.FindAllStringSubmatch(string(config), -1) {
		if !linters[name[1]] {
			t.Errorf("testdata has no example of what %s finds", name[1])
		}
	}
	command := exec.CommandContext(t.Context(), linter, "run", "--output.text.print-issued-lines=false", "--output.text.colors=false",
		"--max-issues-per-linter=0", "--max-same-issues=0", "--uniq-by-line=false", "./...")
	command.Dir = dir
	output, _ := command.CombinedOutput() // It fails, since it finds something.
	found := map[string]bool{}
	for _, c := range complaint.FindAllStringSubmatch(string(output), -1) {
		found[c[1]+" "+c[2]] = true
	}
	if !maps.Equal(found, wanted) {
		for _, line := range slices.Sorted(maps.Keys(wanted)) {
			if !found[line] {
				t.Errorf("not found: %s", line)
			}
		}
		for _, line := range slices.Sorted(maps.Keys(found)) {
			if !wanted[line] {
				t.Errorf("not wanted: %s", line)
			}
		}
		t.Logf("%s", output)
	}
}

// wants returns the complaints that the example's lines ask for, as "file:line linter", and the linters.
func wants(t *testing.T, dir string) (lines, linters map[string]bool) {
	t.Helper()
	lines, linters = map[string]bool{}, map[string]bool{}
	files, err := filepath.Glob(filepath.Join(dir, "*", "*", "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name, _ := filepath.Rel(dir, file) // It is below.
		for number, line := range strings.Split(string(text), "\n") {
			if w := want.FindStringSubmatch(line); w != nil {
				for linter := range strings.FieldsSeq(w[1]) {
					lines[name+":"+strconv.Itoa(number+1)+" "+linter] = true
					linters[linter] = true
				}
			}
		}
	}
	return lines, linters
}
