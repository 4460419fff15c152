// Package strangers judges nth by tests and programs that others have written. They come from the module cache, with the versions that
// go.mod files pin, and not a line of them is edited. What nth does in another way on purpose is in a table, with the reason: a case of it
// that passes is a failure, too. "make strangers" runs all, and prints what each suite comes to.
package strangers

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/nth-project/nth/test/internal/lab"
)

func TestMain(m *testing.M) {
	status := lab.Main(m, 4)
	table.print()
	os.Exit(status)
}

// table is what the suites come to, by name.
var table = results{suites: map[string]*tally{}}

type results struct {
	mu     sync.Mutex
	suites map[string]*tally
}

// tally counts the cases of a suite.
type tally struct {
	passed, cases int
	// apart are the cases in which nth differs on purpose, or that cannot run here, with the reason.
	apart map[string]string
}

// judge notes a case of a suite, and fails the test if it should have come out otherwise. reason is why nth differs on purpose, "" if it does
// not; report is what is to be shown of a failure.
func (r *results) judge(t *testing.T, suite, name string, passed bool, reason, report string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.suite(suite)
	s.cases++
	switch {
	case passed && reason != "":
		t.Errorf("%s: %q passes now; it is listed as different: %s", suite, name, reason)
	case passed:
		s.passed++
	case reason != "":
		s.apart[name] = reason
	default:
		t.Errorf("%s: %q fails:\n%s", suite, name, report)
	}
}

func (r *results) suite(name string) *tally {
	if r.suites[name] == nil {
		r.suites[name] = &tally{apart: map[string]string{}}
	}
	return r.suites[name]
}

// missing are suites that cannot run here.
const missing = `not run:
    the kubelet's test/e2e_node/node_shutdown: it restarts the host's own kubelet, and pulls images from registry.k8s.io; test/node has a kubelet
    kubeconform: it fetches schemas from GitHub; a real API server judges the manifests, and test/tools/chart has kube-score do so
    cfn-lint: it is on PyPI alone; test/aws judges the template
`

func (r *results) print() {
	defer fmt.Print(missing)
	for _, name := range slices.Sorted(maps.Keys(r.suites)) {
		s := r.suites[name]
		fmt.Printf("%-60s %3d of %3d\n", name, s.passed, s.cases)
		for _, apart := range slices.Sorted(maps.Keys(s.apart)) {
			fmt.Printf("    not %s: %s\n", apart, s.apart[apart])
		}
	}
}
