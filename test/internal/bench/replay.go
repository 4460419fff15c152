package bench

import (
	"fmt"
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

// replayTraces lets the busiest day of a directory of traces happen to nth-queue, and prints what was drained in time. Each preemption takes a
// node of its own, which is there from the beginning. It writes the day of each trace into histories, for pkg/internal/simulation.
func replayTraces(t lab.TB, dir, histories string) {
	traces, err := trace.Read(dir)
	if err != nil {
		t.Fatalf("%v", err)
	}
	day := trace.Busiest(traces)
	for _, zone := range day {
		if err := os.WriteFile(filepath.Join(histories, zone.Name+".txt"), []byte(zone.History()), 0o600); err != nil {
			t.Fatalf("writing a history: %v", err)
		}
	}
	preemptions := trace.Preemptions(day)
	if n := len(preemptions); n == 0 || n > mostMessages {
		t.Fatalf("%s: its busiest day has %d preemptions, and a replay should have 1 to %d", dir, n, mostMessages)
	}
	fmt.Printf("%d preemptions in the busiest day of %d traces, the last after %s; %d times faster\n",
		len(preemptions), len(traces), preemptions[len(preemptions)-1], storm.Faster)
	run(t, "", part{"replaying", func(t lab.TB) []row { return replay(t, preemptions) }})
}

func replay(t lab.TB, preemptions []time.Duration) []row {
	cp, r := lab.ForTest(t), region.New(t)
	fmt.Printf("\n  making %d nodes of %d pods\n", len(preemptions), podsPerStormed)
	nodes := storm.New(t, cp, r, len(preemptions), podsPerStormed, grace)
	metrics := filepath.Join(os.TempDir(), "nth-queue.prom")
	consumer := daemon.StartQueue(t, daemon.QueueOptions{
		Kubeconfig: cp.Kubeconfig, URL: r.QueueURL, Endpoint: r.URL, Settings: fmt.Sprintf("[metrics]\ntextfile = %q\n", metrics),
	})
	consumer.WaitStatus(t, "reading the queue")
	all := nodes.Replay(t, r, preemptions, os.Stdout)
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
