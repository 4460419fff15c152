package bench

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/storm"
)

// How much is measured. All of it takes some minutes.
const (
	events  = 24               // interruptions, for the time until the cordon
	starts  = 11               // of nth, for the time until it is ready
	idleFor = 40 * time.Second // of polling, for memory, processor time and requests
)

// podsPerNode is the kubelet's default limit.
const podsPerNode = 110

// What aws-node-termination-handler occupies, in MB, while it watches and at most in a drain of a full node. nth is to take three
// quarters and four fifths of that.
const handlerIdle, handlerPeak = 45, 55

// A load is how many pods are drained, and how many times.
type load struct {
	pods, rounds int
	// most is what is wanted, in seconds; factor is that instead, as a multiple of the bare client's time.
	most, factor float64
	// memory is the most that nth should occupy, in MB.
	memory float64
}

var (
	// usual is a node with as many pods as a kubelet takes by default.
	usual = load{pods: podsPerNode, rounds: 5, most: 0.8, memory: 0.8 * handlerPeak}
	// crowded is a node with many more. Its kubelets, which the lab simulates, take whatever names them; what is measured
	// is nth beside the least that a client can do. The unit guarantees so much memory.
	crowded = load{pods: 1000, rounds: 3, factor: 1.25, memory: 64}
)

// measureNth measures nth, says how far it is, and prints the table. Only the parts are measured in whose name only is. base is the path
// of another build of nth, which cordons and drains in turns with this checkout's; empty if there is none.
func measureNth(t lab.TB, only, base string) {
	b := &bench{cp: lab.ForTest(t), base: base}
	run(t, only,
		part{"size of the program", size},
		part{fmt.Sprintf("%d starts", starts), b.starting},
		part{fmt.Sprintf("%d interruptions at random moments", events), b.reacting},
		part{fmt.Sprintf("%.0f s of polling", idleFor.Seconds()), b.idling},
		b.drains(usual),
		b.drains(crowded),
	)
}

// A bench is the control plane that nth is measured with, and the path of another build that it is compared with, if any.
type bench struct {
	cp   *lab.ControlPlane
	base string
}

// A host is a node with a metadata service, and a machine on which nth can be started.
type host struct {
	node    *lab.Node
	imds    *imdstest.Server
	machine *daemon.Machine
}

// host makes one for this checkout's nth, or for another build of it.
func (b *bench) host(t lab.TB, settings, binary string) host {
	t.Helper()
	h := host{node: b.cp.AddNode(t), imds: imdstest.NewServer()}
	t.Cleanup(h.imds.Close)
	h.machine = daemon.NewMachine(t, daemon.Options{Kubeconfig: h.node.Kubeconfig, IMDS: h.imds.URL, Settings: settings, Binary: binary})
	return h
}

// start starts nth, and returns when it watches and knows its node.
func (h host) start(t lab.TB) *daemon.Daemon {
	t.Helper()
	nth := h.machine.Start(t)
	nth.WaitStatus(t, "nothing is announced for node "+h.node.Name)
	return nth
}

// size measures the program's file.
func size(t lab.TB) []row {
	binary, err := daemon.Binary()
	if err != nil {
		t.Fatalf("%v", err)
	}
	return []row{{"program, stripped", megabytes(t, binary), 36, "MB", 1}}
}

func megabytes(t lab.TB, file string) float64 {
	t.Helper()
	info, err := os.Stat(file)
	if err != nil {
		t.Fatalf("measuring the program: %v", err)
	}
	return float64(info.Size()) / 1e6
}

// starting measures the time from the start of the process to READY=1, which includes what the lab does to give it a
// boot ID of its own: some milliseconds.
func (b *bench) starting(t lab.TB) []row {
	h := b.host(t, "", "")
	var took sample
	for range starts {
		began := time.Now()
		nth := h.machine.Start(t)
		nth.WaitReady(t)
		took = append(took, time.Since(began))
		nth.Stop(t)
	}
	return []row{{"start to READY=1, median", took.median() * 1000, 150, "ms", 0}}
}

// reacting measures the time from the moment at which a spot notice can be read to the node's being unschedulable, at
// random moments between two polls.
func (b *bench) reacting(t lab.TB) []row {
	w := b.watcher(t, "")
	watchers, took := []*watcher{w}, make([]sample, 2)
	if b.base != "" {
		watchers = append(watchers, b.watcher(t, b.base))
	}
	for i := range events {
		for j, w := range watchers {
			took[j] = append(took[j], w.react(t, i))
		}
	}
	for _, w := range watchers {
		w.end(t)
	}
	rows := []row{
		{"notice in IMDS → node unschedulable, median", took[0].median(), 0.35, "s", 3},
		{fmt.Sprintf("    longest of %d", events), took[0].worst(), 0.7, "s", 3},
	}
	if b.base != "" {
		rows = append(rows, row{"    the median by BASE", took[1].median(), 0, "s", 3})
	}
	return rows
}

