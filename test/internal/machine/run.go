package machine

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nth-project/nth/test/internal/lab"
)

// searchPath is the PATH of a service, and of a root shell.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environment is what a command in a machine gets. No pager, no colors, no questions.
var environment = []string{
	"PATH=" + searchPath, "HOME=/root", "LANG=C.UTF-8", "TERM=dumb",
	"SYSTEMD_PAGER=", "SYSTEMD_COLORS=0", "SYSTEMD_URLIFY=0", "DEBIAN_FRONTEND=noninteractive",
}

// Outcome is what became of a command.
type Outcome struct {
	// Status is the exit status; -1 if the machine went down under the command.
	Status         int
	Stdout, Stderr string
}

// Try runs a command and returns what became of it.
func (m *Machine) Try(t lab.TB, name string, args ...string) Outcome {
	t.Helper()
	return m.pipe(t, nil, name, args...)
}

// Run runs a command and returns what it wrote to its standard output, without the last line break. It fails the test if the command
// fails.
func (m *Machine) Run(t lab.TB, name string, args ...string) string {
	t.Helper()
	o := m.Try(t, name, args...)
	if o.Status != 0 {
		t.Fatalf("running %s %q in the machine: status %d\n%s%s", name, args, o.Status, o.Stdout, o.Stderr)
	}
	return strings.TrimSuffix(o.Stdout, "\n")
}

// Write writes a file, which root and nobody else may read. Directories that are missing are made.
func (m *Machine) Write(t lab.TB, guestPath, text string) {
	t.Helper()
	m.write(t, []byte(text), guestPath, 0o600)
}

// Put copies a file of the host, with its mode. Directories that are missing are made.
func (m *Machine) Put(t lab.TB, hostPath, guestPath string) {
	t.Helper()
	text, first := os.ReadFile(hostPath)
	info, second := os.Stat(hostPath)
	if err := errors.Join(first, second); err != nil {
		t.Fatalf("putting a file into the machine: %v", err)
	}
	m.write(t, text, guestPath, info.Mode().Perm())
}

func (m *Machine) write(t lab.TB, text []byte, guestPath string, mode os.FileMode) {
	t.Helper()
	// At its place there is always either the old file or the new one, whole.
	const script = `mkdir -p "$1" && cat >"$2.new" && chmod "$3" "$2.new" && mv -T "$2.new" "$2"`
	if o := m.pipe(t, text, "/bin/sh", "-c", script, "sh", path.Dir(guestPath), guestPath, fmt.Sprintf("%o", mode)); o.Status != 0 {
		t.Fatalf("writing %s in the machine: %s", guestPath, o.Stderr)
	}
}

// Property returns what the service manager says of a unit, such as its ActiveState.
func (m *Machine) Property(t lab.TB, unit, property string) string {
	t.Helper()
	return m.Run(t, "systemctl", "show", "--value", "--property="+property, unit)
}

// AwaitText waits until what say returns, which what names, contains the text.
func (m *Machine) AwaitText(t lab.TB, what, text string, say func() string) {
	t.Helper()
	last := ""
	defer func() {
		if !strings.Contains(last, text) {
			t.Logf("%s said last %q", what, last)
		}
	}()
	lab.Await(t, fmt.Sprintf("%s says %q", what, text), func() bool {
		last = say()
		return strings.Contains(last, text)
	})
}

// pipe runs a command with something to read, and returns what became of it. It fails the test only if the command could not be run, or does
// not end.
func (m *Machine) pipe(t lab.TB, stdin []byte, name string, args ...string) Outcome {
	t.Helper()
	s := m.now()
	if s.leader == 0 {
		t.Fatalf("running %s %q in the machine: it is off", name, args)
	}
	var stdout, stderr bytes.Buffer
	// The name is looked up inside, in the environment of the command.
	command := exec.Command("/usr/bin/env", append([]string{"-i", "-C", "/"}, append(environment[:len(environment):len(environment)],
		append([]string{name}, args...)...)...)...)
	if command.Stdout, command.Stderr = &stdout, &stderr; len(stdin) > 0 {
		command.Stdin = bytes.NewReader(stdin)
	}
	err := inside(s.leader, command, lab.Patience)
	if _, ended := errors.AsType[*exec.ExitError](err); err != nil && !ended {
		t.Fatalf("running %s %q in the machine: %v", name, args, err)
	}
	return Outcome{Status: command.ProcessState.ExitCode(), Stdout: stdout.String(), Stderr: stderr.String()}
}

// inside runs a command in the namespaces of the process.
//
// The program nsenter would do, but for the end of the machine: then the guest's systemd stops every process that it
// sees, nsenter stops together with its child, never collects it, and so the machine never ends.
func inside(leader int, command *exec.Cmd, limit time.Duration) error {
	result := make(chan error)
	go onOwnThread(func() {
		if err := enter(leader); err != nil {
			result <- err
			return
		}
		if err := command.Start(); err != nil {
			result <- err
			return
		}
		overdue := time.AfterFunc(limit, func() { _ = command.Process.Kill() }) // fails only if it has ended
		err := command.Wait()
		if !overdue.Stop() {
			err = fmt.Errorf("it has not ended after %s", limit) // What it said until then is no result.
		}
		result <- err
	})
	return <-result
}

// onOwnThread calls f on a thread that ends with it, and so may be made unfit for anything else.
func onOwnThread(f func()) {
	runtime.LockOSThread()
	if unix.Gettid() != os.Getpid() {
		f()
		return // the goroutine ends, and with it a thread that is still locked to it
	}
	// The process's first thread cannot end; what became of it would be taken for the whole process. It waits here.
	done := make(chan struct{})
	go func() { defer close(done); onOwnThread(f) }()
	<-done
	runtime.UnlockOSThread()
}

// enter takes the calling thread into the namespaces of a process. What it starts from then on is in its process
// namespace, too.
func enter(leader int) error {
	// A thread that shares its working directory with others cannot change its mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("separating a thread: %w", err)
	}
	var spaces []*os.File
	for _, kind := range []string{"cgroup", "ipc", "uts", "net", "pid", "mnt"} {
		file, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", leader, kind))
		if err != nil {
			return fmt.Errorf("entering the machine: %w", err)
		}
		defer file.Close()
		spaces = append(spaces, file)
	}
	for _, space := range spaces {
		if err := unix.Setns(int(space.Fd()), 0); err != nil {
			return fmt.Errorf("entering %s: %w", space.Name(), err)
		}
	}
	return nil
}
