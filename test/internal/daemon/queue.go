package daemon

import (
	"fmt"
	"os/exec"
	"syscall"

	"github.com/nth-project/nth/test/internal/lab"
)

// QueueOptions say how nth-queue is run.
type QueueOptions struct {
	// Kubeconfig is that of an identity which may drain every node; URL is the queue's, and Endpoint AWS's.
	Kubeconfig, URL, Endpoint string
	// Settings is the text of a drop-in, which overrides everything else.
	Settings string
	// Env is added to the environment, in which there are an access key and its secret.
	Env []string
}

// StartQueue starts nth-queue as a process of its own. It ends with the test at the latest.
func StartQueue(t lab.TB, opts QueueOptions) *Daemon {
	t.Helper()
	binary, err := QueueBinary()
	if err != nil {
		t.Fatalf("%v", err)
	}
	m := newDirectory(t)
	m.settle(t, fmt.Sprintf("[log]\nformat = \"json\"\n[kubernetes]\nkubeconfig = %q\n[queue]\nurl = %q\n", opts.Kubeconfig, opts.URL), opts.Settings)
	cmd := exec.Command(binary, "run", "--config", m.ConfigFile())
	cmd.Env = append([]string{
		"STATE_DIRECTORY=" + m.StateDirectory(), "RUNTIME_DIRECTORY=" + m.file("run"), "AWS_REGION=eu-central-1", "AWS_ENDPOINT_URL=" + opts.Endpoint,
		"AWS_ACCESS_KEY_ID=AKIDEXAMPLE0000001", "AWS_SECRET_ACCESS_KEY=secret", "AWS_SESSION_TOKEN=token", "AWS_EC2_METADATA_DISABLED=true",
	}, opts.Env...)
	d := m.launch(t, "nth-queue", cmd)
	t.Cleanup(func() {
		if t.Failed() {
			d.dump()
		}
	})
	return d
}

// Ask runs another command of a daemon's program with the same settings, and returns what it says.
func (d *Daemon) Ask(command string) (string, error) {
	ask := exec.Command(d.cmd.Path, append([]string{command}, d.cmd.Args[2:]...)...)
	ask.Env = d.cmd.Env
	said, err := ask.CombinedOutput()
	return string(said), err
}

// dump makes a daemon that runs write where each of its goroutines is, and end.
func (d *Daemon) dump() {
	select {
	case <-d.done:
	default:
		_ = d.cmd.Process.Signal(syscall.SIGQUIT) // fails only when it has just ended
		<-d.done
	}
}
