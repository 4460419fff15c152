// Command nth-queue drains the Kubernetes nodes that an SQS queue tells of, before EC2 takes their machines away.
//
// It is for nodes that cannot speak for themselves: it runs on any host, or in a pod, with an identity that may drain
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
		Summary: "nth-queue drains the Kubernetes nodes that an SQS queue tells of, before EC2 takes their machines away.",
		Notes: `Settings:       /etc/nth/nth-queue.toml and /etc/nth/nth-queue.toml.d/*.toml; "nth-queue config" shows them all
Exit statuses:  0 as asked, 64 wrong usage, 78 wrong settings, 1 anything else
`,
		Commands: []program.Command{
			{Name: "run", Summary: "read the queue, and drain the nodes it tells of", Usage: runUsage, Run: commandRun},
			{Name: "status", Summary: "tell how the running nth-queue stands", Usage: statusUsage, Run: commandStatus},
			{Name: "check", Summary: "tell whether nth-queue can do its work here", Usage: checkUsage, Run: commandCheck},
			{Name: "config", Summary: "print the settings in effect, or judge them", Usage: configUsage, Run: commandConfig},
			{Name: "version", Summary: "print the version", Usage: versionUsage, Run: version},
		},
		Version:  version,
		Complain: logging.Complain("nth-queue"),
	}
}
