package e2e

import (
	"regexp"
	"testing"

	"github.com/nth-project/nth/test/internal/daemon"
)

// A kubelet's own identity has every right that is checked for; others' have not.
func TestCheck_AsksARealAPIServer(t *testing.T) {
	s := play(t, "")
	check := func(failed int, lines ...string) {
		t.Helper()
		got := s.machine.Command(t, "check")
		if got.Status != failed || got.Stderr != "" {
			t.Errorf("nth check ended with %d\n%s%s", got.Status, got.Stdout, got.Stderr)
		}
		for _, want := range lines {
			if !regexp.MustCompile(`(?m)^` + want + `$`).MatchString(got.Stdout) {
				t.Errorf("there is no line %q in\n%s", want, got.Stdout)
			}
		}
	}
	check(0,
		`ok    identity    node `+regexp.QuoteMeta(s.node.Name)+`, by the client certificate .*`,
		`ok    right       patch nodes .*`, `ok    right       watch pods`, `ok    right       create pods/eviction`,
		`ok    right       delete pods`,
		`ok    eviction    tried with `+s.node.Namespace+`/regular-.*`,
		`ok    clock       in sync with that of the API server`,
		`ok    clock       in sync with that of the metadata service`,
	)
	s.mustBeUntouched(t)
	s.nth.Stop(t)
	s.configure(t, func(o *daemon.Options) { o.Kubeconfig = s.cp.AddUser(t, "somebody", "strangers").Kubeconfig })
	check(1, `fail  identity    .* belongs to the user "somebody", which is not a node .*`)
}
