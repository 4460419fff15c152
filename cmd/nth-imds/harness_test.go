package main_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/imds/imdstest"
)

// patience bounds every wait for something that must happen.
const patience = 30 * time.Second

// program is the command, built once for all tests.
var program string

func TestMain(m *testing.M) {
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	folder, err := os.MkdirTemp("", "nth-imds")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(folder)
	program = filepath.Join(folder, "nth-imds")
	build := exec.Command("go", "build", "-o", program, ".")
	if output, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building nth-imds: %v\n%s", err, output)
		return 1
	}
	return m.Run()
}

// call runs the program to its end.
func call(t *testing.T, env []string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	command := exec.CommandContext(ctx, program, args...)
	command.Env = append(os.Environ(), env...)
	var out, err bytes.Buffer
	command.Stdout, command.Stderr = &out, &err
	failure := command.Run()
	var exit *exec.ExitError
	if failure != nil && !errors.As(failure, &exit) {
		t.Fatalf("running %q: %v", args, failure)
	}
	return command.ProcessState.ExitCode(), out.String(), err.String()
}

// serving is a nth-imds that serves.
type serving struct {
	command *exec.Cmd
	url     string
	lines   chan string
}

func serve(t *testing.T, args ...string) *serving {
	t.Helper()
	command := exec.Command(program, append([]string{"--listen", "127.0.0.1:0"}, args...)...)
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill() // in vain if it has been stopped
		_ = command.Wait()
	})
	s := &serving{command: command, lines: make(chan string, 1000)}
	go func() {
		defer close(s.lines)
		for scanner := bufio.NewScanner(stdout); scanner.Scan(); {
			s.lines <- scanner.Text()
		}
	}()
	words := strings.Fields(s.line(t, "nth-imds serves"))
	s.url = words[len(words)-1]
	return s
}

// line returns the next line that contains text.
func (s *serving) line(t *testing.T, text string) string {
	t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case line, more := <-s.lines:
			if !more {
				t.Fatalf("the output ended without %q", text)
			}
			if strings.Contains(line, text) {
				return line
			}
		case <-timeout:
			t.Fatalf("no line with %q", text)
		}
	}
}

// stop ends the program with a signal and returns its exit status.
func (s *serving) stop(t *testing.T, signal os.Signal) int {
	t.Helper()
	if err := s.command.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	s.line(t, "stopped, after")
	_ = s.command.Wait()
	return s.command.ProcessState.ExitCode()
}

// tell calls the program against s, by the environment, and expects success.
func (s *serving) tell(t *testing.T, args ...string) string {
	t.Helper()
	status, stdout, stderr := call(t, []string{"NTH_IMDS=" + s.url}, args...)
	if status != 0 || stderr != "" {
		t.Fatalf("%q: status %d, %s", args, status, stderr)
	}
	return stdout
}

func (s *serving) state(t *testing.T) imdstest.State {
	t.Helper()
	state, err := imdstest.Client{URL: s.url}.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return state
}
