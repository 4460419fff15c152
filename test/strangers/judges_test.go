package strangers

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nth-project/nth/test/internal/apt"
	"github.com/nth-project/nth/test/tools"
)

// style are the rules of markdownlint that are off: how long lines are and tables look is no concern of a reader, and docs/rules judges words.
const style = `{"config": {"MD010": false, "MD013": false, "MD014": false, "MD033": false, "MD034": false, "MD041": false, "MD046": false,
	"MD060": false}}`

func TestJudges_FindNothing(t *testing.T) {
	t.Parallel()
	if err := apt.Install(t.Context(), map[string]string{"shellcheck": "shellcheck"}, t.Logf); err != nil {
		t.Fatal(err)
	}
	if err := tools.Build(t.Context(), os.Stderr, "actionlint", "markdownlint"); err != nil {
		t.Fatal(err)
	}
	actionlint, err := tools.Path("actionlint")
	if err != nil {
		t.Fatal(err)
	}
	markdownlint, err := tools.Path("markdownlint-cli2")
	if err != nil {
		t.Fatal(err)
	}
	options := filepath.Join(t.TempDir(), ".markdownlint-cli2.jsonc")
	if err := os.WriteFile(options, []byte(style), 0o600); err != nil {
		t.Fatal(err)
	}
	const top = "../.."
	list := exec.Command("git", "-C", top, "ls-files", "-z")
	files, err := list.Output()
	if err != nil {
		t.Fatalf("listing the files: %v", err)
	}
	pages := []string{markdownlint, "--config", options}
	scripts := []string{"shellcheck", "--external-sources", "--severity=warning", "--format=gcc"}
	workflows := []string{actionlint}
	for file := range strings.SplitSeq(strings.TrimSuffix(string(files), "\x00"), "\x00") {
		start, _ := os.ReadFile(filepath.Join(top, file)) // A link to a folder has no script in it.
		line, _, _ := strings.Cut(string(start), "\n")
		switch {
		case strings.HasSuffix(file, ".md"):
			pages = append(pages, file)
		case strings.HasPrefix(file, ".github/workflows/"):
			workflows = append(workflows, file)
		case strings.HasPrefix(line, "#!") && strings.HasSuffix(line, "sh"):
			scripts = append(scripts, file)
		}
	}
	for _, judge := range [][]string{pages, scripts, workflows} {
		run := exec.CommandContext(t.Context(), judge[0], judge[1:]...)
		run.Dir = top
		if said, err := run.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", filepath.Base(judge[0]), err, said)
		}
	}
}
