// The bench command measures nth and prints the numbers next to their targets: "make bench" runs it. With -compare it measures nth and
// aws-node-termination-handler ("make compare"), with -queue nth-queue in storms of interruptions ("make bench-queue"), and with -replay
// nth-queue in a day of spot preemptions that was recorded ("make replay").
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
	only := flag.String("only", "", "measure only what has this in its name, such as polling")
	base := flag.String("base", "", "the path of another build of nth, which cordons and drains in turns with this one")
	queue := flag.Bool("queue", false, "measure nth-queue in storms of interruptions instead")
	nodes := flag.Int("nodes", 0, "with -queue: only the cluster of so many nodes")
	traces := flag.String("replay", "", "replay the traces of this directory to nth-queue instead")
	histories := flag.String("histories", os.TempDir(), "with -replay: where to write what the simulation plays of them")
	flag.Parse()
	var err error
	switch {
	case *compare:
		err = bench.Compare(ctx, os.Stdout)
	case *queue:
		err = bench.RunQueue(ctx, os.Stdout, *nodes)
	case *traces != "":
		err = bench.Replay(ctx, os.Stdout, *traces, *histories)
	default:
		err = bench.Run(ctx, os.Stdout, *only, *base)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}
