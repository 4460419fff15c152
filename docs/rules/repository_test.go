package rules_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/kube"
)

// The packages' change logs come from one, and people read the other.
func TestBothChangeLogsHaveTheSameVersions(t *testing.T) {
	versions := func(name, pattern string) []string {
		t.Helper()
		var all []string
		for _, found := range regexp.MustCompile(pattern).FindAllStringSubmatch(read(t, name), -1) {
			all = append(all, found[1])
		}
		return all
	}
	people := versions("CHANGELOG.md", `(?m)^## (\d\S*)`)
	packages := versions("packaging/changelog.yaml", `(?m)^- semver: (\S+)$`)
	if len(people) == 0 || !slices.Equal(people, packages) {
		t.Errorf("CHANGELOG.md has the versions %q, and packaging/changelog.yaml %q", people, packages)
	}
}

// The prefix of keys on Nodes is a DNS name that the project has with its place in go.mod, and the addresses that packages, units and
// catalogs name are that place. "make adopt" changes them all.
func TestEveryAddressIsThatOfTheModule(t *testing.T) {
	owner, repository, found := strings.Cut(strings.TrimPrefix(module, "github.com/"), "/")
	if !found || kube.KeyPrefix != owner+".github.io/" {
		t.Errorf("keys begin with %q, and the module is %s", kube.KeyPrefix, module)
	}
	address := regexp.MustCompile(`github\.com/` + regexp.QuoteMeta(owner) + `[\w.-]*/[\w.-]+`)
	for _, name := range []string{
		"go.mod", "nfpm.yaml", "packaging/queue/nfpm.yaml", "packaging/deb/copyright", "packaging/queue/copyright", "systemd/nth.catalog",
		"systemd/nth.service", "systemd/nth-queue.service", "packaging/helm/nth-queue/Chart.yaml",
	} {
		all := address.FindAllString(read(t, name), -1)
		if len(all) == 0 {
			t.Errorf("%s names no address", name)
		}
		for _, found := range all {
			if found != "github.com/"+owner+"/"+repository {
				t.Errorf("%s names %s, and the module is %s", name, found, module)
			}
		}
	}
}

func TestATreeThatIsAdoptedNamesNobodyElse(t *testing.T) {
	copied := t.TempDir()
	run := func(dir, line string) string {
		t.Helper()
		command := exec.Command("bash", "-euo", "pipefail", "-c", line)
		command.Dir = dir
		out, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
		return string(out)
	}
	run(top, fmt.Sprintf("git ls-files -co --exclude-standard | tar -cf - --ignore-failed-read -T - | tar -xf - -C %q", copied))
	run(copied, "git init -q && git add -A && packaging/adopt github.com/somebody/else 'Some Body <some@body.example>'")
	if left := run(copied, "git grep -nI nth-[p]roject || true"); left != "" {
		t.Errorf("it still names the owner before:\n%s", left)
	}
	run(copied, "grep -qx 'module github.com/somebody/else' go.mod && grep -qF 'KeyPrefix = \"somebody.github.io/\"' pkg/kube/keys.go && go build ./pkg/kube")
}

// A tag of an action can be moved to other code by the one who owns it; a commit cannot.
func TestWorkflows_pin_actions_by_commit(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(top, ".github/workflows/*.yml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("looking for workflows: %q, %v", files, err)
	}
	for _, file := range files {
		for _, use := range regexp.MustCompile(`uses: *(.*)`).FindAllStringSubmatch(read(t, strings.TrimPrefix(file, top+"/")), -1) {
			if !regexp.MustCompile(`^[a-z0-9./-]+@[0-9a-f]{40} # v[0-9.]+$`).MatchString(use[1]) {
				t.Errorf("%s uses %s, want it by its commit, with the version behind it", file, use[1])
			}
		}
	}
}
