package docs_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nth-project/nth/test/internal/docs"
)

const example = "# The `nth` page\n\n" +
	"Run `nth config`:\n\n" +
	"<!-- needs: node -->\n```console\n$ nth status\nwatching since 2026-01-31 for …\n$ nth check \\\n    --offline\n```\n\n" +
	"    make build    # a comment\n    this is no command\n\n" +
	"1. In a list, see [above](#the-nth-page):\n\n" +
	"   <!-- needs: aws -->\n\n       bash-5.1# journalctl -u nth\n       … drained\n\n" +
	"```toml\nmake = \"no command\"\n```\n"

func TestAPageIsReadAsPeopleReadIt(t *testing.T) {
	page := docs.Parse("a.md", []byte(example))
	want := []string{
		"a.md:7 node nth status [watching since 2026-01-31 for …]",
		"a.md:9 node nth check --offline []",
		"a.md:13 make make build []",
		"a.md:20 aws journalctl -u nth [… drained]",
	}
	var got []string
	for _, c := range page.Commands {
		got = append(got, fmt.Sprintf("%s:%d %s %s %v", c.Page, c.Line, c.Needs, c.Text, c.Output))
	}
	if !slices.Equal(got, want) {
		t.Errorf("the commands are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if !slices.Contains(page.Anchors, "the-nth-page") || !slices.Contains(page.Spans, "nth config") || !slices.Contains(page.Links, "#the-nth-page") {
		t.Errorf("read %+v", page)
	}
}

// judge is a test that notes how it was failed.
type judge struct {
	*testing.T
	failed string
}

func (j *judge) Fatalf(format string, args ...any) {
	j.failed = fmt.Sprintf(format, args...)
	panic(j)
}

func TestOnlyWhatThePageShowsIsGoodEnough(t *testing.T) {
	tests := []struct {
		name, printed string
		status        int
		good          bool
	}{
		{"the same with other numbers", "drained: 3 pods, 0 left\n", 0, true},
		{"more before and behind", "cordoned\ndrained: 3 pods, 0 left\ndone\n", 0, true},
		{"other words", "drained: 3 goats, 0 left\n", 0, false},
		{"nothing", "", 0, false},
		{"a status other than 0", "drained: 3 pods, 0 left\n", 1, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			j := &judge{T: t}
			func() {
				defer func() { _ = recover() }()
				docs.Type(j, []docs.Command{{Text: "drain", Output: []string{"drained: 12 pods, 1 left"}}},
					func(string) (string, int) { return tt.printed, tt.status })
			}()
			if good := j.failed == ""; good != tt.good {
				t.Errorf("good is %v (%q), want %v", good, j.failed, tt.good)
			}
		})
	}
}
