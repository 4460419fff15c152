package bench

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"maps"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/region"
	"github.com/nth-project/nth/test/internal/storm"
)

// clusterOf is a size of a cluster, and of how many of its nodes the queue tells at once.
type clusterOf struct {
	nodes, messages int
	rounds          int
}

var clusters = []clusterOf{{100, 100, 3}, {1000, 1000, 1}, {5000, 1000, 1}}

const (
	podsPerStormed = 10
	// resting is how long nth-queue is left alone before its memory is looked at.
	resting = 10 * time.Second
	// mostMemory is what is wanted of it, in megabytes, and mostTime how long a storm may take, by what the bare client takes.
	mostMemory, mostTime = 128, 1.25
	// concurrency is how many evictions nth-queue asks for at once, and so does the bare client here.
	concurrency = 100
	// oneUrgent of so many messages is urgent where urgency is measured, and the ceiling lets one of so many nodes begin.
	oneUrgent = 10
	oneBegins = 20
)

// measureGrowth measures what nth-queue costs in clusters of growing size, whose Nodes are plain objects: no kubelet is played, so that
// the processors are the API server's, nth-queue's and the bare client's. only takes a cluster of that size alone.
func measureGrowth(t lab.TB, out io.Writer, only int) {
	began := time.Now()
	fmt.Fprintf(out, "measuring nth-queue beside many Nodes on %d processors, load %s\n", runtime.NumCPU(), loadNow())
	sizes := clusters
	if only > 0 {
		sizes = []clusterOf{{only, min(only, 1000), 1}}
	}
	var rows []row
	requests := map[int]map[string]int{}
	for _, size := range sizes {
		sizeBegan := time.Now()
		fmt.Fprintf(out, "  %4d nodes, %4d messages, %d times each ", size.nodes, size.messages, size.rounds)
		g := newGrowth(t, size)
		rows = append(rows, g.measure(t)...)
		requests[size.nodes] = g.requests
		fmt.Fprintf(out, "%5.1f s, load %s\n", time.Since(sizeBegan).Seconds(), loadNow())
	}
	fmt.Fprintf(out, "\n%s\n%s\nmeasured in %.0f s, load now %s\n", table(rows), listed(sizes, requests), time.Since(began).Seconds(), loadNow())
}

// growth is one cluster that is measured in.
type growth struct {
	size  clusterOf
	cp    *lab.ControlPlane
	storm *storm.Storm

	queue, floor course
	rest, peak   float64 // resident memory, in megabytes
	own          float64 // of rest, what is not the program's file
	used         time.Duration
	writes       float64        // of Nodes, a second
	requests     map[string]int // from nth-queue's start on, in the last round
}

func newGrowth(t lab.TB, size clusterOf) *growth {
	t.Helper()
	g := &growth{size: size, cp: lab.Bare(t)}
	g.storm = storm.NewPlain(t, g.cp, region.New(t), size.messages, podsPerStormed, size.nodes-size.messages)
	return g
}

func (g *growth) measure(t lab.TB) []row {
	for round := range g.size.rounds {
		if round > 0 {
			g.storm.Again(t, false)
		}
		g.byQueue(t)
		g.storm.Again(t, false)
		g.byFloor(t)
	}
	g.storm.Again(t, true)
	urgent, begun := g.urgent(t)
	if err := g.cp.Stop(); err != nil { // It is to be in the way of no other.
		t.Fatalf("stopping the control plane: %v", err)
	}
	const bare = "      a bare client"
	gone := g.floor.gone.median()
	lists := g.requests["LIST nodes"]
	return []row{
		{fmt.Sprintf("%d nodes, %d drained: last cordon", g.size.nodes, g.size.messages), g.queue.cordon.median(), 0, "s", 2},
		{bare, g.floor.cordon.median(), 0, "s", 2},
		{"    last pod gone", g.queue.gone.median(), mostTime * gone, "s", 2},
		{bare, gone, 0, "s", 2},
		{"    resident memory before the storm", g.rest, mostMemory, "MB", 1},
		{"      of it its own", g.own, 0, "MB", 1},
		{"    resident memory, peak", g.peak, mostMemory, "MB", 1},
		{"    processor", g.used.Seconds(), 0, "s", 2},
		{"    LIST of Nodes", float64(lists), 1, "", 0},
		{"    writes to Nodes a second", g.writes, 0, "", 0},
		{"    requests for each node drained", float64(total(g.requests)) / float64(g.size.messages), 0, "", 1},
		{bare, 1 + podsPerStormed, 0, "", 1},
		{fmt.Sprintf("    last of %d urgent cordons", g.size.messages/oneUrgent), urgent, g.queue.cordon.median(), "s", 2},
		{"    others begun meanwhile", float64(begun), float64(g.ceiling()), "", 0},
	}
}

