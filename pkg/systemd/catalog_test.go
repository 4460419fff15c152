package systemd_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/systemd"
)

const catalogFile = "../../systemd/nth.catalog"

// explanation is one entry of the message catalog.
type explanation struct {
	head map[string]string // Subject, Defined-By, ...
	text string
}

// readCatalog returns the entries of the message catalog by their IDs.
func readCatalog(t *testing.T) map[string]explanation {
	t.Helper()
	text, err := os.ReadFile(catalogFile)
	if err != nil {
		t.Fatal(err)
	}
	catalog := map[string]explanation{}
	for _, part := range strings.Split("\n"+string(text), "\n-- ")[1:] {
		id, rest, _ := strings.Cut(part, "\n")
		head, body, _ := strings.Cut(rest, "\n\n")
		if _, twice := catalog[id]; twice {
			t.Errorf("%s is explained twice", id)
		}
		e := explanation{head: map[string]string{}, text: strings.TrimSpace(body)}
		for line := range strings.Lines(head) {
			key, value, _ := strings.Cut(line, ":")
			e.head[key] = strings.TrimSpace(value)
		}
		catalog[id] = e
	}
	return catalog
}

// messages returns every message ID by its name in Go.
func messages(t *testing.T) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "messages.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			value, _ := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if messageID.MatchString(value) {
				found[spec.Names[0].Name] = value
			}
		}
		return true
	})
	return found
}

// fields are those of entries, as the catalog names them.
var fields = regexp.MustCompile("^@(SYSLOG_IDENTIFIER|" + strings.Join([]string{
	systemd.FieldEventID, systemd.FieldEventKind, systemd.FieldPhase, systemd.FieldNode, systemd.FieldPod,
}, "|") + ")@$")

var messageID = regexp.MustCompile(`^[0-9a-f]{32}$`)

func TestCatalog_ExplainsEveryMessageAndWhatToDo(t *testing.T) {
	catalog := readCatalog(t)
	ids := map[string]bool{}
	for name, id := range messages(t) {
		ids[id] = true
		if _, ok := catalog[id]; !ok {
			t.Errorf("%s, %s, is not explained in %s, or has the ID of another", name, id, catalogFile)
		}
	}
	page, err := os.ReadFile("../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	for id, e := range catalog {
		if !ids[id] {
			t.Errorf("%s explains %s, which is no message of pkg/systemd", catalogFile, id)
		}
		if !strings.HasSuffix(e.head["Documentation"], "/docs/troubleshooting.md#"+id) || !strings.Contains(string(page), `<a id="`+id+`">`) {
			t.Errorf("%s (%s) does not lead to its place in docs/troubleshooting.md", id, e.head["Subject"])
		}
		for _, key := range []string{"Subject", "Defined-By", "Support", "Documentation"} {
			if e.head[key] == "" {
				t.Errorf("%s has no %s", id, key)
			}
		}
		if len(strings.Split(e.text, "\n\n")) < 2 {
			t.Errorf("%s (%s) does not have a paragraph about what happened and one about what to do", id, e.head["Subject"])
		}
		for _, word := range regexp.MustCompile(`@\w+@`).FindAllString(e.head["Subject"]+e.text, -1) {
			if !fields.MatchString(word) {
				t.Errorf("%s (%s) wants %s, which is no field of nth's", id, e.head["Subject"], word)
			}
		}
	}
}
