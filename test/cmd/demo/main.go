// The demo command lets a person watch nth drain a node that EC2 takes back: "make demo" runs it. With -lose it shows
// how many requests are lost with a node, with nth and without: "make node" runs that.
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

	"github.com/nth-project/nth/test/internal/demo"
)

func main() {
	keep := flag.Bool("keep", false, "leave the cluster running at the end, until Ctrl-C")
	lose := flag.Bool("lose", false, "count the requests that are lost with a node of real containers")
	table := flag.String("table", "", "with -lose: the page that the table is written into")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	klog.SetLogger(logr.Discard()) // client-go's words about its watches belong nowhere on the page
	give := func() error { return demo.Run(ctx, demo.Options{Out: os.Stdout, Keep: *keep}) }
	if *lose {
		give = func() error { return demo.Lose(ctx, demo.Options{Out: os.Stdout}, *table) }
	}
	os.Exit(run(ctx, give))
}

// run gives the demo and returns the exit status.
func run(ctx context.Context, give func() error) int {
	err := give()
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
