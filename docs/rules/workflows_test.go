package rules_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// A tag of an action can be moved to other code by the one who owns it; a commit cannot.
func TestWorkflows_pin_actions_by_commit(t *testing.T) {
	files, err := filepath.Glob("../../.github/workflows/*.yml")
	if err != nil || len(files) == 0 {
		t.Fatalf("looking for workflows: %q, %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, use := range regexp.MustCompile(`uses: *(.*)`).FindAllStringSubmatch(string(text), -1) {
			if !regexp.MustCompile(`^[a-z0-9./-]+@[0-9a-f]{40} # v[0-9.]+$`).MatchString(use[1]) {
				t.Errorf("%s uses %s, want it by its commit, with the version behind it", file, use[1])
			}
		}
	}
}
