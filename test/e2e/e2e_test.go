// Package e2e judges nth as a process, against a real control plane and a faithful metadata service.
//
// All tests share one control plane; each has a node, a metadata service and a daemon of its own (stage_test.go), and they run side by
// side. What nth decides is judged in its packages. Here is judged that it does so with the rights of a kubelet, and that real
// controllers, budgets and webhooks, a broken way to the API server and a machine out of disk or descriptors are what it takes them for.
//
// What must not happen is judged after something that comes later has happened: the daemon has looked at the metadata service several
// times more, and has then been stopped, so that nothing is still on its way.
package e2e

import (
	"os"
	"testing"

	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m, 8)) }

func TestDrain_WithTheSettingsThatAreShipped(t *testing.T) {
	t.Parallel()
	node := lab.Shared(t).AddNode(t)
	imds := imdstest.NewServer()
	t.Cleanup(imds.Close)
	node.AddDaemonSet(t, "agent")
	node.AddDeployment(t, "web", 3)
	nth := daemon.NewMachine(t, daemon.Options{Kubeconfig: node.Kubeconfig, IMDS: imds.URL}).Start(t)
	nth.WaitWatching(t, node.Name)

	imds.SetSpot("terminate", twoMinutes())

	node.WaitCordoned(t)
	node.WaitEmpty(t)
	nth.WaitLog(t, systemd.Drained)
	nth.Stop(t)
}
