package rules_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// budgets is how many words a page may have, as wc counts them. A page that outgrows its budget needs a cut, or a reason to raise it.
var budgets = map[string]int{
	"docs/README.md":              325,
	"docs/commands.md":            1225,
	"docs/configuration-queue.md": 1275,
	"docs/configuration.md":       2400,
	"docs/design.md":              2550,
	"docs/events.md":              1625,
	"docs/faq.md":                 200,
	"docs/install.md":             1100,
	"docs/karpenter.md":           950,
	"docs/lifecycle.md":           925,
	"docs/load-balancers.md":      600,
	"docs/measurements.md":        850,
	"docs/metrics.md":             1075,
	"docs/migration.md":           925,
	"docs/node-contract.md":       1300,
	"docs/notices.md":             1125,
	"docs/operations.md":          1000,
	"docs/queue-install.md":       900,
	"docs/queue.md":               1400,
	"docs/release.md":             375,
	"docs/reliability.md":         925,
	"docs/rollout.md":             875,
	"docs/security.md":            1075,
	"docs/shutdown.md":            1225,
	"docs/sources.md":             1285,
	"docs/troubleshooting.md":     3775,
	"bottlerocket/README.md":      925,
	"CONTRIBUTING.md":             450,
	"README.md":                   1100,
	"SECURITY.md":                 150,
	"STYLE.md":                    625,
}

// manualBudget is how many words all pages in docs may have together.
const manualBudget = 30_000

// longest is how many words a sentence for users may have.
const longest = 25

// banned are terms that an operator would have to translate, in pages and messages, with the plain one.
var banned = []struct {
	term  *regexp.Regexp
	plain string
}{
	{regexp.MustCompile(`(?i)\bwhoever\b`), "who, or name them"},
	{regexp.MustCompile(`(?i)\bbeside\b`), "next to, with, compared with"},
	{regexp.MustCompile(`(?i)\banew\b`), "again"},
	{regexp.MustCompile(`(?i)\blikewise\b`), "also, in the same way"},
	{regexp.MustCompile(`(?i)\bheed(s|ed|ing)?\b`), "follow, respect"},
	{regexp.MustCompile(`(?i)\bis none (that|until)\b`), "is not one"},
	{regexp.MustCompile(`(?i)\btold\b`), "reported, notified"},
	{regexp.MustCompile(`(?i)\bpeople\b`), "operators, users"},
	{regexp.MustCompile(`(?i)\bgo(es)? on\b`), "continue"},
	{regexp.MustCompile(`(?i)\bby then\b`), "name the moment"},
	{regexp.MustCompile(`(?i)\bstranger\b`), "name them"},
	{regexp.MustCompile(`(?i)\ban order\b`), "a request, a command"},
	{regexp.MustCompile(`(?i)\bdoomed\b`), "about to be taken"},
}

func TestPage_UsesPlainTerms(t *testing.T) {
	for name, text := range manual(t) {
		for _, line := range prose(text) {
			for _, b := range banned {
				if found := b.term.FindString(line.text); found != "" {
					t.Errorf("%s:%d: %q: say %s", name, line.number, found, b.plain)
				}
			}
		}
	}
}

func TestMessage_UsesPlainTerms(t *testing.T) {
	seen := 0
	judge := func(at, text string) {
		seen++
		for _, b := range banned {
			if found := b.term.FindString(text); found != "" {
				t.Errorf("%s: %q in %s: say %s", at, found, text, b.plain)
			}
		}
	}
	for _, s := range project(t).sources {
		if s.test() {
			continue
		}
		for _, comment := range s.file.Comments {
			judge(s.at(comment.Pos()), comment.Text())
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING && strings.Contains(literal.Value, " ") {
				judge(s.at(literal.Pos()), literal.Value)
			}
			return true
		})
	}
	for _, name := range shipped(t) {
		for i, line := range strings.Split(read(t, name), "\n") {
			judge(fmt.Sprintf("%s:%d", name, i+1), line)
		}
	}
	if seen < 5000 {
		t.Errorf("only %d texts were found: the source is read wrongly", seen)
	}
}

