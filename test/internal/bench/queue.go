package bench

import (
	"bufio"
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/region"
	"github.com/nth-project/nth/test/internal/storm"
)

const (
	podsPerStormed = 10
	// mostMessages is how many nodes are interrupted at once in a larger cluster.
	mostMessages = 1000
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

// measureQueue measures what nth-queue costs in storms of interruptions, and prints the table. The Nodes are plain objects: no kubelet
// is played, so that the processors are the API server's, nth-queue's and the bare client's. nodes is the size of the only cluster that is
// measured; 0 measures the usual ones.
func measureQueue(t lab.TB, nodes int) {
	sizes := map[int]int{30: 3, 100: 3, 1000: 1} // with the number of rounds
	if nodes > 0 {
		sizes = map[int]int{nodes: 1}
	}
	var parts []part
	for _, size := range []int{nodes, 30, 100, 1000} {
		if rounds := sizes[size]; rounds > 0 {
			parts = append(parts, part{fmt.Sprintf("%d nodes, %d times each", size, rounds), func(t lab.TB) []row { return newGrowth(t, size).measure(t, rounds) }})
			delete(sizes, size)
		}
	}
	run(t, "", parts...)
}

// growth is one cluster that is measured in.
type growth struct {
	nodes, messages int
	cp              *lab.ControlPlane
	storm           *storm.Storm

	queue, floor course
	rest, peak   float64 // resident memory, in megabytes
	used         time.Duration
	lists        int     // of all Nodes, in the last round, from nth-queue's start on
	requests     float64 // for each node drained
}

// course is how long the parts of storms took, from before the first message or request: until the last cordon, and until the last pod
// was gone.
type course struct{ cordon, gone sample }

func (c *course) add(began time.Time, last storm.Times) {
	c.cordon = append(c.cordon, last.Cordoned.Sub(began))
	c.gone = append(c.gone, last.Gone.Sub(began))
}

func newGrowth(t lab.TB, nodes int) *growth {
	t.Helper()
	g := &growth{nodes: nodes, messages: min(nodes, mostMessages), cp: lab.Bare(t)}
	g.storm = storm.NewPlain(t, g.cp, region.New(t), g.messages, podsPerStormed, nodes-g.messages)
	return g
}

func (g *growth) measure(t lab.TB, rounds int) []row {
	for round := range rounds {
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
	return []row{
		{fmt.Sprintf("%d nodes, %d drained: last cordon", g.nodes, g.messages), g.queue.cordon.median(), 0, "s", 2},
		{bare, g.floor.cordon.median(), 0, "s", 2},
		{"    last pod gone", g.queue.gone.median(), mostTime * gone, "s", 2},
		{bare, gone, 0, "s", 2},
		{"    resident memory before the storm", g.rest, mostMemory, "MB", 1},
		{"    resident memory, peak", g.peak, mostMemory, "MB", 1},
		{"    processor", g.used.Seconds(), 0, "s", 2},
		{"    LIST of Nodes", float64(g.lists), 1, "", 0},
		{"    requests for each node drained", g.requests, 0, "", 1},
		{bare, 1 + podsPerStormed, 0, "", 1},
		{fmt.Sprintf("    last of %d urgent cordons", g.messages/oneUrgent), urgent, g.queue.cordon.median(), "s", 2},
		{"    others begun meanwhile", float64(begun), float64(g.ceiling()), "", 0},
	}
}

// byQueue measures a storm by nth-queue with default settings.
func (g *growth) byQueue(t lab.TB) {
	seen := g.storm.Watch(t)
	before := g.counted(t)
	r, consumer := g.start(t, "")
	time.Sleep(resting)
	g.rest = max(g.rest, memory(t, consumer.PID()).now)
	began := time.Now()
	r.Send(t, g.storm.Messages()...)
	g.queue.add(began, seen.Wait(t))
	r.WaitEmpty(t)
	g.peak = max(g.peak, memory(t, consumer.PID()).peak)
	g.used = max(g.used, processor(t, consumer.PID()))
	consumer.Stop(t)
	all := 0
	for call, times := range g.counted(t) { // of watches, only those that have ended
		if times -= before[call]; call == "LIST nodes" {
			g.lists = times
		}
		all += times
	}
	g.requests = float64(all) / float64(g.messages)
}

func (g *growth) byFloor(t lab.TB) {
	seen := g.storm.Watch(t)
	began := time.Now()
	if err := storm.Bare(t.Context(), g.cp.Kubeconfig, concurrency, g.storm.Nodes...); err != nil {
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
func (g *growth) ceiling() int { return max(1, g.messages/oneBegins) }

// urgent sends as many messages as before, of which most may wait and a few may not. As the pods stay, the nodes whose drains begin keep
// their places, so that what is urgent would wait for ever behind others. It returns after how many seconds the last urgent node was cordoned,
// and of how many others the drain had begun by then.
func (g *growth) urgent(t lab.TB) (seconds float64, others int) {
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
	last, others := seen.WaitCordoned(t, urgent)
	consumer.Stop(t)
	return last.Sub(began).Seconds(), others
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
