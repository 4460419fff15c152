// Package bench measures nth and nth-queue against their targets, on the lab's control plane.
//
// What is measured is the program as it is shipped, run as a process with default settings and a kubelet's credential.
// Times are taken from a watch on the API server, never from nth's own words; memory and processor time are the
// kernel's. Nothing fails for being slow: the numbers stand beside their targets, for the reader to judge. The machine's speed
// changes from minute to minute, so whatever is compared is measured in turns, and medians are printed.
//
// nth.go measures nth, queue.go nth-queue, replay.go that in a recorded day, and handler.go nth beside aws-node-termination-handler.
package bench

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/nth-project/nth/test/internal/lab"
)

// A part is one measurement.
type part struct {
	what    string
	measure func(lab.TB) []row
}

// run takes the parts in whose name only is, and prints their table.
func run(t lab.TB, only string, parts ...part) {
	t.Helper()
	fmt.Printf("measuring on %d processors, load %s; some minutes\n", runtime.NumCPU(), loadNow())
	var rows []row
	for _, p := range parts {
		if !strings.Contains(p.what, only) {
			continue
		}
		began := time.Now()
		fmt.Printf("  %-36s", p.what)
		rows = append(rows, p.measure(t)...)
		fmt.Printf("%5.1f s, load %s\n", time.Since(began).Seconds(), loadNow())
	}
	fmt.Printf("\n%s\nload now %s\n", table(rows), loadNow())
}

// loadNow is how busy the machine was in the last minute; with other work on it the numbers say little.
func loadNow() string {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Fields(string(data))[0]
}

// A sample is the same thing measured several times.
type sample []time.Duration

// median is the middle one, in seconds, or the mean of the two in the middle.
func (s sample) median() float64 {
	sorted := slices.Sorted(slices.Values(s))
	n := len(sorted)
	if n == 0 {
		return 0
	}
	return (sorted[(n-1)/2] + sorted[n/2]).Seconds() / 2
}

// worst is the longest, in seconds.
func (s sample) worst() float64 { return slices.Max(append(s, 0)).Seconds() }

// A row is one number beside its target.
type row struct {
	what     string
	measured float64
	// target is the most that is wanted; 0 where there is only something to compare with.
	target float64
	unit   string // as in "s" or "MB"
	digits int    // after the point
}

// table prints rows, aligned, each with the ratio of measured to target: less than 1 is good.
func table(rows []row) string {
	var b strings.Builder
	line := func(args ...any) {
		fmt.Fprintln(&b, strings.TrimRight(fmt.Sprintf("%-46s %12s %14s  %s", args...), " "))
	}
	line("", "measured     ", "target     ", "ratio")
	for _, r := range rows {
		number := func(n float64) string { return fmt.Sprintf("%.*f %-5s", r.digits, n, r.unit) }
		target, ratio := "", ""
		if r.target != 0 {
			target, ratio = "≤ "+number(r.target), fmt.Sprintf("%.2f", r.measured/r.target)
		}
		if r.target != 0 && r.measured > r.target {
			ratio += "  over"
		}
		line(r.what, number(r.measured), target, ratio)
	}
	return b.String()
}
