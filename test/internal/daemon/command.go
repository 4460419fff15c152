package daemon

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"

	"github.com/nth-project/nth/test/internal/lab"
)

// Outcome is what became of a command that has ended by itself.
type Outcome struct {
	Status         int
	Stdout, Stderr string
}

// Command runs nth with the arguments to its end, as a person would. It fails the test if nth goes on running.
func Command(t lab.TB, args ...string) Outcome {
	t.Helper()
	return run(t, nil, args)
}

// Command runs nth on the machine, with its settings and the environment of its daemon.
func (m *Machine) Command(t lab.TB, args ...string) Outcome {
	t.Helper()
	return run(t, m.Environment(), append(args, "--config", m.ConfigFile()))
}

func run(t lab.TB, environment, args []string) Outcome {
	t.Helper()
	binary, err := Binary()
	if err != nil {
		t.Fatalf("%v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var stdout, stderr bytes.Buffer
	command := exec.CommandContext(ctx, binary, args...)
	command.Env = append(append(os.Environ(), "NOTIFY_SOCKET="), environment...)
	command.Stdout, command.Stderr = &stdout, &stderr
	err = command.Run()
	if _, ended := errors.AsType[*exec.ExitError](err); err != nil && (!ended || ctx.Err() != nil) {
		t.Fatalf("running nth %q: %v\n%s", args, err, stderr.String())
	}
	return Outcome{Status: command.ProcessState.ExitCode(), Stdout: stdout.String(), Stderr: stderr.String()}
}
