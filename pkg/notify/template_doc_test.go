package notify_test

import (
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
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
}

// outcomes is a row of docs/notices.md that tells when something has an outcome: its phase, and the outcomes.
var outcomes = regexp.MustCompile("(?m)^\\| `(announced|ended|over)` \\| ([a-z`, -]*) \\|")

func TestTheManualTellsWhenThereIsWhichOutcomeAndOfNoOther(t *testing.T) {
	text, err := os.ReadFile("../../docs/notices.md")
	if err != nil {
		t.Fatal(err)
	}
	told, there := map[string]bool{}, map[string]bool{}
	for _, match := range outcomes.FindAllSubmatch(text, -1) {
		for outcome := range strings.FieldsFuncSeq(string(match[2]), func(r rune) bool { return strings.ContainsRune("`, ", r) }) {
			told[string(match[1])+" "+outcome] = true
		}
	}
	for _, f := range notify.Samples() {
		there[f.Phase.String()+" "+f.Outcome] = true
	}
	if !maps.Equal(told, there) {
		t.Errorf("docs/notices.md tells of\n%q\nand there are\n%q", slices.Sorted(maps.Keys(told)), slices.Sorted(maps.Keys(there)))
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
