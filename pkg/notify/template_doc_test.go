package notify_test

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"testing"

	"github.com/nth-project/nth/pkg/notify"
)

// row is how docs/notices.md begins the description of a field.
var row = regexp.MustCompile("(?m)^\\| `\\.([A-Za-z]+)` \\|")

func TestTheManualDescribesEveryFieldOfTemplates(t *testing.T) {
	text, err := os.ReadFile("../../docs/notices.md")
	if err != nil {
		t.Fatal(err)
	}
	var described, there []string
	for _, match := range row.FindAllSubmatch(text, -1) {
		described = append(described, string(match[1]))
	}
	for field := range reflect.TypeFor[notify.Fields]().Fields() {
		there = append(there, field.Name)
	}
	if !slices.Equal(described, there) {
		t.Errorf("docs/notices.md describes\n%q\nand there are\n%q", described, there)
	}
	for _, outcome := range notify.Outcomes() {
		if !regexp.MustCompile("(?m)^\\| `(announced|ended|over)` \\|.*`" + outcome + "`").Match(text) {
			t.Errorf("docs/notices.md does not say when something is %q", outcome)
		}
	}
}

// A field and a method must not have one name: the call of the method would take the field's place.
func TestNoFieldHasTheNameOfAMethod(t *testing.T) {
	for field := range reflect.TypeFor[notify.Fields]().Fields() {
		if _, err := notify.CompileTemplate("test", "-{{ ."+field.Name+" }}", "text/plain"); err != nil {
			t.Errorf("%v", err)
		}
	}
}
