// Command nth-queue drains Kubernetes nodes for EC2 interruptions that arrive in an SQS queue.
//
// It runs on any host, or in a pod, with an identity that may drain
// every node. The file run.go wires the packages of pkg into the service.
package main

import (
	"context"
	"os"

	"github.com/nth-project/nth/cmd/internal/logging"
	"github.com/nth-project/nth/cmd/internal/program"
)

func main() {
	os.Exit(service().Run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

func service() program.Program {
	version := program.CommandVersion("nth-queue", versionUsage)
	return program.Program{
		Name:    "nth-queue",
		Summary: "nth-queue drains Kubernetes nodes for EC2 interruptions that arrive in an SQS queue.",
		Notes: `Settings:       /etc/nth/nth-queue.toml and /etc/nth/nth-queue.toml.d/*.toml; "nth-queue config" shows them all
Exit statuses:  0 success, 64 usage error, 78 invalid configuration, 1 any other failure
`,
		Commands: []program.Command{
			{Name: "run", Summary: "drain nodes from an SQS queue", Usage: runUsage, Run: commandRun},
			{Name: "status", Summary: "show daemon status", Usage: statusUsage, Run: commandStatus},
			{Name: "check", Summary: "verify that nodes can be drained from the queue", Usage: checkUsage, Run: commandCheck},
			{Name: "config", Summary: "print or validate the configuration", Usage: configUsage, Run: commandConfig},
			{Name: "version", Summary: "print the version", Usage: versionUsage, Run: version},
		},
		Version:  version,
		Complain: logging.Complain("nth-queue"),
	}
}
