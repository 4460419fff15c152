package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// A machine is doomed before its kubelet has joined the cluster.
func TestNTHWatchesBeforeThereIsACredential(t *testing.T) {
	s := prepare(t, "")
	s.options.Kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	s.machine.Configure(t, s.options)
	s.start(t)
	s.nth.WaitReady(t)
	s.nth.WaitStatus(t, "waiting for the kubelet's credential")
	s.looks(t, spotDocument, 3)
	s.imds.SetSpot("terminate", twoMinutes())
	s.nth.WaitLog(t, systemd.EventSeen)
	s.looks(t, spotDocument, 3)
	s.nth.WaitStatus(t, "draining the node for spot-interruption")
	if status := s.nth.Status(); !strings.Contains(status, "waiting for the kubelet's credential") {
		t.Errorf("the status is %q; want it to say what is waited for", status)
	}
	s.mustBeUntouched(t)

	// The kubelet writes its kubeconfig.
	text, err := os.ReadFile(s.node.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.options.Kubeconfig, text, 0o600); err != nil {
		t.Fatal(err)
	}
	s.waitDrained(t)
	s.nth.Stop(t)
	if waiting := s.nth.Logged(systemd.IdentityWaiting); len(waiting) != 1 {
		t.Errorf("nth said %d times that it waits for the credential, want once", len(waiting))
	}
	if phase := s.machine.RecordOf(t, event.SpotInterruption).Phase; phase != state.Drained {
		t.Errorf("nth remembers the node as %s, want %s", phase, state.Drained)
	}
}
