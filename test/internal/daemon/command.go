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

// Command runs nth with the arguments to its end, as an operator would on the machine: with the environment of its daemon.
func (m *Machine) Command(t lab.TB, args ...string) Outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), lab.Patience)
	defer cancel()
	var stdout, stderr bytes.Buffer
	command := exec.CommandContext(ctx, m.binary, args...)
	command.Env = append(append(os.Environ(), "NOTIFY_SOCKET="), m.Environment()...)
	command.Stdout, command.Stderr = &stdout, &stderr
	err := command.Run()
	if _, ended := errors.AsType[*exec.ExitError](err); err != nil && (!ended || ctx.Err() != nil) {
		t.Fatalf("running nth %q: %v\n%s", args, err, stderr.String())
	}
	return Outcome{Status: command.ProcessState.ExitCode(), Stdout: stdout.String(), Stderr: stderr.String()}
}
