// Command nth drains its own Kubernetes node before EC2 takes the machine away.
//
// It is the only part of the project that reads arguments, the environment and signals, and that exits. The file
// wire.go wires the packages of pkg into the daemon.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nth-project/nth/cmd/internal/checks"
	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/cmd/internal/settings"
	"github.com/nth-project/nth/pkg/config"
)

func main() {
	os.Exit(nth(detectHost()).Run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// nth is the whole program but for its exit, on that host. Its commands are in the order of the help text.
func nth(host hostInfo) program.Program {
	version := program.CommandVersion("nth", versionUsage)
	return program.Program{
		Name:    "nth",
		Summary: "nth drains its own Kubernetes node before EC2 takes the machine away.",
		Notes: `Settings:       /etc/nth/nth.toml and /etc/nth/nth.toml.d/*.toml; "nth config" shows them all
Exit statuses:  0 success, 64 usage error, 78 invalid configuration, 1 any other failure
`,
		Commands: []program.Command{
			{Name: "run", Summary: "watch for interruptions and drain this node", Usage: runUsage, Run: host.commandRun},
			{Name: "rehearse", Summary: "show what a spot interruption would do, change nothing", Usage: rehearseUsage, Run: host.commandRehearse},
			{Name: "drain", Summary: "drain this node now, or undo that", Usage: drainUsage, Run: host.commandDrain},
			{Name: "status", Summary: "show daemon status", Usage: statusUsage, Run: host.commandStatus},
			{Name: "check", Summary: "verify that this node can be drained", Usage: checkUsage, Run: host.commandCheck},
			{Name: "config", Summary: "print or validate the configuration", Usage: configUsage, Run: host.commandConfig},
			{Name: "version", Summary: "print the version", Usage: versionUsage, Run: version},
		},
		Hidden:   []program.Command{{Name: inRoot, Run: commandInRoot}, {Name: underParent, Run: host.commandUnderParent}},
		Version:  version,
		Complain: daemon.Complain("nth"),
	}
}

const runUsage = `Usage: nth run [--config FILE] [--dry-run]

Watches what EC2 announces for this machine, and cordons and drains its Kubernetes node in time.
Runs until it gets SIGTERM or SIGINT; a second one ends it at once.

  --config FILE  read FILE and FILE.d/*.toml instead of /etc/nth/nth.toml and /etc/nth/nth.toml.d/*.toml
  --dry-run      log what would be done, but write nothing to the cluster
`

const rehearseUsage = `Usage: nth rehearse [--config FILE] [--deadline DURATION] [--kubeconfig FILE]

Shows what nth does when EC2 takes this machine back, with the settings in effect: a stand-in for the metadata service
gives a spot notice, and nth acts upon it, with all that it says and when. It ends when the node is drained. It needs no
rights, and changes nothing: on a node it looks at that node, as a dry run, and where there is none, the cluster is made
up. The status is 0 if the node was drained in time, or need not be by the settings, and 1 if not.

  --config FILE        read FILE and FILE.d/*.toml instead of /etc/nth/nth.toml and /etc/nth/nth.toml.d/*.toml
  --deadline DURATION  how long the notice is, 5s to 2m; EC2 gives 2m
  --kubeconfig FILE    look at the node whose kubelet has this kubeconfig
`

const drainUsage = `Usage: nth drain [--config FILE] [--deadline DURATION] [--undo]

Cordons and drains this node, for people and for what patches machines: as nth does, with the kubelet's identity and the
settings of [drain], and whether the service runs or not. It respects disruption budgets to the end, and deletes nothing.
The node stays closed, also over reboots, until --undo takes that back; the service does not open it. The status is 0 if
the node is drained, and 1 if not: its time was over, someone uncordoned the node or wants the pods left alone, or it
was interrupted. What was done stands then. It needs root's rights, as nth does.

  --config FILE        read FILE and FILE.d/*.toml instead of /etc/nth/nth.toml and /etc/nth/nth.toml.d/*.toml
  --deadline DURATION  give up after so long; 10m if it is not given
  --undo               take back what "nth drain" has set, and nothing else; 0 if nothing of it is there any more
`

const statusUsage = `Usage: nth status [--config FILE] [--json]

Shows the daemon's status: what it is doing, what is announced, how the metadata service answers, with whose
identity it acts, and what is switched off and why. The exit status is 0 if it is running, and 1 if it is
not, or hangs; the last known state is printed then.

  --config FILE  read FILE and FILE.d/*.toml to find the runtime directory
  --json         print it for programs
`

const checkUsage = `Usage: nth check [--config FILE] [--offline] [--webhook]

Checks everything that nth needs to drain this node, one line each: "ok", "warn" for what deserves a look, and "fail"
for what would keep nth from working. Nothing is changed, on the node or on this machine. The exit status is 0
without a "fail", 1 with one, and 78 if the configuration is invalid. It needs root's rights, as nth does.

  --config FILE  read FILE and FILE.d/*.toml instead of /etc/nth/nth.toml and /etc/nth/nth.toml.d/*.toml
  --offline      check what is there while an image is baked: no cluster, no metadata service, no logind
  --webhook      post a message to the webhook, marked as a test
`

const configUsage = `Usage: nth config [--config FILE] [--check]
       nth config import [--secrets DIR] FILE

Prints the settings in effect, all of them, as a valid configuration file. With import, it turns the settings of
aws-node-termination-handler into those of nth and prints them: FILE holds its environment ("NAME=value" lines), the
values of its Helm chart, or its DaemonSet ("kubectl get daemonset -o yaml"),
with the ConfigMaps and Secrets that it takes settings from, behind lines "---"; "-" is standard input. What comes of it is
judged before it is printed: status 78 and one line for each fault if anything cannot be taken over as it is.

  --config FILE  read FILE and FILE.d/*.toml instead of /etc/nth/nth.toml and /etc/nth/nth.toml.d/*.toml
  --check        only validate it, with the service's credentials: one line for each file that was read or ignored, and
                 status 78 if anything is wrong
  --secrets DIR  put the webhook's address and headers into files of mode 0600 in DIR; without it, they are named only
`

const versionUsage = `Usage: nth version

Prints the version of nth, the commit it was built from, and what it was built with.
`

// commandStatus is "nth status".
func (s hostInfo) commandStatus(_ context.Context, args []string, to program.Streams) error {
	return checks.StatusCommand("nth", statusUsage, args, to, func(path string) (string, error) { return s.runtimeDirectory(path, to.Err) })
}

// runtimeDirectory is where the daemon shows its status. Without a file that was asked for, settings that are wrong do
// not keep anybody from the status of a daemon that runs with those it had before.
func (s hostInfo) runtimeDirectory(path string, stderr io.Writer) (string, error) {
	cfg, err := s.settings().Files(path)
	if _, err = settings.Degraded(err); err != nil && path == "" {
		fmt.Fprintln(stderr, err)
		return program.DirectoryFrom("RUNTIME_DIRECTORY", config.Default().RuntimeDirectory), nil
	}
	return cfg.RuntimeDirectory, err
}

// inRoot is a command for nth's own use, and in no help: "nth in-root ROOT COMMAND [ARGUMENT]...". By it the kubeconfig's
// exec plugin is looked for and run where another root directory has what it is linked with and what it reads.
const inRoot = "in-root"

// commandInRoot becomes the command, below the root.
func commandInRoot(_ context.Context, args []string, _ program.Streams) error {
	if len(args) < 2 {
		return program.UsageError{Message: "nth " + inRoot + " ROOT COMMAND [ARGUMENT]..."}
	}
	root, command := args[0], args[1:]
	if err := unix.Chroot(root); err != nil {
		return fmt.Errorf("running %s in %s: changing the root directory: %w", command[0], root, err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("running %s in %s: %w", command[0], root, err)
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return fmt.Errorf("running %s in %s: %w", command[0], root, err)
	}
	// Which authorities are to be trusted is said for the image that nth is in.
	environment := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "SSL_CERT_") })
	if err := unix.Exec(path, command, environment); err != nil {
		return fmt.Errorf("running %s in %s: %w", command[0], root, err)
	}
	return nil
}

// commandConfig is "nth config".
func (s hostInfo) commandConfig(ctx context.Context, args []string, to program.Streams) error {
	return s.settings().Command(ctx, configUsage, false, args, to)
}

// settings is how nth comes to its settings.
func (s hostInfo) settings() settings.Program[config.Config, *config.Config] {
	return settings.Program[config.Config, *config.Config]{
		Name: "nth", Place: s.place(), Settle: s.settle,
		Root: func(cfg *config.Config) string { return cfg.HostRoot },
	}
}

// quietConfig reads the settings for a command that acts, and tells what it does itself: what only tells others may be degraded, and the
// libraries say nothing beside it.
func (s hostInfo) quietConfig(path string) (config.Config, error) {
	cfg, err := s.settings().Files(path)
	if _, fatal := settings.Degraded(err); fatal != nil {
		return config.Config{}, err
	}
	return cfg, checks.Hush()
}
