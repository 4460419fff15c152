package faults_test

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/test/internal/daemon"
)

// Where systemd does not watch, as in a host container of Bottlerocket, a loop that hangs would do so for ever. Here it hangs on what it
// writes to, which takes nothing more.
func TestAnNthThatHangsWhereNobodyWatchesEndsItself(t *testing.T) {
	t.Parallel()
	imds := imdstest.NewServer()
	t.Cleanup(imds.Close)
	machine := daemon.NewMachine(t, daemon.Options{Kubeconfig: "/absent", IMDS: imds.URL})
	binary, err := daemon.Binary()
	if err != nil {
		t.Fatal(err)
	}
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = out.Close(); _ = in.Close() })
	nth := exec.CommandContext(t.Context(), binary, "run", "--config", machine.ConfigFile())
	nth.Env = append(append(os.Environ(), "NOTIFY_SOCKET=", "WATCHDOG_USEC="), machine.Environment()...)
	nth.Stderr = in
	if err := nth.Start(); err != nil {
		t.Fatal(err)
	}
	for started := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if s, err := record.ReadStatus(machine.RuntimeDirectory()); err == nil && len(s.Documents) > 0 {
			break
		}
		if time.Since(started) > time.Minute {
			t.Fatal("nth does not watch")
		}
	}
	fill(t, out, in)
	imds.SetSpot("terminate", twoMinutes())
	ended := make(chan struct{})
	go func() {
		_ = nth.Wait() // the status tells
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(2 * time.Minute):
		t.Fatal("nth hangs on")
	}
	if status := nth.ProcessState.ExitCode(); status != 1 {
		t.Errorf("nth ended with %v, want status 1", nth.ProcessState)
	}
}

// fill makes a pipe one that takes nothing more.
func fill(t *testing.T, out, in *os.File) {
	t.Helper()
	size, err := unix.FcntlInt(out.Fd(), unix.F_GETPIPE_SZ, 0)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for err := error(nil); err == nil; _, err = in.Write([]byte{'\n'}) {
		}
	}()
	for filling := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		waiting, err := unix.IoctlGetInt(int(out.Fd()), unix.TIOCINQ)
		if err != nil || time.Since(filling) > time.Minute {
			t.Fatalf("filling a pipe of %d bytes: there are %d: %v", size, waiting, err)
		}
		if waiting == size {
			return
		}
	}
}

// A process may open no file any more: it, or another part of the machine, has used up what there is.
func TestDescriptors_NoneLeftIsShownAndSurvived(t *testing.T) {
	s := newScene(t, "")
	s.watch(t)
	if err := unix.Prlimit(s.nth.PID(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: 1024}, nil); err != nil {
		t.Fatal(err)
	}
	s.imds.SetSpot("terminate", twoMinutes())
	s.nth.WaitSays(t, "cannot read spot-interruption: reading \"spot/instance-action\": dial: socket: too many open files")
	s.nth.WaitSays(t, "writing the status: ")
	if shown := s.machine.Command(t, "status"); shown.Status == 0 {
		t.Errorf("nth cannot look, and its status is\n%s", shown.Stdout)
	}
	if err := unix.Prlimit(s.nth.PID(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1024, Max: 1024}, nil); err != nil {
		t.Fatal(err)
	}
	s.waitDrained(t)
	s.nth.Stop(t)
}
