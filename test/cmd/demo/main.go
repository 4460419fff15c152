// The demo command lets a person watch nth drain a node that EC2 takes back. "make demo" runs it.
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

	"github.com/nth-project/nth/test/demo"
)

func main() {
	keep := flag.Bool("keep", false, "leave the cluster running at the end, until Ctrl-C")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	klog.SetLogger(logr.Discard()) // client-go's words about its watches belong nowhere on the page
	os.Exit(run(ctx, *keep))
}

// run gives the demo and returns the exit status.
func run(ctx context.Context, keep bool) int {
	err := demo.Run(ctx, demo.Options{Out: os.Stdout, Keep: keep})
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "\ndemo: interrupted; everything that was started is gone")
		return 128 + int(syscall.SIGINT)
	default:
		fmt.Fprintln(os.Stderr, "demo:", err)
		return 1
	}
}
