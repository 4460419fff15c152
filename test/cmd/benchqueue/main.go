// The benchqueue command measures nth-queue in storms of interruptions and prints the numbers beside their targets. "make
// bench-queue" runs it. Its one argument leaves out storms of another number of nodes. With -growth it measures what nth-queue
// costs in clusters of growing size, and the argument is that of one.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/nth-project/nth/test/internal/bench"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	klog.SetLogger(logr.Discard()) // client-go's words about its watches belong nowhere in the table
	growth := flag.Bool("growth", false, "measure clusters of growing size")
	flag.Parse()
	only, measure := 0, bench.RunQueue
	if *growth {
		measure = bench.RunGrowth
	}
	if flag.NArg() > 0 {
		var err error
		if only, err = strconv.Atoi(flag.Arg(0)); err != nil {
			fmt.Fprintln(os.Stderr, "benchqueue: the argument is a number of nodes:", err)
			os.Exit(2)
		}
	}
	if err := measure(ctx, os.Stdout, only); err != nil {
		fmt.Fprintln(os.Stderr, "benchqueue:", err)
		os.Exit(1)
	}
}
