// Package e2e judges nth as a process, against a real control plane and a faithful metadata service.
//
// All tests share one control plane; each has a node, a metadata service and a daemon of its own (stage_test.go), and they run side by
// side. What nth decides is judged in its packages. Here is judged that it does so with the rights of a kubelet, and that real
// controllers, budgets and webhooks, a broken way to the API server and a machine out of disk or descriptors are what it takes them for.
// With the settings that are shipped it drains in package demo.
//
// What must not happen is judged after something that comes later has happened: the daemon has looked at the metadata service several
// times more, and has then been stopped, so that nothing is still on its way.
package e2e

import (
	"os"
	"testing"

	"github.com/nth-project/nth/test/internal/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m, 8)) }
