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
	judges := map[string][]string{
		"actionlint, workflows":    {actionlint},
		"markdownlint-cli2, pages": {markdownlint, "--config", options},
		"shellcheck, scripts":      {"shellcheck", "--external-sources", "--severity=warning", "--format=gcc"},
	}
	judged := map[string][]string{}
	for file := range strings.SplitSeq(strings.TrimSuffix(string(files), "\x00"), "\x00") {
		start, _ := os.ReadFile(filepath.Join(top, file)) // A link to a folder has no script in it.
		line, _, _ := strings.Cut(string(start), "\n")
		switch {
		case strings.HasSuffix(file, ".md"):
			judged["markdownlint-cli2, pages"] = append(judged["markdownlint-cli2, pages"], file)
		case strings.HasPrefix(file, ".github/workflows/"):
			judged["actionlint, workflows"] = append(judged["actionlint, workflows"], file)
		case strings.HasPrefix(line, "#!") && strings.HasSuffix(line, "sh"):
			judged["shellcheck, scripts"] = append(judged["shellcheck, scripts"], file)
		}
	}
	for suite, judge := range judges {
		run := exec.CommandContext(t.Context(), judge[0], append(judge[1:], judged[suite]...)...)
		run.Dir = top
		said, err := run.CombinedOutput()
		found := 0
		for _, file := range judged[suite] {
			bad := strings.Contains("\n"+string(said), "\n"+file+":")
			table.judge(t, suite, file, !bad, "", string(said))
			if bad {
				found++
			}
		}
		if err != nil && found == 0 {
			t.Errorf("%s: %v\n%s", suite, err, said)
		}
	}
}
