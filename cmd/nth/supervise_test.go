package main_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	nth "github.com/nth-project/nth/cmd/nth"
	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/pkg/record"
)

// A life is how a process lives and ends by itself, and how it takes signals.
type life struct {
	lives  time.Duration
	status int
	heeds  bool // a signal ends it with status 0
	heard  chan os.Signal
	ended  chan struct{}
}

func (l *life) Signal(s os.Signal) error {
	l.heard <- s
	if l.heeds && s == syscall.SIGTERM {
		close(l.ended)
	}
	return nil
}

func (l *life) Wait() (int, string) {
	select {
	case <-l.ended:
		return 0, "exit status 0"
	case <-time.After(l.lives):
		return l.status, "it has ended"
	}
}

// A cradle starts processes with these lives, one after the other, and then ones that live until they are asked to end.
type cradle struct {
	lives  []*life
	starts []time.Duration // since the beginning
	began  time.Time
}

func (c *cradle) start() (nth.Supervised, error) {
	c.starts = append(c.starts, time.Since(c.began))
	l := &life{lives: 1000 * time.Hour, heeds: true}
	if n := len(c.starts); n <= len(c.lives) {
		l = c.lives[n-1]
	}
	if l == nil {
		return nil, errors.New("there is no memory")
	}
	l.heard, l.ended = make(chan os.Signal, 8), make(chan struct{})
	return l, nil
}

// supervised has processes with these lives supervised for so long, and then asks for the end.
func supervised(t *testing.T, lives []*life, then time.Duration) (c *cradle, status int, said string) {
	t.Helper()
	var log bytes.Buffer
	c = &cradle{lives: lives, began: time.Now()}
	signals := make(chan os.Signal, 1)
	asking := time.AfterFunc(then, func() { signals <- syscall.SIGTERM })
	defer asking.Stop()
	status = nth.Supervise(c.start, logger(&log), signals)
	return c, status, log.String()
}

func TestSupervise_PauseGrowsWhileTheDaemonFailsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		crash := func(lives time.Duration) *life { return &life{lives: lives, status: 2} }
		c, status, said := supervised(t, []*life{crash(0), nil, crash(0), crash(0), crash(0), crash(0), crash(0), crash(time.Hour), crash(0)}, 2*time.Hour)
		want := []time.Duration{ // in milliseconds; the pauses are 0.5 s, 1 s, 2 s, 4 s, 8 s, and then 10 s
			0, 500, 1500, 3500, 7500, 15500, 25500, 35500, 35500 + 3600000 + 500, 35500 + 3600000 + 500 + 1000,
		}
		if len(c.starts) != len(want) {
			t.Fatalf("it was started %d times, want %d:\n%s", len(c.starts), len(want), said)
		}
		for i, at := range c.starts {
			if at != want[i]*time.Millisecond {
				t.Errorf("start %d was after %s, want %s", i+1, at, want[i]*time.Millisecond)
			}
		}
		if lines := strings.Count(said, "\n"); status != 0 || lines != len(want)-1 || strings.Count(said, "there is no memory") != 1 {
			t.Errorf("status %d, and it said\n%s\nwant a line for each of %d ends", status, said, len(want)-1)
		}
	})
}

func TestTheParentEndsWithWhatAnotherAttemptWouldEndWith(t *testing.T) {
	for _, status := range []int{64, 78} {
		synctest.Test(t, func(t *testing.T) {
			if c, got, said := supervised(t, []*life{{status: status}}, time.Hour); got != status || len(c.starts) != 1 || said != "" {
				t.Errorf("status %d after %d starts, want %d after one; it said %q", got, len(c.starts), status, said)
			}
		})
	}
}

func TestSupervise_ForwardsSignalsAndEndsWithTheDaemon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signals := make(chan os.Signal, 2)
		l := &life{lives: 20 * time.Second, status: 1}
		c := &cradle{lives: []*life{l}, began: time.Now()}
		signals <- syscall.SIGHUP
		signals <- syscall.SIGTERM
		// It takes its time, ends with a status of its own, and is not started again.
		if status := nth.Supervise(c.start, logger(&bytes.Buffer{}), signals); status != 1 || len(c.starts) != 1 {
			t.Errorf("status %d after %d starts", status, len(c.starts))
		}
		if a, b := <-l.heard, <-l.heard; a != syscall.SIGHUP || b != syscall.SIGTERM {
			t.Errorf("it heard %s and %s", a, b)
		}
	})
}

