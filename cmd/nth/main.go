// Command nth drains its own Kubernetes node before EC2 takes the machine away.
//
// It is the only part of the project that reads arguments, the environment and signals, and that exits. The file
// run.go wires the packages of pkg into the daemon.
package main

import (
	"context"
	"os"

	"github.com/nth-project/nth/cmd/internal/logging"
	"github.com/nth-project/nth/cmd/internal/program"
)

func main() {
	os.Exit(nth().Run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// nth is the whole program but for its exit. Its commands are in the order of the help text.
func nth() program.Program {
	version := program.CommandVersion("nth", versionUsage)
	return program.Program{
		Name:    "nth",
		Summary: "nth drains its own Kubernetes node before EC2 takes the machine away.",
		Notes: `Settings:       /etc/nth/nth.toml and /etc/nth/nth.toml.d/*.toml; "nth config" shows them all
Exit statuses:  0 success, 64 usage error, 78 invalid configuration, 1 any other failure
`,
		Commands: []program.Command{
			{Name: "run", Summary: "watch for interruptions and drain this node", Usage: runUsage, Run: commandRun},
			{Name: "rehearse", Summary: "show what a spot interruption would do, change nothing", Usage: rehearseUsage, Run: commandRehearse},
			{Name: "drain", Summary: "drain this node now, or undo that", Usage: drainUsage, Run: commandDrain},
			{Name: "status", Summary: "show daemon status", Usage: statusUsage, Run: commandStatus},
			{Name: "check", Summary: "verify that this node can be drained", Usage: checkUsage, Run: commandCheck},
			{Name: "config", Summary: "print or validate the configuration", Usage: configUsage, Run: commandConfig},
			{Name: "version", Summary: "print the version", Usage: versionUsage, Run: version},
		},
		Hidden:   []program.Command{{Name: inRoot, Run: commandInRoot}, {Name: underParent, Run: commandUnderParent}},
		Version:  version,
		Complain: logging.Complain("nth"),
	}
}