// byQueue measures a storm by nth-queue with default settings.
func (g *growth) byQueue(t lab.TB) {
	seen := g.storm.Watch(t)
	before := g.counted(t)
	r, consumer := g.start(t, "")
	time.Sleep(resting)
	resident := memory(t, consumer.PID())
	g.rest, g.own = max(g.rest, resident.now), max(g.own, resident.own)
	idle := g.counted(t)
	began := time.Now()
	r.Send(t, g.storm.Messages()...)
	g.queue.add(began, seen.Wait(t))
	r.WaitEmpty(t)
	took := time.Since(began)
	g.peak = max(g.peak, memory(t, consumer.PID()).peak)
	g.used = max(g.used, processor(t, consumer.PID()))
	consumer.Stop(t)
	after := g.counted(t) // of watches, only those that have ended
	g.requests = less(after, before)
	storm := less(after, idle)
	g.writes = float64(storm["PATCH nodes"]+storm["PATCH nodes/status"]) / took.Seconds()
}

func (g *growth) byFloor(t lab.TB) {
	seen := g.storm.Watch(t)
	began := time.Now()
	if err := g.storm.Floor(t.Context(), g.cp.Kubeconfig, concurrency); err != nil {
		t.Fatalf("draining with the bare client: %v", err)
	}
	g.floor.add(began, seen.Wait(t))
}

// start starts nth-queue on a queue of its own: the SQS of the lab still gives messages to those who asked for some and have ended.
func (g *growth) start(t lab.TB, settings string) (*region.Region, *daemon.Daemon) {
	r := region.New(t)
	consumer := daemon.StartQueue(t, daemon.QueueOptions{Kubeconfig: g.cp.Kubeconfig, URL: r.QueueURL, Endpoint: r.URL, Settings: settings})
	consumer.WaitStatus(t, "reading the queue")
	return r, consumer
}

// ceiling is how many nodes may be drained at once where urgency is measured.
func (g *growth) ceiling() int { return max(1, g.size.messages/oneBegins) }

// urgent sends as many messages as before, of which most may wait and a few may not. As the pods stay, the nodes that begin keep their
// places, so that what is urgent would wait for ever behind others. It returns after how long the last urgent node was cordoned, in
// seconds, and of how many others the drain had begun by then.
func (g *growth) urgent(t lab.TB) (last float64, others int) {
	seen := g.storm.Watch(t)
	r, consumer := g.start(t, fmt.Sprintf("[fleet]\nmax_draining = %d\n[events.rebalance-recommendation]\naction = \"drain\"\n", g.ceiling()))
	var messages, urgent []string
	for i, instance := range g.storm.Instances {
		if i%oneUrgent == oneUrgent-1 {
			messages, urgent = append(messages, region.Spot(instance)), append(urgent, g.storm.Nodes[i])
		} else {
			messages = append(messages, region.Rebalance(instance))
		}
	}
	began := time.Now()
	r.Send(t, messages...)
	at, others := seen.WaitCordoned(t, urgent)
	consumer.Stop(t)
	return at.Sub(began).Seconds(), others
}

// requested matches what the API server counts of the requests for what nth-queue asks for. In a lab.Bare nobody else asks for it while
// a storm is on.
var requested = regexp.MustCompile(`^apiserver_request_total\{.*resource="(nodes|pods|events|leases)",scope="([a-z]*)",subresource="([a-z]*)",verb="([A-Z]+)".*\} ([0-9.e+]+)$`)

// counted are the requests so far, by verb and resource.
func (g *growth) counted(t lab.TB) map[string]int {
	t.Helper()
	page, err := g.cp.Admin.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatalf("reading the API server's metrics: %v", err)
	}
	counts := map[string]int{}
	lines := bufio.NewScanner(bytes.NewReader(page))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		found := requested.FindStringSubmatch(lines.Text())
		if found == nil {
			continue
		}
		times, err := strconv.ParseFloat(found[5], 64)
		if err != nil {
			t.Fatalf("reading the API server's metrics: %v", err)
		}
		call := strings.TrimSuffix(found[4]+" "+found[1]+"/"+found[3], "/")
		if found[2] == "resource" && found[4] == "LIST" { // It names its only object, and costs as much as a GET.
			call = "LIST one of " + found[1]
		}
		counts[call] += int(times)
	}
	return counts
}

// less are the requests that came since.
func less(now, before map[string]int) map[string]int {
	since := map[string]int{}
	for call, times := range now {
		if more := times - before[call]; more > 0 {
			since[call] = more
		}
	}
	return since
}

func total(requests map[string]int) int {
	all := 0
	for _, times := range requests {
		all += times
	}
	return all
}

// listed are the requests by verb, with a column for each cluster.
func listed(sizes []clusterOf, requests map[int]map[string]int) string {
	calls := map[string]bool{}
	for _, some := range requests {
		for call := range some {
			calls[call] = true
		}
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%-30s", "requests to the API server")
	for _, size := range sizes {
		fmt.Fprintf(&text, " %12s", fmt.Sprintf("%d nodes", size.nodes))
	}
	for _, call := range slices.Sorted(maps.Keys(calls)) {
		fmt.Fprintf(&text, "\n  %-28s", call)
		for _, size := range sizes {
			fmt.Fprintf(&text, " %12d", requests[size.nodes][call])
		}
	}
	return text.String() + "\n"
}
