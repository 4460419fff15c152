package main_test

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

func TestSignal_TheSecondEndsNthAtOnce(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(signal.String(), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			program := exec.CommandContext(ctx, os.Args[0])
			program.Env = append(os.Environ(), asProgram+"=stubborn")
			out, err := program.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := program.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			for _, want := range []string{"watching", "stopping: " + signal.String() + " signal received"} {
				if !lines.Scan() || lines.Text() != want {
					t.Fatalf("got %q, want %q", lines.Text(), want)
				}
				_ = program.Process.Signal(signal)
			}
			go func() { // It may take a moment until the next signal counts. Go's runtime does not survive a flood of them.
				for program.Process.Signal(signal) == nil {
					time.Sleep(20 * time.Millisecond)
				}
			}()
			_ = program.Wait()
			if status, ok := program.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != signal {
				t.Errorf("ended with %v", program.ProcessState)
			}
		})
	}
}
