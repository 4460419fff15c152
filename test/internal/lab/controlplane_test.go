package lab_test

import (
	"bytes"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/nth-project/nth/test/internal/lab"
)

// The name of this variable tells a second copy of the test binary that it is
// the one to be killed, and where to put its control plane.
const doomed = "NTH_LAB_DOOMED"

func TestNothingOutlivesAProcessThatIsKilled(t *testing.T) {
	if dir := os.Getenv(doomed); dir != "" {
		if _, err := lab.Start(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
		os.Stdout.WriteString("up\n")
		select {}
	}
	t.Parallel()
	dir := t.TempDir()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	victim := exec.CommandContext(t.Context(), program, "-test.run=^"+t.Name()+"$")
	victim.Env = append(os.Environ(), doomed+"="+dir)
	stdout, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := stdout.Read(make([]byte, 3)); err != nil {
		t.Fatalf("the control plane did not start: %v", err)
	}
	// One that is just being looked at may not show what it was called with.
	awaitProcesses(t, dir, "5", func(n int) bool { return n >= 5 })
	victim.Process.Kill()
	victim.Wait()
	awaitProcesses(t, dir, "none", func(n int) bool { return n == 0 })
}

// awaitProcesses waits until as many processes as are wanted were called with dir.
func awaitProcesses(t *testing.T, dir, want string, enough func(int) bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		n := processesIn(t, dir)
		if enough(n) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d processes of the control plane are running, want %s", n, want)
		}
	}
}

// processesIn counts the running processes that were called with dir.
func processesIn(t *testing.T, dir string) int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, entry := range entries {
		// A process that has ended meanwhile, or is none, can't be read.
		line, _ := os.ReadFile("/proc/" + entry.Name() + "/cmdline")
		if bytes.Contains(line, []byte(dir+"/")) {
			count++
		}
	}
	return count
}
