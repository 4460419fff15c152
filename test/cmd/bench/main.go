// The bench command measures nth and prints the numbers next to their targets, and to those of an older revision if one is
// named: "make bench" runs it. With -compare it measures nth and aws-node-termination-handler: "make compare" runs that. With
// -queue it measures nth-queue in storms of interruptions, and with -growth in clusters of growing size: "make bench-queue".
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
	queue := flag.Bool("queue", false, "measure nth-queue in storms of interruptions instead")
	growth := flag.Bool("growth", false, "measure nth-queue in clusters of growing size instead")
	nodes := flag.Int("nodes", 0, "with -queue and -growth: only the storms, or the cluster, of so many nodes")
	flag.Parse()
	var err error
	switch {
	case *compare:
		err = bench.Beside(ctx, os.Stdout, *table)
	case *growth:
		err = bench.RunGrowth(ctx, os.Stdout, *nodes)
	case *queue:
		err = bench.RunQueue(ctx, os.Stdout, *nodes)
	default:
		err = bench.Run(ctx, os.Stdout, flag.Arg(0), *only)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}
