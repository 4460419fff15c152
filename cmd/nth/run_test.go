package main_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A served nth is a process that was started as a service.
type served struct {
	process *exec.Cmd
	notices *net.UnixConn // what it tells the service manager
	said    bytes.Buffer
	over    func() error // an error once the process was killed because the test hangs
}

// serveNth starts "nth run" on the bench, with some more of an environment, and waits until it is ready.
func (b *bench) serveNth(t *testing.T, environment ...string) *served {
	t.Helper()
	dir, err := os.MkdirTemp("", "nth") //nolint:usetesting // t.TempDir can be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "notify")
	s := &served{}
	if s.notices, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.notices.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // If it hangs.
	t.Cleanup(cancel)
	s.over = ctx.Err
	context.AfterFunc(ctx, func() { _ = s.notices.Close() })
	s.process = exec.CommandContext(ctx, os.Args[0], "run", "--config", b.settings)
	s.process.Env = append(append(os.Environ(), asProgram+"=nth", "NOTIFY_SOCKET="+socket), environment...)
	s.process.Stdout, s.process.Stderr = &s.said, &s.said
	if err := s.process.Start(); err != nil {
		t.Fatal(err)
	}
	s.await(t, "READY=1")
	return s
}

// await waits until the service manager is told something.
func (s *served) await(t *testing.T, what string) {
	t.Helper()
	datagram := make([]byte, 4096)
	for {
		n, err := s.notices.Read(datagram)
		if err != nil {
			_ = s.process.Process.Kill()
			_ = s.process.Wait()
			t.Fatalf("%s was never told: %v; nth has said\n%s", what, err, &s.said)
		}
		if strings.HasPrefix(string(datagram[:n]), what) {
			return
		}
	}
}

// awaitStatus waits until "nth status" says all that of a running service. The status of a service that has stopped is an old one.
func (s *served) awaitStatus(t *testing.T, wants ...string) {
	t.Helper()
	for _, want := range wants {
		for {
			status, stdout, _ := call(t, "status")
			if status == 0 && strings.Contains(stdout, want) {
				break
			}
			if s.over() != nil {
				t.Fatalf("the status never says %q, but\n%s", want, stdout)
			}
			runtime.Gosched()
		}
	}
}

// reload waits until nth has read its settings again.
func (s *served) reload(t *testing.T) {
	t.Helper()
	if err := s.process.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	s.await(t, "RELOADING=1")
	s.await(t, "READY=1")
}

// stop ends nth, as a service is, and returns what it has said.
func (s *served) stop(t *testing.T) string {
	t.Helper()
	if err := s.process.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := s.process.Wait(); err != nil {
		t.Errorf("nth ended with %v; it said\n%s", err, &s.said)
	}
	return s.said.String()
}

// A pipe that nobody writes to, an address that somebody else has: nth starts, reloads and stops.
func TestReporting_FaultsDoNotKeepNthFromWorking(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	dir := t.TempDir()
	pipe := filepath.Join(dir, "webhook-url")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	b := newBench(t)
	b.imds.SetSpot("terminate", time.Now().Add(time.Hour)) // There is something to report.
	b.set(t, fmt.Sprintf("[log]\nlevel = 'loud'\n[metrics]\nlisten = %q\ntextfile = %q\n[webhook]\ntemplate = %q\n",
		taken.Addr(), filepath.Join(dir, "none/nth.prom"), pipe))
	s := b.serveNth(t, "CREDENTIALS_DIRECTORY="+dir)
	degraded := []string{
		"log.level", "webhook: webhook.template: reading " + pipe + ": not a regular file", "webhook: reading the URL: reading " + pipe + ": not a regular file",
	}
	s.awaitStatus(t, append(degraded, "address already in use")...)
	b.set(t, "[webhook]\nheaders_file = '/dev/zero'\n")
	s.reload(t)
	start, _, _ := strings.Cut(s.stop(t), "watching for interruptions")
	for _, want := range degraded {
		if n := strings.Count(start, want); n != 1 {
			t.Errorf("%q was logged %d times", want, n)
		}
	}
	if n := strings.Count(start, "ignoring an invalid setting: "); n != len(degraded) {
		t.Errorf("%d faults are logged, want %d:\n%s", n, len(degraded), start)
	}
}

func TestRun_WhileTheServiceRuns(t *testing.T) {
	b := newBench(t)
	service := b.serveNth(t)
	service.awaitStatus(t, "process "+strconv.Itoa(service.process.Process.Pid))

	status, stdout, stderr := typed(t, "run", "--config", b.settings)
	if want := fmt.Sprintf("nth: nth already runs (pid %d)\n", service.process.Process.Pid); status != 1 || stdout != "" || stderr != want {
		t.Errorf("a second one: status %d, on standard output %q, on standard error %q, want %q", status, stdout, stderr, want)
	}

	b.set(t, "dry_run = true")
	dry := b.serveNth(t)
	if said := dry.stop(t); !strings.Contains(said, "dry run") {
		t.Errorf("the dry run said\n%s", said)
	}
	status, stdout, _ = call(t, "status")
	if want := fmt.Sprintf("process %d,", service.process.Process.Pid); status != 0 || !strings.Contains(stdout, want) || strings.Contains(stdout, "dry run") {
		t.Errorf("the status after a dry run, %d, is not the service's:\n%s", status, stdout)
	}
	service.stop(t)

	b.set(t, "")
	b.serveNth(t).stop(t)
}

func TestSignal_TheSecondEndsNthAtOnce(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(signal.String(), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			program := exec.CommandContext(ctx, os.Args[0])
			program.Env = append(os.Environ(), asProgram+"=stubborn")
			out, err := program.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := program.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			for _, want := range []string{"watching", "stopping: " + signal.String() + " signal received"} {
				if !lines.Scan() || lines.Text() != want {
					t.Fatalf("got %q, want %q", lines.Text(), want)
				}
				_ = program.Process.Signal(signal)
			}
			go func() { // It may take a moment until the next signal counts. Go's runtime does not survive a flood of them.
				for program.Process.Signal(signal) == nil {
					time.Sleep(20 * time.Millisecond)
				}
			}()
			_ = program.Wait()
			if status, ok := program.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != signal {
				t.Errorf("ended with %v", program.ProcessState)
			}
		})
	}
}
