package e2e

import (
	"regexp"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
)

// check runs "nth check" and fails the test unless every line is a finding and the exit status goes with them.
func check(t *testing.T, machine *daemon.Machine, args ...string) string {
	t.Helper()
	got := machine.Command(t, append([]string{"check"}, args...)...)
	finding := regexp.MustCompile(`^(ok  |warn|fail)  [a-z]+ *  \S.*\n$`)
	failed := 0
	for line := range strings.Lines(got.Stdout) {
		if !finding.MatchString(line) {
			t.Errorf("this line is no finding: %q", line)
		}
		if strings.HasPrefix(line, "fail") {
			failed = 1
		}
	}
	if got.Status != failed || got.Stderr != "" {
		t.Errorf("nth check ended with %d\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
	return got.Stdout
}

func mustSay(t *testing.T, said string, lines ...string) {
	t.Helper()
	for _, want := range lines {
		if !regexp.MustCompile(`(?m)^` + want + `$`).MatchString(said) {
			t.Errorf("there is no line %q in\n%s", want, said)
		}
	}
}

// A kubelet's own identity has every right that is checked for.
func TestCheckFindsAGoodNodeGoodAndChangesNothing(t *testing.T) {
	s := prepare(t, "")
	s.before = s.podIDs(t)
	said := check(t, s.machine)
	mustSay(t, said,
		`ok    metadata    session token received from http://.*`,
		`ok    metadata    spot instance, polling for .*`,
		`ok    metadata    spot/instance-action: nothing is announced`,
		`ok    identity    node `+regexp.QuoteMeta(s.node.Name)+`, by the client certificate .*`,
		`ok    right       patch nodes .*`, `ok    right       watch pods`, `ok    right       create pods/eviction`,
		`ok    right       delete pods`,
		`ok    eviction    tried with `+s.node.Namespace+`/regular-.*`,
		`ok    clock       in sync with that of the API server`,
		`ok    clock       in sync with that of the metadata service`,
	)
	s.mustBeUntouched(t)
}

func TestCheckRehearsesAnEvictionThatABudgetHolds(t *testing.T) {
	t.Parallel()
	node := lab.Shared(t).AddNode(t)
	node.AddDeployment(t, "db", 1, lab.MinAvailable(1))
	imds := imdstest.NewServer()
	t.Cleanup(imds.Close)
	machine := daemon.NewMachine(t, daemon.Options{Kubeconfig: node.Kubeconfig, IMDS: imds.URL})
	mustSay(t, check(t, machine), `ok    eviction    tried with .*, which the disruption budget db blocks at present`)
}

func TestCheckNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	cp := lab.Shared(t)
	imds := imdstest.NewServer()
	imds.Close()
	machine := daemon.NewMachine(t, daemon.Options{Kubeconfig: t.TempDir() + "/kubeconfig", IMDS: imds.URL})
	mustSay(t, check(t, machine),
		`fail  metadata    .*connection refused.*`,
		`fail  identity    the kubelet has not joined its cluster yet: .*; nth would wait for it`,
	)
	// Somebody who is no node.
	machine.Configure(t, daemon.Options{Kubeconfig: cp.AddUser(t, "somebody", "people").Kubeconfig, IMDS: imds.URL})
	mustSay(t, check(t, machine), `fail  identity    .* belongs to the user "somebody", which is not a node .*`)
}
