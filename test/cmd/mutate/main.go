// The mutate command changes packages one piece at a time and sees whether their tests notice: see test/tools/mutate. "make
// mutate" runs it. Its arguments are the packages' directories, from the top of the project.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/nth-project/nth/test/internal/cache"
	"github.com/nth-project/nth/test/tools/mutate"
)

func main() {
	top, err := cache.Top()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(2)
	}
	lists := filepath.Join(top, "test", "tools", "mutate")
	cfg := mutate.Config{Top: top, Out: os.Stdout}
	flag.IntVar(&cfg.Workers, "p", 2, "how many mutants run at once")
	flag.StringVar(&cfg.Only, "only", "", "run the mutants of this file or line only, as in fold.go:31")
	flag.BoolVar(&cfg.List, "list", false, "list the mutants, and run none")
	flag.Float64Var(&cfg.Threshold, "threshold", 90, "how many percent of a package's mutants must be noticed")
	flag.StringVar(&cfg.Survivors, "survivors", filepath.Join(lists, "survivors.txt"), "the list of accepted survivors")
	flag.StringVar(&cfg.Spared, "spared", filepath.Join(lists, "spared.txt"), "the list of code that is not changed")
	flag.Parse()
	if cfg.Packages = flag.Args(); len(cfg.Packages) == 0 {
		fmt.Fprintln(os.Stderr, "mutate: say which packages, as in pkg/policy")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	good, err := mutate.Run(ctx, cfg)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(2)
	}
	if !good {
		os.Exit(1)
	}
}
