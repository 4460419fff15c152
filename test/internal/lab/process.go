package lab

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
)

// tailLines is how much of a log a message repeats.
const tailLines = 15

// A process is one running component and the file that its words go to.
type process struct {
	name    string
	log     string        // path
	pid     int           // also the process group
	done    chan struct{} // closed when the process has ended
	stopped atomic.Bool   // asked to end by the lab
}

// startProcess starts a program in a process group of its own, so that a
// control-C at the terminal reaches the lab first. crashed is called if the
// process ends and nobody asked it to.
func startProcess(crashed func(error), name, logPath, path string, args ...string) (*process, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	defer log.Close()
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = log, log
	p := &process{name: name, log: logPath, done: make(chan struct{})}
	err = StartBound(cmd, func(error) {
		// How it ended does not matter, only that it did; the log tells why.
		close(p.done)
		if !p.stopped.Load() {
			crashed(fmt.Errorf("%s ended by itself; the end of %s:\n%s", name, logPath, tail(logPath, tailLines)))
		}
	})
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	p.pid = cmd.Process.Pid
	return p, nil
}

// StartBound starts a command, in a process group of its own, that the kernel kills when this process ends. ended is called
// with the error of the command's Wait.
func StartBound(cmd *exec.Cmd, ended func(error)) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid, cmd.SysProcAttr.Pdeathsig = true, syscall.SIGKILL
	started := make(chan error)
	go func() {
		// The kernel sends the parent-death signal when the starting thread
		// ends, so that thread must live as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			ended(cmd.Wait())
		}
	}()
	return <-started
}

// kill ends the process at once and returns when it is gone. The data is
// thrown away, so there is nothing to be gentle for.
func (p *process) kill() {
	p.stopped.Store(true)
	p.signal(syscall.SIGKILL)
	<-p.done
}

// signal sends sig to the process and all its children.
func (p *process) signal(sig syscall.Signal) {
	select {
	case <-p.done: // the number may belong to somebody else by now
	default:
		_ = syscall.Kill(-p.pid, sig) // fails only when it has just ended
	}
}

// tail returns the last lines of a file.
func tail(path string, lines int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	data = bytes.TrimRight(data, "\n")
	if len(data) == 0 {
		return "(nothing)"
	}
	from := len(data)
	for ; lines > 0 && from > 0; lines-- {
		from = bytes.LastIndexByte(data[:from], '\n')
	}
	return string(data[from+1:])
}
