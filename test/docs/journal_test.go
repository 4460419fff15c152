package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// A troubleshooter searches for what the journal says. So it has to be what nth says, to the letter.
func TestEveryMessageThatIsExplainedCanBeSaid(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(top, "docs", "troubleshooting.md"))
	if err != nil {
		t.Fatal(err)
	}
	formats := said(t)
	rows := regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(string(page), -1)
	if len(rows) < 30 {
		t.Errorf("there are only %d messages: the page is read wrongly", len(rows))
	}
	for _, row := range rows {
		if !sayable(row[1], formats) {
			t.Errorf("docs/troubleshooting.md: nth never says %q", row[1])
		}
	}
	for _, made := range []string{"the cordon was blown away by the wind", "the drain failed because of the weather; retrying"} {
		if sayable(made, formats) {
			t.Errorf("%q would be taken for something that nth says", made)
		}
	}
}

// Who is warned looks for what to do.
func TestEveryWarningOfNTHQueueIsExplained(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(top, "docs", "troubleshooting.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(string(page), -1)
	found := 0
	for _, dir := range []string{"pkg/fleet", "cmd/nth-queue"} {
		eachSource(t, dir, func(source *ast.File) {
			ast.Inspect(source, func(n ast.Node) bool {
				text, warns := warning(n)
				if !warns {
					return true
				}
				found++
				if gap := verb.FindStringIndex(text); gap != nil && letters(text[:gap[0]]) < 5 {
					t.Errorf("%q does not say what nth-queue was doing", text)
				}
				is := pattern(text)
				if !slices.ContainsFunc(rows, func(row []string) bool { return is.MatchString(row[1]) }) {
					t.Errorf("docs/troubleshooting.md does not explain %q", text)
				}
				return true
			})
		})
	}
	if found < 8 {
		t.Errorf("there are only %d warnings: the source is read wrongly", found)
	}
}

// warning returns what is said in the journal as a warning or an error, where that is said on the spot.
func warning(n ast.Node) (text string, warns bool) {
	call, is := n.(*ast.CallExpr)
	if !is || len(call.Args) == 0 {
		return "", false
	}
	f, is := call.Fun.(*ast.SelectorExpr)
	if !is || !slices.Contains([]string{"Warn", "Warnf", "Error", "Errorf"}, f.Sel.Name) {
		return "", false
	}
	if of, is := f.X.(*ast.Ident); is && (of.Name == "fmt" || of.Name == "c") { // An error, and a line of "nth-queue check".
		return "", false
	}
	text, whole := literal(call.Args[0])
	return text, whole && letters(text) >= 7
}

// A format is a text of the program with gaps.
type format struct{ regexp.Regexp }

var (
	// verb is a gap, in what fmt makes or in the table of what the agent tells.
	verb = regexp.MustCompile(`%[-+#.0-9]*[a-zA-Z]|\{[a-zA-Z]+\}`)
	// name is a gap that no format has to fill: a word or two, or what the page leaves open.
	name = regexp.MustCompile(`^\S*(\s\S+)?$|^[^…]{0,12}…[^…]{0,12}$|^$`)
)

// sayable tells whether the line is one of the formats, with gaps that are names or formats themselves.
func sayable(line string, formats []format) bool {
	for _, f := range formats {
		gaps := f.FindStringSubmatch(line)
		ok := gaps != nil
		for i := 1; ok && i < len(gaps); i++ {
			ok = fills(gaps[i], line, formats)
		}
		if ok {
			return true
		}
	}
	return false
}

// fills tells whether a gap is a name, something sayable, or an error wrapped around another.
func fills(gap, line string, formats []format) bool {
	if name.MatchString(gap) || gap != line && sayable(gap, formats) {
		return true
	}
	outer, inner, wrapped := strings.Cut(gap, ": ")
	return wrapped && (name.MatchString(outer) || sayable(outer, formats)) && fills(inner, line, formats)
}

// said returns all that the program has words for: its string literals of some length, with constants joined.
func said(t *testing.T) []format {
	t.Helper()
	var formats []format
	for _, dir := range []string{"pkg", "cmd/nth", "cmd/nth-queue", "cmd/internal"} {
		eachSource(t, dir, func(source *ast.File) {
			ast.Inspect(source, func(n ast.Node) bool {
				text, whole := literal(n)
				if whole && letters(text) >= 7 && utf8.ValidString(text) { // no message has bytes that are not text
					formats = append(formats, pattern(text))
				}
				return !whole
			})
		})
	}
	return formats
}

// eachSource calls do for every source file below a directory but for those of tests.
func eachSource(t *testing.T, dir string, do func(*ast.File)) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(top, dir), func(file string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") {
			return err
		}
		source, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err == nil {
			do(source)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// literal returns the text of a string literal, or of several that are added; what else is added is a gap.
func literal(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(n.Value)
		return text, n.Kind == token.STRING && err == nil
	case *ast.BinaryExpr:
		left, first := literal(n.X)
		right, second := literal(n.Y)
		if !first {
			left = "%s"
		}
		if !second {
			right = "%s"
		}
		return left + right, n.Op == token.ADD && (first || second)
	}
	return "", false
}

func letters(text string) int {
	return len(regexp.MustCompile(`[^a-z]`).ReplaceAllString(verb.ReplaceAllString(text, ""), ""))
}

func pattern(text string) format {
	var b strings.Builder
	for i, part := range verb.Split(text, -1) {
		if i > 0 {
			b.WriteString(`(.*)`)
		}
		b.WriteString(regexp.QuoteMeta(part))
	}
	return format{*regexp.MustCompile(`^` + b.String() + `$`)}
}