func TestTheParentStopsWhileItWaitsToStartNthAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signals := make(chan os.Signal, 2)
		c := &cradle{lives: []*life{{status: 2}}, began: time.Now()}
		asking := time.AfterFunc(200*time.Millisecond, func() {
			signals <- syscall.SIGHUP // of no use to anybody now
			signals <- syscall.SIGTERM
		})
		defer asking.Stop()
		if status := nth.Supervise(c.start, logger(&bytes.Buffer{}), signals); status != 0 || len(c.starts) != 1 {
			t.Errorf("status %d after %d starts", status, len(c.starts))
		}
	})
}

// runParent runs nth as a host container does, with these settings. Its daemon shows its status in dir.
func runParent(t *testing.T, settings string) (parent *exec.Cmd, dir string, out *bytes.Buffer) {
	t.Helper()
	dir, out = t.TempDir(), &bytes.Buffer{}
	file := filepath.Join(t.TempDir(), "nth.toml")
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	parent = exec.CommandContext(t.Context(), os.Args[0], "--config", file)
	parent.Env = append(os.Environ(), asProgram+"=parent", "NOTIFY_SOCKET=", "STATE_DIRECTORY="+dir, "RUNTIME_DIRECTORY="+dir)
	parent.Stdout, parent.Stderr = out, out
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	return parent, dir, out
}

// otherThan waits until a daemon shows its status that is another process, and returns it.
func otherThan(t *testing.T, dir string, pid int) int {
	t.Helper()
	for t.Context().Err() == nil {
		if s, err := record.ReadStatus(dir); err == nil && s.PID != pid {
			return s.PID
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("no daemon shows its status")
	return 0
}

func TestADaemonThatIsKilledIsReplacedAndEndsWithItsParent(t *testing.T) {
	imds := imdstest.NewServer()
	t.Cleanup(imds.Close)
	settings := "[imds]\nendpoint = \"" + imds.URL + "\"\n[kubernetes]\nkubeconfig = \"/absent\"\n"

	t.Run("which is asked to stop", func(t *testing.T) {
		parent, dir, out := runParent(t, settings)
		first := otherThan(t, dir, 0)
		if first == parent.Process.Pid {
			t.Error("the parent is the daemon")
		}
		_ = syscall.Kill(first, syscall.SIGKILL)
		otherThan(t, dir, first)
		_ = parent.Process.Signal(syscall.SIGTERM)
		if err := parent.Wait(); err != nil {
			t.Errorf("the parent ended with %v", err)
		}
		s, err := record.ReadStatus(dir)
		if err != nil || s.Stopped.IsZero() {
			t.Errorf("the daemon has not stopped as asked: %+v, %v", s, err)
		}
		if said := out.String(); strings.Count(said, "<3>nth has ended after ") != 1 || !strings.Contains(said, "(signal: killed); starting it again in 500ms\n") {
			t.Errorf("they said\n%s", said)
		}
	})
	t.Run("which is killed", func(t *testing.T) {
		parent, dir, _ := runParent(t, settings)
		daemon := otherThan(t, dir, 0)
		_ = parent.Process.Kill()
		_ = parent.Wait() // with what it was killed by, once nobody has its output open: the daemon is gone, too
		for t.Context().Err() == nil && syscall.Kill(daemon, 0) == nil {
			time.Sleep(10 * time.Millisecond) // Its new parent may not have seen its end yet.
		}
	})
}

func TestTheParentEndsAsItsDaemonDoesWithWrongSettings(t *testing.T) {
	parent, _, out := runParent(t, "colour = \"blue\"\n")
	_ = parent.Wait()
	if status := parent.ProcessState.ExitCode(); status != 78 || strings.Count(out.String(), "\n") != 1 || !strings.Contains(out.String(), "<3>") {
		t.Errorf("the parent ended with %d, and said\n%s", status, out)
	}
}
