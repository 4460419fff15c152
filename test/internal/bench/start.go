package bench

import (
	"os"
	"time"

	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
)

// A host is a node with a metadata service, and a machine on which nth can be started.
type host struct {
	node    *lab.Node
	imds    *imdstest.Server
	machine *daemon.Machine
}

func (b *bench) host(t lab.TB, e edition, settings string) host {
	t.Helper()
	h := host{node: b.cp.AddNode(t), imds: imdstest.NewServer()}
	t.Cleanup(h.imds.Close)
	h.machine = daemon.NewMachine(t, daemon.Options{Kubeconfig: h.node.Kubeconfig, IMDS: h.imds.URL, Settings: settings, Binary: e.binary})
	return h
}

// start starts nth, and returns when it watches and knows its node.
func (h host) start(t lab.TB) *daemon.Daemon {
	t.Helper()
	nth := h.machine.Start(t)
	nth.WaitStatus(t, "nothing is announced for node "+h.node.Name)
	return nth
}

// starting measures the time from the start of the process to READY=1, which includes what the lab does to give it a
// boot ID of its own: some milliseconds.
func (b *bench) starting(t lab.TB) []row {
	h := b.host(t, present, "")
	var took sample
	for range starts {
		began := time.Now()
		nth := h.machine.Start(t)
		nth.WaitReady(t)
		took = append(took, time.Since(began))
		nth.Stop(t)
	}
	return []row{{"start to READY=1, median", took.median() * 1000, 150, "ms", 0}}
}

// size measures the program's file.
func size(t lab.TB, binary string) []row {
	info, err := os.Stat(binary)
	if err != nil {
		t.Fatalf("measuring the program: %v", err)
	}
	return []row{{"program, stripped", float64(info.Size()) / 1e6, 36, "MB", 1}}
}
