package bench

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/region"
	"github.com/nth-project/nth/test/internal/storm"
	"github.com/nth-project/nth/test/internal/trace"
)

// grace is what a pod of a replay takes to end.
const grace = 30 * time.Second

// Replay lets the busiest day of a directory of traces happen to nth-queue, and prints to out what was drained in time. Each preemption takes a
// node of its own, which is there from the beginning. It writes the day of each trace into histories, for pkg/internal/simulation.
func Replay(ctx context.Context, out io.Writer, dir, histories string) error {
	traces, err := trace.Read(dir)
	if err != nil {
		return err
	}
	day := trace.Busiest(traces)
	for _, t := range day {
		if err := os.WriteFile(filepath.Join(histories, t.Name+".txt"), []byte(t.History()), 0o600); err != nil {
			return fmt.Errorf("writing a history: %w", err)
		}
	}
	preemptions := trace.Preemptions(day)
	if n := len(preemptions); n == 0 || n > mostMessages {
		return fmt.Errorf("%s: its busiest day has %d preemptions, and a replay should have 1 to %d", dir, n, mostMessages)
	}
	fmt.Fprintf(out, "%d preemptions in the busiest day of %d traces, the last after %s; %d times faster\n",
		len(preemptions), len(traces), preemptions[len(preemptions)-1], storm.Faster)
	return run(ctx, out, "", func(lab.TB) []part {
		return []part{{"replaying", func(t lab.TB) []row { return replay(t, out, preemptions) }}}
	}, "fauxqs")
}

func replay(t lab.TB, out io.Writer, preemptions []time.Duration) []row {
	cp, r := lab.ForTest(t), region.New(t)
	fmt.Fprintf(out, "\n  making %d nodes of %d pods\n", len(preemptions), podsPerStormed)
	nodes := storm.New(t, cp, r, len(preemptions), podsPerStormed, grace)
	metrics := filepath.Join(os.TempDir(), "nth-queue.prom")
	consumer := daemon.StartQueue(t, daemon.QueueOptions{
		Kubeconfig: cp.Kubeconfig, URL: r.QueueURL, Endpoint: r.URL, Settings: fmt.Sprintf("[metrics]\ntextfile = %q\n", metrics),
	})
	consumer.WaitStatus(t, "reading the queue")
	all := nodes.Replay(t, r, preemptions, out)
	time.Sleep(2 * time.Second) // The metrics are written every second.
	asked := requests(t, metrics)
	consumer.Stop(t)
	inTime := slices.DeleteFunc(slices.Clone(all.Emptied), func(d time.Duration) bool { return d > trace.Notice })
	n := float64(len(preemptions))
	return []row{
		{"preemptions", n, 0, "", 0},
		{"    most at one time", float64(all.AtOnce), 0, "", 0},
		{"    drained in time", float64(len(inTime)), 0, "", 0},
		{"    not drained in time", n - float64(len(inTime)), 0, "", 0},
		{"    last pod gone after the notice, median", sample(all.Emptied).median(), 0, "s", 1},
		{"    last pod gone after the notice, most", sample(all.Emptied).worst(), trace.Notice.Seconds(), "s", 1},
		{"    requests for each node", asked / n, 0, "", 1},
	}
}

// requests is how many nth-queue says that it has sent to the API server.
func requests(t lab.TB, metrics string) (all float64) {
	text, err := os.ReadFile(metrics)
	for line := range strings.Lines(string(text)) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), "} "); err == nil && strings.HasPrefix(name, "nth_api_requests_total{") {
			var n float64
			n, err = strconv.ParseFloat(value, 64)
			all += n
		}
	}
	if err != nil {
		t.Fatalf("reading the metrics: %v", err)
	}
	return all
}
