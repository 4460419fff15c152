package lab

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
)

// A process is one running component and the file that its words go to.
type process struct {
	log     string        // path
	pid     int           // also the process group
	done    chan struct{} // closed when the process has ended
	stopped atomic.Bool   // asked to end by the lab
}

// startProcess starts a program in a process group of its own, so that a
// control-C at the terminal reaches the lab first. If the process ends and nobody
// asked it to, the person at the terminal is the one who needs to know.
func startProcess(name, logPath, path string, args ...string) (*process, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	defer log.Close()
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = log, log
	p := &process{log: logPath, done: make(chan struct{})}
	err = StartBound(cmd, func(err error) {
		close(p.done)
		if !p.stopped.Load() {
			fmt.Fprintf(os.Stderr, "*** %s of the lab ended by itself: %v; its log is %s ***\n", name, err, logPath)
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
