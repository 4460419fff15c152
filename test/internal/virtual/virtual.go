// Package virtual boots a real kernel, in qemu, and presses the power button of the machine.
//
//	image := virtual.Bake(t, "trixie", "dist/nth.deb")
//	m := virtual.Boot(t, image)
//	m.Run(t, "systemctl", "is-system-running")
//	m.PressPower(t)
//	m.WaitOff(t)
//
// The processor is the host's where the host's kernel lends it (KVM), and else emulated, which makes a boot take some
// 20 s. The machine reaches what listens at 127.0.0.1 of the host under the address Gateway. It has a disk of its own,
// whose journal can be read when the machine is off.
//
// Package machine boots a systemd alone, which is a hundred times faster. What it cannot show is here: the button.
package virtual

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/machine"
)

// Gateway is the host, seen from a machine.
const Gateway = "10.0.2.2"

const (
	// patience bounds every wait for a machine, which may be an emulated one on a busy host.
	patience = 8 * time.Minute
	// startLimit bounds what qemu itself takes, and kvmLimit what the boot does where the processor is the host's.
	startLimit = 30 * time.Second
	kvmLimit   = time.Minute
	// pollEvery is the pause between two looks. Each look costs an emulated processor a good deal.
	pollEvery = 200 * time.Millisecond
)

// memory is what a machine has, in MiB.
const memory = 768

// A Machine is a virtual one.
type Machine struct {
	machine.Shell
	// Accelerator is what runs it: kvm, or tcg for an emulated processor.
	Accelerator string
	// Took is how long the boot has taken.
	Took time.Duration

	qemu           *qemu
	monitor, agent *line

	mu  sync.Mutex
	off time.Time // zero while it is on
}

// Boot boots a machine and returns when its service manager says that it is up. It is gone when the test has ended.
func Boot(t lab.TB, image Image) *Machine {
	t.Helper()
	began := time.Now()
	for _, accelerator := range accelerators() {
		m, err := boot(t, image, accelerator)
		if err != nil {
			t.Logf("a machine by %s: %v", accelerator, err)
			continue
		}
		m.Await(t, "the machine is up", func() bool {
			return m.Try(t, "systemctl", "is-system-running").Stdout == "running\n"
		})
		m.Took = time.Since(began)
		return m
	}
	t.Fatalf("this host runs no virtual machine")
	return nil
}

// boot starts a machine, and waits until something in it answers.
func boot(t lab.TB, image Image, accelerator string) (*Machine, error) {
	dir, err := os.MkdirTemp("", "nth-virtual-") // short enough for a socket
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // it may stay if it must
	m := &Machine{Accelerator: accelerator}
	m.Shell = machine.Shell{Pipe: m.pipe, Patience: patience, Pause: pollEvery}
	if m.qemu, err = start(image, dir, accelerator, memory); err != nil {
		return nil, fmt.Errorf("starting qemu: %w", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the console said:\n%s", m.console())
		}
		m.qemu.end()
	})
	if m.monitor, err = m.qemu.connect("monitor", m.heard); err != nil {
		return nil, err
	}
	if err := m.monitor.ask("qmp_capabilities", map[string]any{}, nil); err != nil {
		return nil, err
	}
	if m.agent, err = m.qemu.connect("agent", m.heard); err != nil {
		return nil, err
	}
	limit := patience / 2 // Of two attempts.
	if accelerator == "kvm" {
		limit = kvmLimit
	}
	if err := m.qemu.awaitAgent(m.monitor, m.agent, limit); err != nil {
		m.qemu.end()
		return nil, err
	}
	return m, nil
}

// heard takes what the monitor tells. SHUTDOWN is the end of the power.
func (m *Machine) heard(event string) {
	if event != "SHUTDOWN" {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.off = time.Now()
}

func (m *Machine) console() string {
	text, err := os.ReadFile(m.qemu.file("console"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-4096):])
}

// PressPower presses the power button, which is all that EC2 does to stop or to terminate a machine, and returns when.
func (m *Machine) PressPower(t lab.TB) time.Time {
	t.Helper()
	pressed := time.Now()
	if err := m.monitor.ask("system_powerdown", map[string]any{}, nil); err != nil {
		t.Fatalf("pressing the power button: %v", err)
	}
	return pressed
}

// WaitOff waits until the machine has switched itself off, and returns when it did.
func (m *Machine) WaitOff(t lab.TB) time.Time {
	t.Helper()
	select {
	case <-m.qemu.ended:
	case <-time.After(patience):
		t.Fatalf("waiting until the machine is off: it does not come")
	case <-t.Context().Done():
		t.Fatalf("waiting until the machine is off: %v", t.Context().Err())
	}
	<-m.monitor.closed // after the last event
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.off.IsZero() {
		t.Fatalf("the machine is gone, and did not switch itself off: %s", m.qemu.said.Bytes())
	}
	return m.off
}

// journalOfDisk copies the journal from the disk of a machine that is off, and returns its directory.
func (m *Machine) journalOfDisk(t lab.TB) string {
	t.Helper()
	said, err := exec.Command("debugfs", "-R", "rdump /var/log/journal "+m.qemu.dir, m.qemu.file("disk")).CombinedOutput()
	if err != nil {
		t.Fatalf("reading the disk: %v\n%s", err, said)
	}
	return m.qemu.file("journal")
}
