package rules_test

import (
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
	// permits are the permissions. The first one for a thing says who may use it. One that nobody uses breaks the rule, and so
	// does a search that finds too little.
	permits []permit
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
func (r rule) judge(uses []use) (broken []use, unused []string) {
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
			uses, err := r.uses(project(t))
			if err != nil {
				t.Fatal(err)
			}
			broken, unused := r.judge(uses)
			for _, u := range broken {
				t.Errorf("%s: %s\n\trule: %s\n\twhy:  %s", u.at, u.what, r.name, r.reason(u.what))
			}
			for _, permission := range unused {
				t.Errorf("nobody uses the permission of %s: take it out of docs/rules\n\trule: %s", permission, r.name)
			}
		})
	}
}
