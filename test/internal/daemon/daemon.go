// Package daemon runs nth as an operator would: the built program, with a configuration file, as a process of its own.
//
// It hears what systemd would hear (READY=1, STATUS=...), reads the program's journal as JSON, and can stop, kill and
// start it again over the same state directory, in the same boot of the machine or in the next one.
package daemon

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nth-project/nth/test/internal/lab"
)

// Options say how nth is run. The zero value of a field leaves a setting out.
type Options struct {
	// Kubeconfig is the kubelet's; IMDS the metadata service's URL.
	Kubeconfig, IMDS string
	// Cadence is how often a spot interruption is looked for: imds.interval.
	Cadence time.Duration
	// Settings is the text of a drop-in, which overrides everything else.
	Settings string
	// Env is added to the environment.
	Env []string
	// Binary is the program; empty is nth as it is in this checkout.
	Binary string
	// Prepare is a shell command that runs before each start in the daemon's own mount namespace; $state is the path of the
	// state directory.
	Prepare string
}

// Machine is where nth runs: it keeps the configuration, the state directory and the boot ID from one run of the daemon
// to the next.
type Machine struct {
	dir    string
	binary string
	opts   Options
	boot   int
}

// NewMachine makes a machine with nothing remembered, in its first boot. The first one builds nth, so that a start takes no
// longer than it must.
func NewMachine(t lab.TB, opts Options) *Machine {
	t.Helper()
	m := newDirectory(t)
	if m.binary = opts.Binary; m.binary == "" {
		var err error
		if m.binary, err = Binary(); err != nil {
			t.Fatalf("%v", err)
		}
	}
	m.Configure(t, opts)
	m.Reboot(t)
	return m
}

// newDirectory makes a machine without files. They are kept if the test fails.
func newDirectory(t lab.TB) *Machine {
	t.Helper()
	dir, err := os.MkdirTemp("", "nth-machine-")
	if err != nil {
		t.Fatalf("making a machine: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the machine's files are in %s", dir)
			return
		}
		_ = os.RemoveAll(dir)
	})
	return &Machine{dir: dir}
}

// Configure writes the configuration again: a file and, if there are Settings, a drop-in.
func (m *Machine) Configure(t lab.TB, opts Options) {
	t.Helper()
	m.opts = opts
	metadata := fmt.Sprintf("[imds]\nendpoint = %q\n", opts.IMDS)
	if opts.Cadence > 0 {
		metadata += fmt.Sprintf("interval = %q\n", opts.Cadence)
	}
	m.settle(t, fmt.Sprintf("[log]\nformat = \"json\"\n[kubernetes]\nkubeconfig = %q\n%s%s", opts.Kubeconfig, metadata, noHooks), opts.Settings)
}

// settle writes the file of the configuration, and a drop-in.
func (m *Machine) settle(t lab.TB, text, dropIn string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(m.DropIn()), 0o700); err != nil {
		t.Fatalf("preparing a machine: %v", err)
	}
	m.write(t, m.ConfigFile(), text)
	m.write(t, m.DropIn(), dropIn)
}

// noHooks keeps the daemon from asking AWS about lifecycle hooks. A test that brings an Auto Scaling of its own says
// otherwise in its Settings.
const noHooks = "[events.asg-termination]\ncomplete_hook = false\n"

// Environment is what the daemon's environment has more than the test's.
func (m *Machine) Environment() []string {
	return append([]string{
		"AWS_EC2_METADATA_SERVICE_ENDPOINT=", "STATE_DIRECTORY=" + m.StateDirectory(), "RUNTIME_DIRECTORY=" + m.file("run"),
	}, m.opts.Env...)
}

func (m *Machine) file(name string) string { return filepath.Join(m.dir, name) }

func (m *Machine) write(t lab.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatalf("preparing a machine: %v", err)
	}
}

// ConfigFile is the path of the configuration.
func (m *Machine) ConfigFile() string { return m.file("nth.toml") }

// DropIn is the path of the file that holds Options.Settings.
func (m *Machine) DropIn() string { return m.file("nth.toml.d/50-settings.toml") }

// StateDirectory is where the daemon keeps its record.
func (m *Machine) StateDirectory() string { return m.file("state") }

// Reboot gives the machine another boot ID. Stop the daemon before, and start it after.
func (m *Machine) Reboot(t lab.TB) {
	t.Helper()
	m.boot++
	m.write(t, m.file("boot_id"), fmt.Sprintf("00000000-0000-4000-8000-%012d\n", m.boot))
}

// BootID is the kernel's ID of the machine's present boot.
func (m *Machine) BootID() string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", m.boot) }

// Daemon is a running nth, or one that has ended.
type Daemon struct {
	cmd   *exec.Cmd
	words *words
	done  chan struct{}
	err   error
}

