package machine

import (
	"bufio"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

//go:embed launcher.sh
var launcherScript string

// A launcher is the process beside a machine that boots it and takes it away.
type launcher struct {
	command *exec.Cmd
	stdin   io.WriteCloser
	at      string // where the machine's disk is, in the launcher's mount namespace
	notify  *net.UnixConn
	console *os.File
	done    chan struct{}
	ending  sync.Once
}

// launch boots a machine over the base. heard is given what becomes of it.
func launch(name, base string, o Options, heard func(func(*state))) (*launcher, error) {
	at := filepath.Join(filepath.Dir(base), "mnt")
	if err := os.MkdirAll(at, 0o755); err != nil {
		return nil, err
	}
	// A name that begins with @ is one of no file, and shared with all mount namespaces.
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: "@" + name, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("listening to the service manager: %w", err)
	}
	console, err := os.CreateTemp("", name+"-")
	if err != nil {
		return nil, fmt.Errorf("making a console: %w", err)
	}
	l := &launcher{at: at, notify: notify, console: console, done: make(chan struct{})}
	l.command = exec.Command("/bin/sh", append([]string{"-c", launcherScript, "launcher.sh", name, base, at}, o.nspawn()...)...)
	l.command.Env = []string{"PATH=" + searchPath, "LANG=C.UTF-8", "NOTIFY_SOCKET=@" + name}
	if o.Controllers {
		l.command.Env = append(l.command.Env, "CONTROLLERS=1")
	}
	l.command.Stderr = console
	// The process group keeps an interrupt at the terminal away: the launcher is to outlive the test by a moment.
	l.command.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Setpgid: true}
	if l.stdin, err = l.command.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := l.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := l.command.Start(); err != nil {
		notify.Close()
		return nil, fmt.Errorf("starting the launcher: %w", err)
	}
	go l.listen(heard)
	go l.follow(stdout, heard)
	return l, nil
}

// listen hears what nspawn and the machine's service manager tell.
func (l *launcher) listen(heard func(func(*state))) {
	leader, packet := 0, make([]byte, 4096)
	for {
		n, err := l.notify.Read(packet)
		if err != nil {
			return
		}
		for line := range strings.Lines(string(packet[:n])) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			switch key {
			case "X_NSPAWN_LEADER_PID":
				leader, _ = strconv.Atoi(value)
			case "READY":
				heard(func(s *state) { s.leader = leader; s.boots++ })
			}
		}
	}
}

// follow hears what the launcher says, to its end.
func (l *launcher) follow(stdout io.Reader, heard func(func(*state))) {
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		switch lines.Text() {
		case "down":
			heard(func(s *state) { s.leader = 0 })
		case "off":
			heard(func(s *state) { s.off = true })
		}
	}
	gone := errGone
	if err := l.command.Wait(); err != nil {
		gone = fmt.Errorf("%w: %w", errGone, err)
	}
	heard(func(s *state) { s.leader, s.off, s.gone = 0, true, gone })
	close(l.done)
}

var errGone = errors.New("the launcher has ended")

func (l *launcher) cutPower() error {
	_, err := io.WriteString(l.stdin, "cut\n")
	return err
}

// end takes the machine away, whatever it is doing, and returns when there is nothing left of it.
func (l *launcher) end() {
	l.ending.Do(func() {
		l.stdin.Close()
		<-l.done
		l.notify.Close()
		l.console.Close()
		_ = os.Remove(l.console.Name()) // it may stay if it must
	})
}

// root is where the machine's disk is for the test.
func (l *launcher) root() string {
	return filepath.Join("/proc", strconv.Itoa(l.command.Process.Pid), "root", l.at, "root")
}

// said is what the machine, or the launcher, has written to its console.
func (l *launcher) said() string {
	text, _ := os.ReadFile(l.console.Name()) // whatever it is, it is all there is
	return string(text)
}
