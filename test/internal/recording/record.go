// Package recording draws what a command prints as a picture of a terminal: an SVG that plays what was said at the moments at which
// it was said, and shows the end where nothing is played.
//
// record.go runs the command, draw.go draws, and read.go gets the lines out of a picture again, so that a test can tell whether the
// command still says the same.
package recording

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// A Line is what was printed in one line.
type Line struct {
	At   time.Duration // since the command was started
	Text string
}

// Record runs a command to its end, on whose terminal nobody asked for colours, and returns what it has printed.
func Record(ctx context.Context, program string, args ...string) (lines []Line, err error) {
	command := exec.CommandContext(ctx, program, args...)
	command.Env, command.Stderr = append(os.Environ(), "TERM=dumb"), os.Stderr
	out, err := command.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("recording %s: %w", command, err)
	}
	began := time.Now()
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("recording %s: %w", command, err)
	}
	lines, read := note(out, began)
	if err := command.Wait(); err != nil {
		return nil, fmt.Errorf("recording %s: %w", command, err)
	}
	if read != nil {
		return nil, fmt.Errorf("recording %s: %w", command, read)
	}
	return lines, nil
}

func note(out io.Reader, began time.Time) (lines []Line, err error) {
	scanner := bufio.NewScanner(out)
	for scanner.Scan() {
		lines = append(lines, Line{At: time.Since(began), Text: scanner.Text()})
	}
	return lines, scanner.Err()
}