// Start starts nth on the machine. It ends with the test at the latest.
func (m *Machine) Start(t lab.TB) *Daemon {
	t.Helper()
	// The boot ID is the kernel's; the daemon gets a mount namespace in which it is the machine's.
	cmd := exec.Command("/bin/sh", "-c",
		`mount --bind "$1" /proc/sys/kernel/random/boot_id && state=$2 && eval "$3" && shift 3 && exec "$@"`, "sh",
		m.file("boot_id"), m.StateDirectory(), cmp.Or(m.opts.Prepare, ":"), m.binary, "run", "--config", m.ConfigFile())
	cmd.Env = m.Environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	return m.launch(t, "nth", cmd)
}

// launch starts the program of that name with what is in the environment beside the test's.
func (m *Machine) launch(t lab.TB, name string, cmd *exec.Cmd) *Daemon {
	t.Helper()
	socket := m.file("notify")
	words, err := listen(socket)
	if err != nil {
		t.Fatalf("%v", err)
	}
	d := &Daemon{cmd: cmd, words: words, done: make(chan struct{})}
	cmd.Env = append(append(os.Environ(), "NOTIFY_SOCKET="+socket), cmd.Env...)
	cmd.Stderr = words
	if err := lab.StartBound(cmd, func(err error) { d.err = err; close(d.done) }); err != nil {
		t.Fatalf("starting %s: %v", name, err)
	}
	t.Cleanup(func() {
		d.Kill()
		_ = words.socket.Close()
		if t.Failed() {
			t.Logf("%s said:\n%s", name, words)
		}
	})
	return d
}

// PID is the process's ID.
func (d *Daemon) PID() int { return d.cmd.Process.Pid }

// Stop asks nth to stop, and fails the test unless it exits with status 0.
func (d *Daemon) Stop(t lab.TB) {
	t.Helper()
	_ = d.cmd.Process.Signal(syscall.SIGTERM) // fails only if it has ended, which the status tells
	select {
	case <-d.done:
	case <-time.After(lab.Patience):
		t.Fatalf("nth does not stop")
	}
	if d.err != nil {
		t.Fatalf("nth ended with %v, want exit status 0", d.err)
	}
}

// Kill ends nth as a crash would, and returns when it is gone.
func (d *Daemon) Kill() {
	select {
	case <-d.done:
	default:
		_ = syscall.Kill(-d.PID(), syscall.SIGKILL) // fails only when it has just ended
		<-d.done
	}
}

// MustRun fails the test if the daemon has ended.
func (d *Daemon) MustRun(t lab.TB) {
	t.Helper()
	select {
	case <-d.done:
		t.Fatalf("nth ended by itself: %v", d.err)
	default:
	}
}

// WaitReady waits for READY=1.
func (d *Daemon) WaitReady(t lab.TB) {
	t.Helper()
	d.await(t, "READY=1", func() bool { return d.words.ready })
}

// Status is the last sentence that systemctl status would show.
func (d *Daemon) Status() string {
	d.words.mu.Lock()
	defer d.words.mu.Unlock()
	return d.words.status
}

// WaitStatus waits until the status sentence contains text.
func (d *Daemon) WaitStatus(t lab.TB, text string) {
	t.Helper()
	d.await(t, fmt.Sprintf("the status %q", text), func() bool { return strings.Contains(d.words.status, text) })
}

// WaitWatching waits until the status says that nothing is announced for the node.
func (d *Daemon) WaitWatching(t lab.TB, node string) {
	t.Helper()
	d.WaitStatus(t, "watching; nothing is announced for node "+node)
}

// WaitLog waits until a message with the ID, one of those in pkg/systemd, has been logged, and returns the first.
func (d *Daemon) WaitLog(t lab.TB, messageID string) Entry {
	t.Helper()
	return d.waitEntry(t, "the message "+messageID, withID(messageID))
}

// WaitSays waits until a message that contains the text has been logged, and returns the first.
func (d *Daemon) WaitSays(t lab.TB, text string) Entry {
	t.Helper()
	return d.waitEntry(t, fmt.Sprintf("a message that says %q", text), func(e Entry) bool { return strings.Contains(e.Message, text) })
}

func (d *Daemon) waitEntry(t lab.TB, what string, wanted func(Entry) bool) Entry {
	t.Helper()
	d.await(t, what, func() bool { return slices.ContainsFunc(d.words.entries, wanted) })
	return d.words.of(wanted)[0]
}

// Logged returns all messages so far with the ID; with "" all.
func (d *Daemon) Logged(messageID string) []Entry { return d.words.of(withID(messageID)) }

func withID(messageID string) func(Entry) bool {
	return func(e Entry) bool { return messageID == "" || e.Fields["MESSAGE_ID"] == messageID }
}

// await waits until the words are as they should be, which isSo tells while they are locked.
func (d *Daemon) await(t lab.TB, what string, isSo func() bool) {
	t.Helper()
	ended := false
	defer func() {
		if t.Failed() {
			t.Logf("the status is %q", d.Status())
		}
	}()
	lab.Await(t, "there is "+what, func() bool {
		d.words.mu.Lock()
		so := isSo()
		d.words.mu.Unlock()
		if !so && ended {
			t.Fatalf("waiting for %s: nth ended: %v", what, d.err)
		}
		select {
		case <-d.done:
			ended = true // its last words are there now
		default:
		}
		return so
	})
}
