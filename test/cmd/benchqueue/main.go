// The benchqueue command measures nth-queue in storms of interruptions and prints the numbers beside their targets. "make
// bench-queue" runs it. Its one argument leaves out storms of another number of nodes.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/nth-project/nth/test/bench"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	klog.SetLogger(logr.Discard()) // client-go's words about its watches belong nowhere in the table
	only := 0
	if len(os.Args) > 1 {
		var err error
		if only, err = strconv.Atoi(os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, "benchqueue: the argument is a number of nodes:", err)
			os.Exit(2)
		}
	}
	if err := bench.RunQueue(ctx, os.Stdout, only); err != nil {
		fmt.Fprintln(os.Stderr, "benchqueue:", err)
		os.Exit(1)
	}
}
