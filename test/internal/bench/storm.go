package bench

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/region"
	"github.com/nth-project/nth/test/internal/storm"
)

// stormOf is a size of a storm, and the most that is wanted for it, in seconds; 0 where only the control plane is a limit.
type stormOf struct {
	nodes, pods  int
	rounds       int
	cordon, gone float64
}

var storms = []stormOf{{30, 10, 3, 1.5, 2.5}, {100, 10, 1, 3, 5}, {300, 30, 1, 0, 0}}

// RunQueue measures nth-queue in storms of interruptions, and prints the table to out. only leaves out storms of another
// number of nodes; 0 leaves out none. It ends early when ctx does.
func RunQueue(ctx context.Context, out io.Writer, only int) error {
	return inLab(ctx, out, func(t lab.TB) { measureQueue(t, out, only) }, "fauxqs")
}

// RunGrowth does so in clusters of growing size. only takes a cluster of that size alone.
func RunGrowth(ctx context.Context, out io.Writer, only int) error {
	return inLab(ctx, out, func(t lab.TB) { measureGrowth(t, out, only) }, "fauxqs")
}

func measureQueue(t lab.TB, out io.Writer, only int) {
	began := time.Now()
	fmt.Fprintf(out, "measuring nth-queue on %d processors, load %s\n", runtime.NumCPU(), loadNow())
	b := &bench{cp: lab.ForTest(t)}
	for _, size := range storms {
		if only > 0 && size.nodes != only {
			continue
		}
		sizeBegan := time.Now()
		fmt.Fprintf(out, "  %3d nodes of %2d pods, %d times each ", size.nodes, size.pods, size.rounds)
		b.rows = append(b.rows, b.storming(t, size)...)
		fmt.Fprintf(out, "%5.1f s, load %s\n", time.Since(sizeBegan).Seconds(), loadNow())
	}
	fmt.Fprintf(out, "\n%s\nmeasured in %.0f s, load now %s\n", table(b.rows), time.Since(began).Seconds(), loadNow())
}

// course is how long the parts of storms took, from before the first message or request: until the last cordon, until
// the last pod was told to go, and until it was gone.
type course struct{ cordon, told, gone sample }

func (c *course) add(began time.Time, last storm.Times) {
	c.cordon = append(c.cordon, last.Cordoned.Sub(began))
	c.told = append(c.told, last.Told.Sub(began))
	c.gone = append(c.gone, last.Gone.Sub(began))
}

// storming measures storms of one size, by nth-queue with default settings and by the bare client in turns.
func (b *bench) storming(t lab.TB, size stormOf) []row {
	var queue, floor course
	var peak float64
	var used time.Duration
	for range size.rounds {
		most, took := b.stormByQueue(t, size, &queue)
		peak, used = max(peak, most), max(used, took)
		b.stormByFloor(t, size, &floor)
	}
	const bare = "      a bare client"
	return []row{
		{fmt.Sprintf("%d nodes of %d pods: last cordon", size.nodes, size.pods), queue.cordon.median(), size.cordon, "s", 2},
		{bare, floor.cordon.median(), 0, "s", 2},
		{"    last pod told to go", queue.told.median(), 0, "s", 2},
		{bare, floor.told.median(), 0, "s", 2},
		{"    last pod gone", queue.gone.median(), size.gone, "s", 2},
		{bare, floor.gone.median(), 0, "s", 2},
		{"    resident memory, peak", peak, 0, "MB", 1},
		{"    processor", used.Seconds(), 0, "s", 2},
	}
}

// stormByQueue adds how long nth-queue took, from before the first message was sent, and returns the most memory that it occupied,
// in MB, and the processor time that it used.
func (b *bench) stormByQueue(t lab.TB, size stormOf, took *course) (peak float64, used time.Duration) {
	r := region.New(t)
	s := storm.New(t, b.cp, r, size.nodes, size.pods)
	consumer := daemon.StartQueue(t, daemon.QueueOptions{Kubeconfig: b.cp.Kubeconfig, URL: r.QueueURL, Endpoint: r.URL})
	consumer.WaitStatus(t, "reading the queue")
	seen := s.Watch(t)
	began := time.Now()
	r.Send(t, s.Messages()...)
	took.add(began, seen.Wait(t))
	r.WaitEmpty(t)
	peak, used = memory(t, consumer.PID()).peak, processor(t, consumer.PID())
	consumer.Stop(t)
	s.Remove(t)
	return peak, used
}

func (b *bench) stormByFloor(t lab.TB, size stormOf, took *course) {
	s := storm.New(t, b.cp, region.New(t), size.nodes, size.pods)
	seen := s.Watch(t)
	began := time.Now()
	if err := s.Floor(t.Context(), b.cp.Kubeconfig, size.nodes*size.pods); err != nil {
		t.Fatalf("draining with the bare client: %v", err)
	}
	took.add(began, seen.Wait(t))
	s.Remove(t)
}
