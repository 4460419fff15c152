package rules_test

import (
	"bytes"
	"fmt"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// rule is one sentence about the source: some things need a permission.
type rule struct {
	name string // as in "only cmd reads the environment"
	why  string
	// uses finds all that needs a permission.
	uses func(tree) ([]use, error)
	// permits are the permissions. The first one for a thing says who may use it. One that nobody uses breaks the rule.
	permits []permit
	// example is a tree that uses all permissions of a kind, and breaks the rule in each line that ends with "// breaks". Before each file
	// comes its name: "-- pkg/drain/a.go --".
	example string
}

// use is something that needs a permission, such as an import, where it is.
type use struct{ what, dir, at string }

// permit lets packages use something. A name that ends with * stands for all that begin so, a directory that ends with a
// slash for all below it.
type permit struct {
	what string
	dirs []string
	why  string // where the rule's own reason does not say it
}

var all = slices.Concat(importRules, effectRules)

// judge returns the lines that break the rule, with what does, and the permissions that nobody uses.
func (r rule) judge(t *testing.T, judged tree) (broken []use, unused []string) {
	t.Helper()
	uses, err := r.uses(judged)
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, u := range uses {
		i := slices.IndexFunc(r.permits, func(p permit) bool { return covers(p.what, "*", u.what) })
		j := -1
		if i >= 0 {
			j = slices.IndexFunc(r.permits[i].dirs, func(dir string) bool { return covers(dir, "/", u.dir) })
		}
		if j < 0 {
			broken = append(broken, u)
		} else {
			used[r.permits[i].what+" in "+r.permits[i].dirs[j]] = true
		}
	}
	for _, p := range r.permits {
		for _, dir := range p.dirs {
			if name := p.what + " in " + dir; !used[name] {
				unused = append(unused, name)
			}
		}
	}
	return broken, unused
}

// covers tells whether the pattern, open if it ends with the sign, is of the name.
func covers(pattern, open, name string) bool {
	if !strings.HasSuffix(pattern, open) {
		return pattern == name
	}
	return strings.HasPrefix(name, strings.TrimSuffix(pattern, "*"))
}

// reason is why the rule, or its permission for such a thing, is there.
func (r rule) reason(what string) string {
	for _, p := range r.permits {
		if covers(p.what, "*", what) && p.why != "" {
			return p.why
		}
	}
	return r.why
}

func TestTheProjectKeepsEveryRule(t *testing.T) {
	for _, r := range all {
		t.Run(r.name, func(t *testing.T) {
			broken, unused := r.judge(t, project(t))
			for _, u := range broken {
				t.Errorf("%s: %s\n\trule: %s\n\twhy:  %s", u.at, u.what, r.name, r.reason(u.what))
			}
			for _, permission := range unused {
				t.Errorf("nobody uses the permission of %s: take it out of docs/rules\n\trule: %s", permission, r.name)
			}
		})
	}
}

func TestEveryRuleFindsTheLinesThatBreakItAndNoOthers(t *testing.T) {
	for _, r := range all {
		t.Run(r.name, func(t *testing.T) {
			judged, want := example(t, r.example)
			broken, _ := r.judge(t, judged)
			var found []string
			for _, u := range broken {
				found = append(found, u.at)
			}
			slices.Sort(found)
			if found = slices.Compact(found); len(want) == 0 || !slices.Equal(found, want) {
				t.Errorf("broken by %v, want %v:\n%s", broken, want, r.example)
			}
		})
	}
}

func TestAPermissionThatNobodyUsesBreaksTheRule(t *testing.T) {
	for _, r := range all {
		t.Run(r.name, func(t *testing.T) {
			r.permits = append(slices.Clone(r.permits), permit{what: "nothing", dirs: []string{"pkg/drain"}})
			judged, _ := example(t, r.example)
			if _, unused := r.judge(t, judged); !slices.Contains(unused, "nothing in pkg/drain") {
				t.Errorf("only these are found to be unused: %q", unused)
			}
			if len(r.permits) == 1 {
				return
			}
			_, ofNone := r.judge(t, tree{types: judged.types})
			if _, unused := r.judge(t, judged); len(unused) >= len(ofNone) {
				t.Error("the example uses no permission")
			}
		})
	}
}

// example returns a tree, and which lines of it break a rule.
func example(t *testing.T, text string) (tree, []string) {
	t.Helper()
	texts, name := map[string][]byte{}, ""
	var marked []string
	for line := range strings.Lines(text) {
		if begun, found := strings.CutPrefix(line, "-- "); found {
			name = strings.TrimSuffix(begun, " --\n")
		} else if name != "" {
			texts[name] = append(texts[name], line...)
		}
		if strings.HasSuffix(line, "// breaks\n") {
			marked = append(marked, fmt.Sprintf("%s:%d", name, bytes.Count(texts[name], []byte("\n"))))
		}
	}
	made, err := newTree(token.NewFileSet(), texts)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(marked)
	return made, marked
}
