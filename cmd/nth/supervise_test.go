package main_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	nth "github.com/nth-project/nth/cmd/nth"
	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/pkg/record"
)

// shell returns what starts a script, and counts the starts.
func shell(script string, out io.Writer) (start func() *exec.Cmd, starts *int) {
	starts = new(int)
	return func() *exec.Cmd {
		*starts++
		command := exec.Command("/bin/sh", "-c", script)
		command.Stdout = out
		return command
	}, starts
}

// onLines calls react with each line that is written to it.
type onLines func(line string)

func (react onLines) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		react(line)
	}
	return len(p), nil
}

func TestSupervise_PauseGrowsWhileTheDaemonFailsAtOnce(t *testing.T) {
	const second = time.Second
	for _, row := range []struct{ last, lived, want time.Duration }{
		{0, 0, second / 2}, {second / 2, 0, second}, {second, 59 * second, 2 * second}, {8 * second, 0, 10 * second}, {10 * second, 0, 10 * second},
		{10 * second, 60 * second, second / 2},
	} {
		if got := nth.PauseAfter(row.last, row.lived); got != row.want {
			t.Errorf("after %s and a life of %s, the pause is %s, want %s", row.last, row.lived, got, row.want)
		}
	}
}

func TestSupervise_StopsInThePauseBeforeARestart(t *testing.T) {
	signals := make(chan os.Signal, 2)
	start, starts := shell("exit 2", nil)
	log := onLines(func(line string) {
		if strings.Contains(line, "(exit status 2); starting it again in 1s") {
			signals <- syscall.SIGHUP // nobody needs it now
			signals <- syscall.SIGTERM
		}
	})
	if status := nth.KeepRunning(start, logger(log), signals); status != 0 || *starts != 2 {
		t.Errorf("status %d after %d starts", status, *starts)
	}
}

func TestSupervise_EndsWithWhatAnotherAttemptWouldEndWith(t *testing.T) {
	for _, status := range []int{64, 78} {
		start, starts := shell(fmt.Sprintf("exit %d", status), nil)
		log := onLines(func(line string) { t.Errorf("it said %q", line) })
		if got := nth.KeepRunning(start, logger(log), nil); got != status || *starts != 1 {
			t.Errorf("status %d after %d starts, want %d after one", got, *starts, status)
		}
	}
}

func TestSupervise_ForwardsSignalsAndEndsWithTheDaemon(t *testing.T) {
	signals := make(chan os.Signal, 2)
	next := map[string]os.Signal{"ready\n": syscall.SIGHUP, "hup\n": syscall.SIGTERM}
	start, starts := shell("trap 'echo hup' HUP; trap 'exit 3' TERM; echo ready; while :; do sleep 0.01; done", onLines(func(line string) { signals <- next[line] }))
	// It ends with a status of its own, and is not started again.
	if status := nth.KeepRunning(start, logger(io.Discard), signals); status != 3 || *starts != 1 {
		t.Errorf("status %d after %d starts", status, *starts)
	}
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