// A watcher is an nth that waits for notices, on a node that is watched.
type watcher struct {
	host
	nth      *daemon.Daemon
	cordoned chan time.Time
	stop     func()
}

// watcher starts one that uncordons as soon as a notice is withdrawn, so that one node can be doomed many times.
func (b *bench) watcher(t lab.TB, binary string) *watcher {
	t.Helper()
	w := &watcher{host: b.host(t, "[imds]\nwithdrawn_after = \"0s\"\n", binary)}
	w.cordoned, w.stop = cordons(t, w.node)
	w.nth = w.start(t)
	return w
}

func (w *watcher) end(t lab.TB) {
	t.Helper()
	w.stop()
	w.nth.Stop(t)
}

// cordons reports each cordon of a node, until stop is called.
func cordons(t lab.TB, node *lab.Node) (cordoned chan time.Time, stop func()) {
	t.Helper()
	cordoned = make(chan time.Time, 1)
	return cordoned, node.Observe(t, func(m lab.Moment) {
		if m.What == lab.Cordoned {
			cordoned <- m.At
		}
	})
}

// react returns how long the cordon took, for the notice with that number.
func (w *watcher) react(t lab.TB, number int) time.Duration {
	t.Helper()
	time.Sleep(rand.N(500 * time.Millisecond)) // any moment between two polls is as likely as another
	began := time.Now()
	w.imds.SetSpot("terminate", began.Add(2*time.Minute+time.Duration(number)*time.Second))
	took := receive(t, w.cordoned).Sub(began)
	w.imds.ClearSpot()
	w.node.WaitUncordoned(t)
	return took
}

// receive waits for a moment that must come: 1,000 pods on a busy machine take more than a minute.
func receive(t lab.TB, from <-chan time.Time) time.Time {
	t.Helper()
	select {
	case at := <-from:
		return at
	case <-time.After(5 * time.Minute):
		t.Fatalf("waiting for a node to be drained: it is not")
		return time.Time{}
	}
}

// poll makes the requests of an nth that polls, each with a connection of its own as on EC2, and does nothing else until it is killed.
func poll(t lab.TB, imds string) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	ask := func(method, path, header, value string) string {
		request, err := http.NewRequestWithContext(t.Context(), method, imds+"/latest/"+path, nil)
		if err != nil {
			t.Fatalf("polling: %v", err)
		}
		request.Header.Set(header, value)
		answer, err := client.Do(request)
		if err != nil {
			t.Fatalf("polling: %v", err)
		}
		defer answer.Body.Close()
		body, _ := io.ReadAll(answer.Body)
		return string(body)
	}
	token := ask(http.MethodPut, "api/token", "X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "21600")
	for path, pause := range map[string]time.Duration{
		"autoscaling/target-lifecycle-state": 2 * time.Second, "events/recommendations/rebalance": 5 * time.Second,
		"spot/instance-action": time.Second / 2, "events/maintenance/scheduled": 30 * time.Second, "events/maintenance/history": 30 * time.Second,
	} {
		go func() {
			for range time.Tick(pause) {
				ask(http.MethodGet, "meta-data/"+path, "X-Aws-Ec2-Metadata-Token", token)
			}
		}()
	}
	<-t.Context().Done()
}

// idling measures what nth costs while nothing happens, on a node with as many pods as it takes, beside a client that only polls.
func (b *bench) idling(t lab.TB) []row {
	h := b.host(t, "", "")
	h.node.AddPods(t, "pod", podsPerNode)
	nth := h.start(t)
	used, requests, began := processor(t, nth.PID()), h.imds.Requests().Total, time.Now()
	time.Sleep(idleFor)
	nth.MustRun(t)
	used, requests = processor(t, nth.PID())-used, h.imds.Requests().Total-requests
	took := time.Since(began)
	resident := memory(t, nth.PID())
	nth.Stop(t)
	bare := b.barePolling(t)
	return []row{
		{"resident memory, idle", resident.now, 0.75 * handlerIdle, "MB", 1},
		{"    of it not pages of the program's file", resident.own, 8, "MB", 1},
		{"processor, idle, of one core", 100 * used.Seconds() / took.Seconds(), 1.3 * bare, "%", 2},
		{"    the same by a client that only polls", bare, 0, "%", 2},
		{"requests to IMDS", float64(requests) / took.Minutes(), 170, "/min", 0},
	}
}

