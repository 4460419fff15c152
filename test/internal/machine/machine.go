// Package machine boots a real systemd, of any Debian suite, in a fraction of a second and on any Linux machine that
// one is root on.
//
//	m := machine.Boot(t, "trixie")
//	m.Put(t, "dist/nth.deb", "/root/nth.deb")
//	m.Run(t, "dpkg", "-i", "/root/nth.deb")
//	m.Reboot(t)
//	entries := m.Journal(t, "--unit=nth")
//
// A machine is a container of systemd-nspawn over a root file system that mmdebstrap makes once and that is kept in
// .cache/machine. What it writes is kept in memory. It shares the network of the host, so that it reaches a control
// plane and a metadata service that a test runs at 127.0.0.1; its own D-Bus, journal, logind and service manager are
// what they are on a server.
//
// The host needs no systemd. Everything happens in a mount namespace and a control group that go with the machine, and
// the machine goes with the test, however that ends: nothing has to be cleaned up by hand. What a container cannot show
// is in package virtual: a kernel that boots, and a power button.
package machine

import (
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nth-project/nth/test/internal/lab"
)

// Suites are the stable releases of Debian that the packages are judged on, by the version of their systemd: 252 is Amazon Linux
// 2023's too, 257 is the newest that a stable release has.
func Suites() []string { return []string{"bookworm", "trixie"} }

// Next is the release of Debian that is being made, with systemd 262 in November 2026. It changes from day to day, so no change waits
// for it.
const Next = "forky"

// SuiteOf is the stable suite that a test is run on. Its name decides, so that all are booted each time that all tests run.
func SuiteOf(test string) string {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(test)) // never fails
	return Suites()[sum.Sum32()%uint32(len(Suites()))]
}

// OnSuites runs a test on its suite, or with NTH_NIGHTLY set on every one, Next included, side by side with the others.
func OnSuites(t *testing.T, test func(t *testing.T, suite string)) {
	t.Helper()
	t.Parallel()
	suites := []string{SuiteOf(t.Name())}
	if os.Getenv("NTH_NIGHTLY") != "" {
		suites = append(Suites(), Next)
	}
	for _, suite := range suites {
		t.Run(suite, func(t *testing.T) {
			t.Parallel()
			test(t, suite)
		})
	}
}

// A Machine is a booted system, or one that is off.
type Machine struct {
	// Name is its host name too.
	Name string

	launcher *launcher

	mu    sync.Mutex
	state state
}

// A state is what is known of a machine.
type state struct {
	boots  int // how often the service manager has said that it is up
	leader int // its process ID on the host; 0 while the machine is off or goes up
	off    bool
	gone   error // why the launcher has ended
}

var number atomic.Int32

// Options are what a machine has beside what each has.
type Options struct {
	// Packages are more packages of Debian.
	Packages []string
	// Controllers gives the machine a part of the host's control groups with their controllers, in the version in
	// which the host has those, and every right that a kubelet and a container engine need. Where that is the first
	// version it has to be bookworm: later releases do not boot with it.
	Controllers bool
	// Files are programs of the host that the machine finds, and cannot change, by the paths that it finds them at.
	Files map[string]string
}

// Boot boots a machine with the given suite of Debian, and more packages if some are named, and returns when it is up.
// The first machine of a suite takes 20 s more. The machine is off and gone when the test has ended.
func Boot(t lab.TB, suite string, packages ...string) *Machine {
	t.Helper()
	return BootWith(t, suite, Options{Packages: packages})
}

// BootWith is Boot for a machine that is not like the others.
func BootWith(t lab.TB, suite string, o Options) *Machine {
	t.Helper()
	base := Root(t, suite, o.Packages...)
	m := &Machine{Name: fmt.Sprintf("nth-machine-%d-%d", os.Getpid(), number.Add(1))}
	var err error
	m.launcher, err = launch(m.Name, base, o, m.heard)
	if err != nil {
		t.Fatalf("booting a machine: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			m.tell(t)
		}
		m.launcher.end()
	})
	m.await(t, "the machine is up", func(s state) bool { return s.leader != 0 })
	return m
}

// nspawn are the options of systemd-nspawn for the machine. What runs containers needs rights that nspawn keeps from its
// own.
func (o Options) nspawn() []string {
	var options []string
	switch {
	case o.Controllers:
		options = append(options, "--capability=all", "--system-call-filter=@known")
	case slices.Contains(o.Packages, "runc"):
		options = append(options, "--capability=CAP_BPF,CAP_NET_ADMIN", "--system-call-filter=bpf keyctl")
	}
	for guest, host := range o.Files {
		options = append(options, "--bind-ro="+host+":"+guest)
	}
	return options
}

// tell says what a person wants to know of a machine on which a test failed.
func (m *Machine) tell(t lab.TB) {
	if _, err := os.Stat(m.Path("/var/log/journal")); err != nil {
		t.Logf("the console of %s said:\n%s", m.Name, m.launcher.said())
		return
	}
	// Without the test's help: it has failed, and its context may have ended.
	said, _ := exec.Command("journalctl", "--directory="+m.Path("/var/log/journal"), "--output=short-precise",
		"--lines=60", "--no-hostname", "--no-pager").CombinedOutput() // whatever it is, it is all there is
	t.Logf("the journal of %s ends with:\n%s", m.Name, said)
}

// heard takes what the launcher, or the service manager through it, says.
func (m *Machine) heard(change func(*state)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.state)
}

func (m *Machine) now() state {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

// await waits until the machine is as condition wants it.
func (m *Machine) await(t lab.TB, what string, condition func(state) bool) {
	t.Helper()
	lab.Await(t, what, func() bool {
		s := m.now()
		if !condition(s) && s.gone != nil {
			t.Fatalf("waiting until %s: %v", what, s.gone)
		}
		return condition(s)
	})
}

// Reboot asks the machine to reboot, as an administrator does, and returns when it is up again.
func (m *Machine) Reboot(t lab.TB) {
	t.Helper()
	m.RebootBy(t, "systemctl", "reboot")
}

// RebootBy is Reboot by another command.
func (m *Machine) RebootBy(t lab.TB, name string, args ...string) {
	t.Helper()
	before := m.now()
	m.Try(t, name, args...) // may not live to tell its status
	m.await(t, "the machine is up again", func(s state) bool { return s.boots > before.boots && s.leader != 0 })
}

// PowerOff asks the machine to power off, as an administrator does, and returns when it is off.
func (m *Machine) PowerOff(t lab.TB) {
	t.Helper()
	m.Try(t, "systemctl", "poweroff") // may not live to tell its status
	m.WaitOff(t)
}

// WaitOff waits until the machine is off.
func (m *Machine) WaitOff(t lab.TB) {
	t.Helper()
	m.await(t, "the machine is off", func(s state) bool { return s.off })
}

// CutPower takes the machine's power away, as EC2 does with an instance whose time is over: nothing in it is
// notified. It returns when the machine is off.
func (m *Machine) CutPower(t lab.TB) {
	t.Helper()
	if err := m.launcher.cutPower(); err != nil {
		t.Fatalf("cutting the power of %s: %v", m.Name, err)
	}
	m.WaitOff(t)
}

// Off tells whether the machine is off.
func (m *Machine) Off() bool {
	return m.now().off
}

// Path is where the test finds a file of the machine, whether that is on or off.
func (m *Machine) Path(file string) string { return filepath.Join(m.launcher.root(), file) }
