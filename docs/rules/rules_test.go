package rules_test

import (
	"slices"
	"strings"
	"testing"
)

// rule is one sentence about the source that a test can judge.
type rule struct {
	name string // as in "only cmd exits"
	why  string
	// check returns what breaks the rule, each as "file:line: what".
	check func([]source) []string
	// breaks and keeps are sources, by path, that break the rule, each of them, and that do not.
	breaks, keeps map[string]string
}

var all = slices.Concat(importRules, callRules, clusterRules, shapeRules)

func TestTheProjectKeepsEveryRule(t *testing.T) {
	sources := project(t)
	for _, r := range all {
		t.Run(r.name, func(t *testing.T) {
			for _, finding := range r.check(sources) {
				t.Errorf("%s\n\trule: %s\n\twhy:  %s", finding, r.name, r.why)
			}
		})
	}
}

func TestEveryRuleFindsWhatBreaksItAndNothingElse(t *testing.T) {
	for _, r := range all {
		t.Run(r.name, func(t *testing.T) {
			if len(r.breaks) == 0 || len(r.keeps) == 0 {
				t.Error("the rule has no examples")
			}
			for name, text := range r.breaks {
				findings := r.check([]source{example(t, name, text)})
				if len(findings) == 0 || !strings.HasPrefix(findings[0], name) {
					t.Errorf("%s is not found to break the rule (%q):\n%s", name, findings, text)
				}
			}
			for name, text := range r.keeps {
				if findings := r.check([]source{example(t, name, text)}); len(findings) > 0 {
					t.Errorf("%s keeps the rule, but: %q\n%s", name, findings, text)
				}
			}
		})
	}
}

func example(t *testing.T, name, text string) source {
	t.Helper()
	s, err := parse(name, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// each makes a check of all sources out of one of a single source.
func each(check func(source) []string) func([]source) []string {
	return func(sources []source) []string {
		var findings []string
		for _, s := range sources {
			findings = append(findings, check(s)...)
		}
		return findings
	}
}
