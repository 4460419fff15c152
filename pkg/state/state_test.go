package state_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/state"
)

// Whoever lists what can be told of an event lists these.
func TestEndingsAreAllThereAre(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "state.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			if kind, ok := spec.Type.(*ast.Ident); ok && kind.Name == "Ending" {
				names = append(names, strings.Trim(spec.Values[0].(*ast.BasicLit).Value, `"`))
			}
		}
		return true
	})
	var listed []string
	for _, ending := range state.Endings() {
		listed = append(listed, string(ending))
	}
	if !slices.Equal(listed, names) || len(names) == 0 {
		t.Errorf("listed are %q, and there are %q", listed, names)
	}
}
