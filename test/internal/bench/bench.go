// Package bench measures nth against its targets, on the lab's control plane.
//
// What is measured is the program as it is shipped, run as a process with default settings and a kubelet's credential.
// Times are taken from a watch on the API server, never from nth's own words; memory and processor time are the
// kernel's. Nothing fails for being slow: the numbers stand beside their targets, for a person to judge. The machine's speed
// changes from minute to minute, so whatever is compared is measured in turns, and medians are printed.
//
// Each file holds one measurement; bench.go says in which order they are taken, table.go how they are printed.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/tools"
)

// How much is measured. All of it takes some minutes.
const (
	events  = 24               // interruptions, for the time until the cordon
	starts  = 11               // of nth, for the time until it is ready
	idleFor = 40 * time.Second // of polling, for memory, processor time and requests
)

// podsPerNode is the kubelet's default limit.
const podsPerNode = 110

// Run measures, tells progress line by line, and prints the table to out. base is a revision of this repository with which
// the present state is compared; empty compares it with none. Only the parts are measured in whose name only is. It ends early when
// ctx does.
func Run(ctx context.Context, out io.Writer, base, only string) error {
	editions := []edition{present}
	if base != "" {
		before, err := older(ctx, base, out)
		if err != nil {
			return err
		}
		editions = append(editions, before)
	}
	return inLab(ctx, out, func(t lab.TB) { measure(t, out, editions, only) })
}

// inLab starts the lab with the programs apart that are named, and measures. What is started keeps its files in one directory, which
// stays if a measurement has failed.
func inLab(ctx context.Context, out io.Writer, measure func(lab.TB), apart ...string) error {
	if err := tools.Build(ctx, out, apart...); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "nth-bench-")
	if err != nil {
		return fmt.Errorf("making a place for files: %w", err)
	}
	err = errors.Join(os.Setenv("TMPDIR", dir), lab.Run(ctx, out, measure))
	if err == nil || ctx.Err() != nil {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

func measure(t lab.TB, out io.Writer, editions []edition, only string) {
	began := time.Now()
	binary, err := daemon.Binary()
	if err != nil {
		t.Fatalf("%v", err)
	}
	fmt.Fprintf(out, "measuring nth on %d processors, load %s; some minutes\n", runtime.NumCPU(), loadNow())
	b := &bench{cp: lab.ForTest(t), editions: editions}
	for _, part := range []part{
		{"size of the program", func(t lab.TB) []row { return size(t, binary) }},
		{fmt.Sprintf("%d starts", starts), b.starting},
		{fmt.Sprintf("%d interruptions at random moments", events), b.reacting},
		{fmt.Sprintf("%.0f s of polling", idleFor.Seconds()), b.idling},
		b.drainsOf(usual),
		b.drainsOf(crowded),
	} {
		if !strings.Contains(part.what, only) {
			continue
		}
		partBegan := time.Now()
		fmt.Fprintf(out, "  %-36s", part.what)
		b.rows = append(b.rows, part.measure(t)...)
		fmt.Fprintf(out, "%5.1f s, load %s\n", time.Since(partBegan).Seconds(), loadNow())
	}
	fmt.Fprintf(out, "\n%s\nmeasured in %.0f s, load now %s\n", table(b.rows), time.Since(began).Seconds(), loadNow())
}

// A part is one measurement.
type part struct {
	what    string
	measure func(lab.TB) []row
}

// drainsOf is the measurement of drains of so many pods, by each edition and the bare client.
func (b *bench) drainsOf(l load) part {
	what := fmt.Sprintf("%d drains of %d pods", (len(b.editions)+1)*l.rounds, l.pods)
	return part{what, func(t lab.TB) []row { return b.draining(t, l) }}
}

// A bench is the lab, what is measured in it, and what was measured so far.
type bench struct {
	cp *lab.ControlPlane
	// editions are the present one and, if there is one, what it is compared with.
	editions []edition
	rows     []row
}

// loadNow is how busy the machine was in the last minute; with other work on it the numbers say little.
func loadNow() string {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Fields(string(data))[0]
}
