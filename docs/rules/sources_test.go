package rules_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	sourceRow = regexp.MustCompile(`(?m)^\| ([A-Z]\d+) \| (.*) \|$`)
	// sourceUse is how a page refers to one, from wherever it is.
	sourceUse = regexp.MustCompile(`\[([A-Z]\d+)\]\((?:docs/|\.\./docs/)?sources\.md\)`)
	// readOn is a day, or why there is none.
	readOn = regexp.MustCompile(`^(\d{4}-\d{2}-\d{2}|not read again|seen)$`)
)

// What pages say of other projects is one list with versions and places, which can be gone through again.
func TestWhatIsSaidOfOthersIsOnThePageOfSources(t *testing.T) {
	known := map[string]bool{}
	for _, row := range sourceRow.FindAllStringSubmatch(page(t, "sources.md"), -1) {
		name, cells := row[1], strings.Split(row[2], " | ")
		if _, twice := known[name]; twice {
			t.Errorf("docs/sources.md has %s twice", name)
		}
		known[name] = false
		if len(cells) != 4 || cells[0] == "" || cells[1] == "" || cells[2] == "" || !readOn.MatchString(cells[3]) {
			t.Errorf("docs/sources.md: %s does not say what, of which version, read where and when: %q", name, cells)
		}
	}
	if len(known) < 20 {
		t.Fatalf("docs/sources.md has %d rows: it is read wrongly", len(known))
	}
	for file, text := range pages(t) {
		for _, use := range sourceUse.FindAllStringSubmatch(text, -1) {
			if _, ok := known[use[1]]; !ok {
				t.Errorf("%s refers to %s, which docs/sources.md does not have", file, use[1])
			}
			known[use[1]] = true
		}
	}
	for name, used := range known {
		if !used {
			t.Errorf("no page refers to %s of docs/sources.md", name)
		}
	}
}

func page(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(top, "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
