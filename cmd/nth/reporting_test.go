package main_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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

// awaitStatus waits until "nth status" says all that.
func (s *served) awaitStatus(t *testing.T, b *bench, wants ...string) {
	t.Helper()
	for _, want := range wants {
		for {
			_, stdout, _ := call(t, "status --config "+b.settings)
			if strings.Contains(stdout, want) {
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

// rubbish makes what nobody can read, or should, below a directory.
func rubbish(t *testing.T) (at func(name string) string) {
	t.Helper()
	dir := t.TempDir()
	at = func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"webhook-url", "webhook-headers", "pipe"} {
		if err := syscall.Mkfifo(at(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(at("empty"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return at
}

// A pipe that nobody writes to, a disk that is full of nothing, an address that somebody else has: nth starts, reloads and stops.
func TestReporting_FaultsDoNotKeepNthFromWorking(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	at := rubbish(t)
	for name, row := range map[string]struct {
		first, second string // settings, and what a reload finds
		environment   string
		told          []string // one line each at the start
		stands        string   // what "nth status" says besides
	}{
		"files": {
			first: fmt.Sprintf("[log]\nlevel = 'loud'\n[metrics]\nlisten = %q\ntextfile = %q\n[webhook]\nurl_file = %q\ntemplate = %q\nheaders_file = %q\nca_file = %q\n",
				taken.Addr(), at("none/nth.prom"), at("pipe"), at("pipe"), filepath.Dir(at("pipe")), at("pipe")),
			second: fmt.Sprintf("[webhook]\nurl = 'http://127.0.0.1:1'\ntemplate = %q\nca_file = '/dev/zero'\n", at("pipe")),
			told: []string{
				"log.level", "webhook: webhook.template: " + at("pipe") + " is not a file; nth's own template is used",
				"webhook: reading the URL: " + at("pipe") + " is not a file", "webhook: reading the headers: " + filepath.Dir(at("pipe")) + " is not a file",
				"webhook: reading the certificates to trust: " + at("pipe") + " is not a file",
			},
			stands: "address already in use",
		},
		"credentials": {
			first:       "[metrics]\nlisten = 'nobody.invalid:9092'\n[webhook]\nheaders = { Host = 'a' }\nca_file = '" + at("empty") + "'\n",
			second:      "[webhook]\nproxy = 'http://nobody.invalid:1'\n",
			environment: "CREDENTIALS_DIRECTORY=" + filepath.Dir(at("pipe")),
			told: []string{
				"webhook: reading the URL: " + at("webhook-url") + " is not a file", "webhook: reading the headers: " + at("webhook-headers") + " is not a file",
				"webhook: reading the certificates to trust: there is none in " + at("empty"),
			},
		},
		"an address that nobody has": {
			first:       "[webhook]\nurl = 'http://nobody.invalid'\n[metrics]\ntextfile = '/dev/null/nth.prom'\n",
			second:      "[webhook]\nurl = 'http://nobody.invalid'\nproxy = 'http://nobody.invalid:1'\n",
			environment: "CREDENTIALS_DIRECTORY=",
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.imds.SetSpot("terminate", time.Now().Add(time.Hour)) // There is something to be told.
			b.set(t, row.first)
			s := b.serveNth(t, row.environment)
			s.awaitStatus(t, b, append(row.told, row.stands)...)
			b.set(t, row.second)
			s.reload(t)
			start, _, _ := strings.Cut(s.stop(t), "watching for interruptions")
			for _, want := range row.told {
				if n := strings.Count(start, want); n != 1 {
					t.Errorf("%q was told %d times", want, n)
				}
			}
			if n := strings.Count(start, "degraded: "); n != len(row.told) {
				t.Errorf("%d faults are told, want %d:\n%s", n, len(row.told), start)
			}
		})
	}
}
