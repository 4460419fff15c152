package bench

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/docs"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/tools"
)

// place is where a page has the comparison.
var place = docs.Part{Name: "nth and the handler", Command: "make compare WRITE=1"}

// How much is compared. All of it takes some five minutes.
const (
	comparedEvents = 24
	comparedDrains = 3
)

// A Figure is what was measured of one program.
type Figure struct {
	Cordon, Slowest float64 // seconds from the notice to the cordon: the median and the longest
	Drain           float64 // seconds from the cordon until the last pod is gone, the median
	Idle, Peak      float64 // MB that it occupies: before a drain, and at most
	Size            float64 // MB of the program's file
}

// A Comparison is nth and aws-node-termination-handler, measured in turns on one machine.
type Comparison struct {
	Release      string // of the handler
	Nth, Handler Figure
	Processors   int
}

// Table is the comparison in Markdown.
func (c Comparison) Table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| | nth | aws-node-termination-handler %s, IMDS mode |\n|---|--:|--:|\n", c.Release)
	row := func(what, format string, of func(Figure) []any) {
		fmt.Fprintf(&b, "| %s | "+format+" | "+format+" |\n", append(append([]any{what}, of(c.Nth)...), of(c.Handler)...)...)
	}
	row(fmt.Sprintf("from the notice to the cordon: median of %d (longest)", comparedEvents), "%.2f s (%.2f s)",
		func(f Figure) []any { return []any{f.Cordon, f.Slowest} })
	row(fmt.Sprintf("from the cordon until %d pods are gone: median of %d", podsPerNode, comparedDrains), "%.1f s",
		func(f Figure) []any { return []any{f.Drain} })
	row("resident memory: watching (most during that drain)", "%.0f MB (%.0f MB)", func(f Figure) []any { return []any{f.Idle, f.Peak} })
	row("program", "%.0f MB", func(f Figure) []any { return []any{f.Size} })
	fmt.Fprintf(&b, "\nBoth with their own defaults, in turns, on one machine with %d processors, a real API server, and pods that end at once.\n", c.Processors)
	return b.String()
}

// Beside measures nth and the handler, prints the comparison to out and, if a page is named, writes it there.
func Beside(ctx context.Context, out io.Writer, page string) error {
	release, err := tools.Version("handler")
	if err != nil {
		return err
	}
	c := Comparison{Release: release, Processors: runtime.NumCPU()}
	if err := inLab(ctx, out, func(t lab.TB) { compare(t, out, &c) }, "handler"); err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%s\nload now %s\n", c.Table(), loadNow())
	if page == "" {
		return nil
	}
	return place.Write(page, c.Table())
}

func compare(t lab.TB, out io.Writer, c *Comparison) {
	fmt.Fprintf(out, "measuring nth and the handler on %d processors, load %s; some minutes\n", c.Processors, loadNow())
	b := &bench{cp: lab.ForTest(t), editions: []edition{present}}
	b.compareSizes(t, c)
	b.compareReactions(t, c)
	b.compareDrains(t, c)
}

func (b *bench) compareSizes(t lab.TB, c *Comparison) {
	ours, err := daemon.Binary()
	if err != nil {
		t.Fatalf("%v", err)
	}
	theirs, err := tools.Path("node-termination-handler")
	if err != nil {
		t.Fatalf("%v", err)
	}
	for path, figure := range map[string]*Figure{ours: &c.Nth, theirs: &c.Handler} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatalf("measuring the program: %v", err)
		}
		figure.Size = float64(info.Size()) / 1e6
	}
}

func (b *bench) compareReactions(t lab.TB, c *Comparison) {
	ours, theirs := b.watcher(t, present), b.handle(t)
	cordoned, stop := cordons(t, theirs.node)
	var first, second sample
	for i := range comparedEvents {
		first = append(first, ours.react(t, i))
		second = append(second, theirs.react(t, cordoned))
	}
	stop()
	theirs.stop()
	ours.stop()
	ours.nth.Stop(t)
	c.Nth.Cordon, c.Nth.Slowest = first.median(), first.worst()
	c.Handler.Cordon, c.Handler.Slowest = second.median(), second.worst()
}

func (b *bench) compareDrains(t lab.TB, c *Comparison) {
	var first, second sample
	for range comparedDrains {
		took, used := b.drainWatched(t, podsPerNode)
		first = append(first, took)
		c.Nth.Idle, c.Nth.Peak = used.now, max(c.Nth.Peak, used.peak)
		took, used = b.drainByHandler(t, podsPerNode)
		second = append(second, took)
		c.Handler.Idle, c.Handler.Peak = used.now, max(c.Handler.Peak, used.peak)
	}
	c.Nth.Drain, c.Handler.Drain = first.median(), second.median()
}

// drainWatched is a drain by nth, which was left alone before for as long as the handler is.
func (b *bench) drainWatched(t lab.TB, pods int) (took time.Duration, used resident) {
	t.Helper()
	h := b.host(t, present, "")
	h.node.AddPods(t, "pod", pods)
	nth := h.start(t)
	time.Sleep(settles)
	used = memory(t, nth.PID())
	span := watchSpan(t, h.node, pods)
	h.imds.SetSpot("terminate", time.Now().Add(2*time.Minute))
	took = span.wait(t)
	used.peak = memory(t, nth.PID()).peak
	nth.Stop(t)
	return took, used
}
