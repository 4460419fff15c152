// Package packages judges nth as people meet it: installed from its package on a machine that a real systemd has booted,
// with the versions of systemd that the distributions in question have.
package packages

import (
	"os"
	"testing"
	"time"

	"github.com/nth-project/nth/test/internal/host"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/machine"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m, 4)) }

// onEverySuite runs a test on a machine of each of its suites, side by side with the others.
func onEverySuite(t *testing.T, test func(t *testing.T, suite string)) {
	t.Helper()
	t.Parallel()
	for _, suite := range machine.SuitesOf(t.Name()) {
		t.Run(suite, func(t *testing.T) {
			t.Parallel()
			test(t, suite)
		})
	}
}

// newHost boots a machine on which nth watches over a node.
func newHost(t *testing.T, suite string) *host.Host {
	t.Helper()
	return host.New(t, lab.Shared(t), suite)
}

// bareHost boots a machine on which neither nth is nor a kubelet.
func bareHost(t *testing.T, suite string) *host.Host {
	t.Helper()
	return host.Bare(t, lab.Shared(t), suite)
}

// twoMinutes is the notice that EC2 gives.
func twoMinutes() time.Time { return time.Now().Add(2 * time.Minute) }