// shipped returns the files that are no Go source, and that operators read or run: units, the message catalog, templates, the Makefile.
func shipped(t *testing.T) []string {
	t.Helper()
	found := []string{"Makefile", "nfpm.yaml"}
	for _, dir := range []string{"systemd", "packaging"} {
		err := fs.WalkDir(os.DirFS(top), dir, func(name string, entry fs.DirEntry, err error) error {
			if err == nil && entry.Type().IsRegular() {
				found = append(found, name)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

func TestPage_SentencesAreShort(t *testing.T) {
	seen := 0
	for name, text := range manual(t) {
		for _, s := range sentences(text) {
			seen++
			if n := len(strings.Fields(s.text)); n > longest {
				t.Errorf("%s:%d: a sentence of %d words, %d are the most: %s", name, s.number, n, longest, s.text)
			}
		}
	}
	if seen < 1000 {
		t.Errorf("only %d sentences were found: the pages are read wrongly", seen)
	}
}

func TestPage_KeepsItsBudget(t *testing.T) {
	pages, all := manual(t), 0
	for name, text := range pages {
		n := len(strings.Fields(text))
		if n > budgets[name] {
			t.Errorf("%s has %d words, and its budget is %d", name, n, budgets[name])
		}
		if strings.HasPrefix(name, "docs/") {
			all += n
		}
	}
	if all > manualBudget {
		t.Errorf("the pages in docs have %d words, and their budget is %d", all, manualBudget)
	}
	for name := range budgets {
		if _, found := pages[name]; !found {
			t.Errorf("there is a budget for %s, and no such page", name)
		}
	}
}

// manual returns the pages for readers: all but the change log.
func manual(t *testing.T) map[string]string {
	t.Helper()
	found := pages(t)
	delete(found, "CHANGELOG.md")
	return found
}

// pages returns the text of each page, by its path from the top: those of docs/ and bottlerocket/, and those at the top.
func pages(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, pattern := range []string{"docs/*.md", "bottlerocket/*.md", "*.md"} {
		files, err := filepath.Glob(filepath.Join(top, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			name := strings.TrimPrefix(file, top+"/")
			found[name] = read(t, name)
		}
	}
	return found
}

// numbered is some text of a page, and the line where it begins.
type numbered struct {
	number int
	text   string
}

var (
	codeSpan  = regexp.MustCompile("`[^`]*`")
	linkOf    = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
	listItem  = regexp.MustCompile(`^\s*(?:[-*]|\d+\.)\s+`)
	tableRule = regexp.MustCompile(`^[|\s:-]+$`)
	capital   = regexp.MustCompile(`^(?:[^a-z]|(?:nth|systemd|logind)\b)`)
	ending    = regexp.MustCompile(`[.!?][)"”*]*\s+`)
)

// prose returns the lines that are text: no code, comment or address.
func prose(page string) []numbered {
	var lines []numbered
	fenced, list, before := false, false, ""
	for i, line := range strings.Split(page, "\n") {
		trimmed := strings.TrimSpace(line)
		item := listItem.MatchString(line)
		switch {
		case strings.HasPrefix(trimmed, "```"):
			fenced, trimmed = !fenced, ""
		case fenced, strings.HasPrefix(trimmed, "<!--"), tableRule.MatchString(trimmed):
			trimmed = ""
		case strings.HasPrefix(line, "    ") && !item && (before == "" || strings.HasPrefix(before, "    ")) && (!list || strings.HasPrefix(line, "       ")):
			trimmed = ""
		}
		if item {
			list = true
		} else if line != "" && !strings.HasPrefix(line, " ") {
			list = false
		}
		before = line
		if trimmed != "" || line == "" {
			text := linkOf.ReplaceAllString(codeSpan.ReplaceAllString(strings.TrimRight(line, " "), "CODE"), "$1")
			lines = append(lines, numbered{i + 1, text})
		}
	}
	return lines
}

// sentences returns those of the paragraphs, list items and headings. A table has none.
func sentences(page string) []numbered {
	var found []numbered
	var paragraph numbered
	end := func() {
		text := strings.Join(strings.Fields(paragraph.text), " ")
		for text != "" {
			cut := len(text)
			for _, at := range ending.FindAllStringIndex(text, -1) {
				if capital.MatchString(text[at[1]:]) { // "e.g. here" is not an end.
					cut = at[1]
					break
				}
			}
			found = append(found, numbered{paragraph.number, strings.TrimSpace(text[:cut])})
			text = text[cut:]
		}
		paragraph = numbered{}
	}
	for _, line := range prose(page) {
		text := strings.TrimLeft(line.text, "# ")
		switch {
		case text == "":
			end()
			continue
		case strings.HasPrefix(text, "|"):
			end()
			continue
		case listItem.MatchString(line.text), strings.HasPrefix(line.text, "#"):
			end()
		}
		if paragraph.text == "" {
			paragraph.number = line.number
		}
		paragraph.text += " " + listItem.ReplaceAllString(text, "")
		if strings.HasPrefix(line.text, "#") {
			end()
		}
	}
	end()
	return found
}

func TestThePageOfTheDesignNamesEveryPackage(t *testing.T) {
	page := read(t, "docs/design.md")
	missing := map[string]bool{}
	for _, s := range project(t).sources {
		if dir := s.dir(); !s.lab() && !strings.HasSuffix(dir, "test") && !strings.Contains(page, "\n| `"+dir+"` | ") {
			missing[dir] = true
		}
	}
	for dir := range missing {
		t.Errorf("docs/design.md does not say what %s is for", dir)
	}
}

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
	for _, row := range sourceRow.FindAllStringSubmatch(read(t, "docs/sources.md"), -1) {
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
