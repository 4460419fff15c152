// Command nth drains its own Kubernetes node before EC2 takes the machine away.
//
// The file wire.go connects the packages of pkg to the daemon.
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

// nth is the program on that host.
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

// commandStatus implements "nth status".
func (h hostInfo) commandStatus(_ context.Context, args []string, to program.Streams) error {
	return checks.StatusCommand("nth", statusUsage, args, to, func(path string) (string, error) { return h.runtimeDirectory(path, to.Err) })
}

// runtimeDirectory returns the directory of the daemon's status. Unless a file is named, invalid settings are no error: the daemon may
// be running with those that it had before.
func (h hostInfo) runtimeDirectory(path string, stderr io.Writer) (string, error) {
	cfg, err := h.settings().Files(path)
	if _, err = settings.Degraded(err); err != nil && path == "" {
		fmt.Fprintln(stderr, err)
		return program.DirectoryFrom("RUNTIME_DIRECTORY", config.Default().RuntimeDirectory), nil
	}
	return cfg.RuntimeDirectory, err
}

// inRoot is an internal command: "nth in-root ROOT COMMAND [ARGUMENT]..." finds and runs the kubeconfig's exec plugin in another root
// directory, which has its libraries and files.
const inRoot = "in-root"

// commandInRoot implements inRoot, and returns only if it fails.
func commandInRoot(_ context.Context, args []string, _ program.Streams) error {
	if len(args) < 2 {
		return program.UsageError{Message: "nth " + inRoot + " ROOT COMMAND [ARGUMENT]..."}
	}
	return fmt.Errorf("running %s in %s: %w", args[1], args[0], execIn(args[0], args[1:]))
}

func execIn(root string, command []string) error {
	if err := unix.Chroot(root); err != nil {
		return fmt.Errorf("changing the root directory: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}
	// The trusted authorities in the environment are for nth's own image.
	environment := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "SSL_CERT_") })
	return unix.Exec(path, command, environment)
}

// commandConfig implements "nth config".
func (h hostInfo) commandConfig(ctx context.Context, args []string, to program.Streams) error {
	return h.settings().Command(ctx, configUsage, false, args, to)
}

// settings describes where the settings come from.
func (h hostInfo) settings() settings.Program[config.Config, *config.Config] {
	return settings.Program[config.Config, *config.Config]{
		Name: "nth", Place: h.place(), Settle: h.settle,
		Root: func(cfg *config.Config) string { return cfg.HostRoot },
	}
}

// quietConfig reads the settings for a command that reports what it does itself: libraries are silenced, and faults in settings that
// only concern reporting are ignored.
func (h hostInfo) quietConfig(path string) (config.Config, error) {
	cfg, err := h.settings().Files(path)
	if _, fatal := settings.Degraded(err); fatal != nil {
		return config.Config{}, err
	}
	return cfg, checks.Hush()
}