// barePolling returns how much of one core poll needs, in percent, in a process of its own.
func (b *bench) barePolling(t lab.TB) float64 {
	imds := imdstest.NewServer()
	defer imds.Close()
	client := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "Bench")
	client.Env = append(os.Environ(), "NTH_BENCH=poll", "IMDS="+imds.URL)
	if err := client.Start(); err != nil {
		t.Fatalf("starting a client that only polls: %v", err)
	}
	defer func() { _, _ = client.Process.Kill(), client.Wait() }()
	time.Sleep(time.Second) // It starts.
	used := processor(t, client.Process.Pid)
	time.Sleep(idleFor)
	return 100 * (processor(t, client.Process.Pid) - used).Seconds() / idleFor.Seconds()
}

func (b *bench) drains(l load) part {
	return part{fmt.Sprintf("%d drains of %d pods", 2*l.rounds, l.pods), func(t lab.TB) []row { return b.draining(t, l) }}
}

// draining measures the time from the cordon to the end of the last pod, for nth and for the bare client in turns, so that both meet
// the machine in the same mood. The pods go as soon as they are evicted.
func (b *bench) draining(t lab.TB, l load) []row {
	var took, before, floor sample
	var peak float64
	for range l.rounds {
		once, used := b.drainByNTH(t, l.pods, 0, "")
		took, peak = append(took, once), max(peak, used.peak)
		if b.base != "" {
			once, _ := b.drainByNTH(t, l.pods, 0, b.base)
			before = append(before, once)
		}
		node := b.cp.AddNode(t)
		node.AddPods(t, "pod", l.pods)
		span := watchSpan(t, node, l.pods)
		if err := storm.Bare(t.Context(), node.Kubeconfig, l.pods, node.Name); err != nil {
			t.Fatalf("draining with the bare client: %v", err)
		}
		floor = append(floor, span.wait(t))
	}
	most := l.most
	if l.factor > 0 {
		most = l.factor * floor.median()
	}
	rows := []row{
		{fmt.Sprintf("%d pods gone after the cordon, median of %d", l.pods, l.rounds), took.median(), most, "s", 3},
		{"    the same by a bare client without limits", floor.median(), 0, "s", 3},
		{fmt.Sprintf("resident memory, peak of a drain of %d", l.pods), peak, l.memory, "MB", 1},
	}
	if b.base != "" {
		rows = append(rows, row{fmt.Sprintf("%d pods gone after the cordon, by BASE", l.pods), before.median(), 0, "s", 3})
	}
	return rows
}

// drainByNTH returns how long a drain took by a build of nth, "" for this checkout's, and what it occupied before, when it had been left
// alone for so long, and at most.
func (b *bench) drainByNTH(t lab.TB, pods int, settles time.Duration, binary string) (time.Duration, resident) {
	t.Helper()
	h := b.host(t, "", binary)
	h.node.AddPods(t, "pod", pods)
	nth := h.start(t)
	time.Sleep(settles)
	used := memory(t, nth.PID())
	span := watchSpan(t, h.node, pods)
	h.imds.SetSpot("terminate", time.Now().Add(2*time.Minute))
	took := span.wait(t)
	nth.WaitLog(t, systemd.Drained)
	used.peak = memory(t, nth.PID()).peak
	nth.Stop(t)
	return took, used
}

// A span is the time from a node's cordon to the end of its last pod.
type span struct {
	mu       sync.Mutex
	cordoned time.Time
	left     int
	over     chan time.Time
	stop     func()
}

// watchSpan begins to watch a node of so many pods.
func watchSpan(t lab.TB, node *lab.Node, pods int) *span {
	t.Helper()
	s := &span{left: pods, over: make(chan time.Time, 1)}
	s.stop = node.Observe(t, func(m lab.Moment) {
		s.mu.Lock()
		defer s.mu.Unlock()
		switch m.What {
		case lab.Cordoned:
			s.cordoned = m.At
		case lab.PodGone:
			if s.left--; s.left == 0 {
				s.over <- m.At
			}
		}
	})
	return s
}

// wait waits for the end of the last pod.
func (s *span) wait(t lab.TB) time.Duration {
	t.Helper()
	end := receive(t, s.over)
	s.stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	return end.Sub(s.cordoned)
}
