// The bench command measures nth and prints the numbers beside their targets, and beside those of an older revision if one is
// named. "make bench" runs it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/nth-project/nth/test/bench"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	klog.SetLogger(logr.Discard()) // client-go's words about its watches belong nowhere in the table
	base := ""
	if len(os.Args) > 1 {
		base = os.Args[1]
	}
	if err := bench.Run(ctx, os.Stdout, base); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}
