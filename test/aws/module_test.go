package aws_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
)

// readModule reads Terraform's files, as one.
func readModule(t *testing.T) []*hclsyntax.Block {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(packaging, "terraform", "*.tf"))
	if err != nil || len(files) == 0 {
		t.Fatalf("looking for Terraform's files: %q, %v", files, err)
	}
	var blocks []*hclsyntax.Block
	for _, file := range files {
		name := filepath.Join("terraform", filepath.Base(file))
		text := read(t, name)
		parsed, faults := hclsyntax.ParseConfig(text, name, hcl.InitialPos)
		if faults.HasErrors() {
			t.Fatal(faults)
		}
		body := parsed.Body.(*hclsyntax.Body)
		if len(body.Attributes) > 0 {
			t.Errorf("%s has attributes outside of blocks", name)
		}
		blocks = append(blocks, body.Blocks...)
		if !bytes.Equal(hclwrite.Format(text), text) {
			t.Errorf("%s is not formatted as terraform fmt does", name)
		}
	}
	return blocks
}

// declared lists what can be referred to, as "var.name" or "data.aws_region.this".
func declared(blocks []*hclsyntax.Block) []string {
	var all []string
	for _, b := range blocks {
		switch b.Type {
		case "variable":
			all = append(all, "var."+b.Labels[0])
		case "resource":
			all = append(all, b.Labels[0]+"."+b.Labels[1])
		case "data":
			all = append(all, "data."+b.Labels[0]+"."+b.Labels[1])
		case "locals":
			for name := range b.Body.Attributes {
				all = append(all, "local."+name)
			}
		}
	}
	return all
}

// expressions calls do for each expression in a body, with the names that it can use beside those of the module.
func expressions(body *hclsyntax.Body, scope []string, do func(expr hclsyntax.Expression, scope []string)) {
	for name, a := range body.Attributes {
		if name != "type" || !strings.HasPrefix(a.SrcRange.Filename, "terraform/variables") { // which holds a word of Terraform's
			do(a.Expr, scope)
		}
	}
	for _, b := range body.Blocks {
		inner := scope
		if b.Type == "dynamic" {
			inner = append(slices.Clone(scope), b.Labels[0])
		}
		expressions(b.Body, inner, do)
	}
}

// name is the part of a reference that names what is declared.
func name(reference hcl.Traversal) string {
	parts := []string{reference.RootName()}
	for _, step := range reference[1:] {
		attribute, named := step.(hcl.TraverseAttr)
		if !named {
			break
		}
		parts = append(parts, attribute.Name)
	}
	length := 2
	if parts[0] == "data" {
		length = 3
	}
	return strings.Join(parts[:min(length, len(parts))], ".")
}

func TestModule_RefersToWhatIsThere(t *testing.T) {
	t.Parallel()
	blocks := readModule(t)
	names, used := declared(blocks), map[string]bool{}
	for _, b := range blocks {
		if b.Type == "terraform" {
			continue
		}
		scope := []string{}
		if b.Body.Attributes["for_each"] != nil {
			scope = append(scope, "each")
		}
		expressions(b.Body, scope, func(expr hclsyntax.Expression, scope []string) {
			for _, reference := range expr.Variables() {
				if slices.Contains(scope, reference.RootName()) {
					continue
				}
				used[name(reference)] = true
				if !slices.Contains(names, name(reference)) {
					t.Errorf("%s: there is no %s", expr.Range(), name(reference))
				}
			}
		})
	}
	for _, one := range names {
		if kind, _, _ := strings.Cut(one, "."); (kind == "var" || kind == "local" || kind == "data") && !used[one] {
			t.Errorf("nothing refers to %s", one)
		}
	}
}

func TestTemplates_HaveTheSameParameters(t *testing.T) {
	t.Parallel()
	tpl := readTemplate(t)
	described := map[string]string{}
	for _, b := range readModule(t) {
		if b.Type == "variable" && b.Labels[0] != "tags" { // CloudFormation gives a stack's tags to all that is in it
			value, _ := b.Body.Attributes["description"].Expr.Value(nil)
			described[strings.ReplaceAll(b.Labels[0], "_", "")] = value.AsString()
		}
	}
	for name, p := range tpl.Parameters {
		key := strings.ToLower(name)
		if described[key] != strings.TrimSpace(p.Description) {
			t.Errorf("%s is explained as %q and %q", name, p.Description, described[key])
		}
		delete(described, key)
	}
	if len(described) > 0 {
		t.Errorf("CloudFormation has nothing for %v", described)
	}
}

// rules works out what the rules let through, and for how many seconds each delivery is tried, by their names.
func rules(t *testing.T, blocks []*hclsyntax.Block, stateChanges, launchHooks bool) (patterns map[string]string, tried map[string]int64) {
	t.Helper()
	context := &hcl.EvalContext{
		Variables: map[string]cty.Value{"var": cty.ObjectVal(map[string]cty.Value{
			"state_changes": cty.BoolVal(stateChanges), "launch_hooks": cty.BoolVal(launchHooks),
		})},
		Functions: map[string]function.Function{"jsonencode": stdlib.JSONEncodeFunc},
	}
	for _, b := range blocks {
		rules := b.Body.Attributes["rules"]
		if b.Type != "locals" || rules == nil {
			continue
		}
		value, faults := rules.Expr.Value(context)
		if faults.HasErrors() {
			t.Fatal(faults)
		}
		context.Variables["local"] = cty.ObjectVal(map[string]cty.Value{"rules": value})
		value, faults = b.Body.Attributes["patterns"].Expr.Value(context)
		if faults.HasErrors() {
			t.Fatal(faults)
		}
		all := context.Variables["local"].GetAttr("rules")
		patterns, tried = map[string]string{}, map[string]int64{}
		for name, pattern := range value.AsValueMap() {
			patterns[name] = pattern.AsString()
			tried[name], _ = all.GetAttr(name).GetAttr("seconds").AsBigFloat().Int64()
		}
		return patterns, tried
	}
	t.Fatal("there are no rules")
	return nil, nil
}

// actions are what a policy document of the module allows.
func actions(t *testing.T, blocks []*hclsyntax.Block, document string) []string {
	t.Helper()
	var all []string
	for _, b := range blocks {
		if b.Type != "data" || fmt.Sprint(b.Labels) != "[aws_iam_policy_document "+document+"]" {
			continue
		}
		expressionsNamed(b.Body, "actions", func(expr hclsyntax.Expression) {
			value, faults := expr.Value(nil)
			if faults.HasErrors() {
				t.Fatal(faults)
			}
			for _, action := range value.AsValueSlice() {
				all = append(all, action.AsString())
			}
		})
	}
	return all
}

func expressionsNamed(body *hclsyntax.Body, name string, do func(hclsyntax.Expression)) {
	if a := body.Attributes[name]; a != nil {
		do(a.Expr)
	}
	for _, b := range body.Blocks {
		expressionsNamed(b.Body, name, do)
	}
}
