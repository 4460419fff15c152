package rules_test

import (
	"os"
	"strings"
	"testing"
)

func TestThePageOfTheDesignNamesEveryPackage(t *testing.T) {
	page, err := os.ReadFile("../design.md")
	if err != nil {
		t.Fatal(err)
	}
	missing := map[string]bool{}
	for _, s := range project(t).sources {
		if dir := s.dir(); !s.lab() && !strings.HasSuffix(dir, "test") && !strings.Contains(string(page), "\n| `"+dir+"` | ") {
			missing[dir] = true
		}
	}
	for dir := range missing {
		t.Errorf("docs/design.md does not say what %s is for", dir)
	}
}
