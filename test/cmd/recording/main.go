// The recording command records "nth rehearse" and draws it into the file that is named: "make recording" runs it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/recording"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := record(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "recording:", err)
		os.Exit(1)
	}
}

func record(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("want the file to draw into, got %q", args)
	}
	binary, err := daemon.Binary()
	if err != nil {
		return err
	}
	lines, err := recording.Record(ctx, binary, "rehearse")
	if err != nil {
		return err
	}
	return os.WriteFile(args[0], recording.Draw("bin/nth rehearse", lines), 0o644)
}
