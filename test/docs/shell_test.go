package docs_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/nth-project/nth/test/internal/docs"
	"github.com/nth-project/nth/test/internal/lab"
)

// standard is the address in the pages, for which each test has one of its own.
const standard = "127.0.0.1:1338"

// shell starts a shell in what looks like the project's top, with a home and directories of its own. It ends with the
// test, and so does whatever was started in it.
func shell(t *testing.T) docs.Terminal {
	t.Helper()
	home := t.TempDir()
	for _, dir := range []string{"packaging", "bottlerocket", "docs"} {
		link(t, filepath.Join(top, dir), filepath.Join(home, dir))
	}
	link(t, ours(t), filepath.Join(home, "bin"))
	address := lab.FreeAddress(t)
	bash := exec.CommandContext(t.Context(), "bash")
	bash.Dir = home
	bash.Env = append(os.Environ(), "HOME="+home, "NTH_IMDS=http://"+address,
		"STATE_DIRECTORY="+filepath.Join(home, "state"), "RUNTIME_DIRECTORY="+filepath.Join(home, "runtime"))
	bash.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := bash.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := bash.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	statuses := bufio.NewReader(out)
	if err := bash.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Kill(-bash.Process.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Errorf("ending the shell: %v", err)
		}
		_ = bash.Wait() // It was killed.
	})
	number := 0
	return func(command string) (string, int) {
		number++
		printed := filepath.Join(home, fmt.Sprintf(".printed%d", number))
		command = strings.NewReplacer(standard, address, "/tmp/rehearsal", filepath.Join(home, "rehearsal")).Replace(command)
		if background, yes := strings.CutSuffix(command, "&"); yes {
			// It is at work when it has said something, and then nothing for half a second.
			command = background + "&\nfor i in {1..60}; do said=$(stat -c %s " + printed + "); sleep 0.5; [ $said -gt 0 ] && [ $said = $(stat -c %s " + printed + ") ] && break; done"
		}
		fmt.Fprintf(in, "{ %s\n} >%s 2>&1 </dev/null; echo $?\n", command, printed)
		line, err := statuses.ReadString('\n')
		if err != nil {
			t.Fatalf("typing %q: the shell has ended: %v", command, err)
		}
		status, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			t.Fatalf("typing %q: %v", command, err)
		}
		said, err := os.ReadFile(printed)
		if err != nil {
			t.Fatal(err)
		}
		return string(said), status
	}
}

func link(t *testing.T, to, name string) {
	t.Helper()
	absolute, err := filepath.Abs(to)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(absolute, name); err != nil {
		t.Fatal(err)
	}
}
