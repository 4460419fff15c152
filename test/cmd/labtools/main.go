// The labtools command builds the programs that the lab runs, where they are
// missing: etcd, the Kubernetes control plane, kubectl and kwok; and those that
// its arguments name ("kubelet", "containerd", "packer", "packer-amazon",
// "fauxqs").
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/nth-project/nth/test/tools"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := tools.Build(ctx, os.Stdout, os.Args[1:]...); err != nil {
		fmt.Fprintln(os.Stderr, "labtools:", err)
		os.Exit(1)
	}
}
