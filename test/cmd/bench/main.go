// The bench command measures nth and prints the numbers next to their targets, and to those of an older revision if one is
// named: "make bench" runs it. With -compare it measures nth and aws-node-termination-handler: "make compare" runs that.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/nth-project/nth/test/internal/bench"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	klog.SetLogger(logr.Discard()) // client-go's words about its watches belong nowhere in the table
	compare := flag.Bool("compare", false, "measure nth and aws-node-termination-handler instead")
	table := flag.String("table", "", "with -compare: the page that the table is written into")
	only := flag.String("only", "", "measure only what has this in its name, such as polling")
	flag.Parse()
	measure := func() error { return bench.Run(ctx, os.Stdout, flag.Arg(0), *only) }
	if *compare {
		measure = func() error { return bench.Beside(ctx, os.Stdout, *table) }
	}
	if err := measure(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}
