package rules_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// The packages' change logs come from one, and people read the other.
func TestBothChangeLogsHaveTheSameVersions(t *testing.T) {
	top := filepath.Join("..", "..")
	versions := func(name, pattern string) []string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(top, name))
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, found := range regexp.MustCompile(pattern).FindAllSubmatch(text, -1) {
			all = append(all, string(found[1]))
		}
		return all
	}
	people := versions("CHANGELOG.md", `(?m)^## (\d\S*)`)
	packages := versions("packaging/changelog.yaml", `(?m)^- semver: (\S+)$`)
	if len(people) == 0 || !slices.Equal(people, packages) {
		t.Errorf("CHANGELOG.md has the versions %q, and packaging/changelog.yaml %q", people, packages)
	}
}
