// Package strangers judges nth by tests and programs that others have written. They come from the module cache, with the versions that
// go.mod files pin, and not a line of them is edited. What nth does in another way on purpose is in a table, with the reason: a case of it
// that passes is a failure, too. "make strangers" runs all.
//
// These cannot run here: the kubelet's test/e2e_node/node_shutdown, which restarts the host's own kubelet, and pulls images from the
// internet (test/node has a kubelet); kubeconform, which fetches schemas (a real API server judges the manifests, and test/tools/chart has
// kube-score do so); cfn-lint, which is a program of Python (test/aws judges the template).
package strangers

import (
	"os"
	"testing"

	"github.com/nth-project/nth/test/internal/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m, 4)) }

// judge fails the test if a case came out otherwise than it should. reason is why nth differs on purpose, "" if it does not; report is what
// is to be shown of a failure.
func judge(t *testing.T, name string, passed bool, reason, report string) {
	t.Helper()
	switch {
	case passed && reason != "":
		t.Errorf("%q passes now; it is listed as different: %s", name, reason)
	case !passed && reason == "":
		t.Errorf("%q fails:\n%s", name, report)
	}
}
