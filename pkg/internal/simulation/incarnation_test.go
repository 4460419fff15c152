package simulation_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/state"
)

// incarnation is one process of nth.
type incarnation struct {
	world  *world
	number int
	began  time.Time
	ahead  time.Duration // by how much its clock is ahead of EC2's
	cancel context.CancelFunc
	ended  chan struct{} // closed when its agent has returned
	agent  *agent.Agent
	store  *record.Store

	entriesMu sync.Mutex
	entries   []state.Entry // what the store has answered since the last Put

	// What follows is guarded by world.mu.
	gone      bool // it has ended or was killed: nothing that it does counts any more
	stopping  bool
	unwatched []event.Kind             // the kinds that it does not look for
	firstLook map[event.Kind]time.Time // when it first looked at the document of a kind
	beat      time.Time
	puts      int                    // how many writes of the record it has begun
	phases    map[string]state.Phase // of its entries, by event ID
	// crash is the number of the write at which it is killed, before or after that; 0 is none. It is down for a time then.
	crash  int
	before bool
	down   time.Duration
	// failed is since when no write has reached the disk; zero if the last one has.
	failed time.Time
	// broken: its disk was full once, so writes may fail.
	broken bool
	// connection is the number of its connection to the API server. failedReads and failedWrites count the failures in a row on it.
	connection, failedReads, failedWrites int
}

// beat is how often nth has to feed the watchdog.
const beat = 2 * time.Second

// begin starts an incarnation with the record that the last one left, unless one runs.
func (w *world) begin() {
	w.mu.Lock()
	if w.nth != nil || w.ending {
		w.mu.Unlock()
		return
	}
	w.started++
	ctx, cancel := context.WithCancel(context.Background())
	i := &incarnation{
		world: w, number: w.started, began: time.Now(), cancel: cancel, ended: make(chan struct{}), beat: time.Now(),
		firstLook: map[event.Kind]time.Time{}, phases: map[string]state.Phase{},
	}
	w.nth = i
	for _, n := range w.notices {
		n.outcome = "" // It reports all outcomes again.
	}
	w.all = append(w.all, i)
	w.judgedLocked(runs, stops, recordReadable)
	w.noteLocked("nth %d starts in %s", i.number, w.bootID())
	dir := w.statePath(i.number)
	w.check(os.MkdirAll(dir, 0o700))
	if w.disk != nil {
		w.check(os.WriteFile(filepath.Join(dir, "record.json"), w.disk, 0o600))
	}
	store, err := record.Open(dir, w.bootID(), w.ec2().Add(w.offset-w.uptime()))
	if err != nil {
		w.violatedLocked(recordReadable, "%v", err)
	}
	i.store = store
	i.ahead = store.Booted().Add(w.uptime()).Sub(w.ec2())
	w.stepped = w.stepped || w.started > 1 && i.ahead != w.ahead
	w.ahead = i.ahead
	for _, e := range store.Entries() {
		i.phases[e.Event.ID] = e.Phase
	}
	w.forgetUnwrittenLocked(i)
	if w.full {
		w.breakDisk(i)
	}
	i.wire()
	w.disturbLocked(0)
	for _, f := range w.faults {
		if f.kind == "late" && time.Now().Before(f.until) { // A new process gives up its first reads again.
			w.hinderLocked(min(time.Until(f.until), firstReads))
		}
	}
	w.running.Add(1)
	w.mu.Unlock()
	go func() {
		defer w.running.Done()
		defer close(i.ended)
		i.agent.Run(ctx)
		if ctx.Err() == nil {
			w.violated(runs, "it ended by itself")
		}
		w.ended(i)
	}()
}

// forgetUnwrittenLocked notes for which notices the record says less than an earlier incarnation knew: no entry reached the disk, or not its end. It
// also notes that an uncordon is not known that neither the Node nor the record shows.
func (w *world) forgetUnwrittenLocked(i *incarnation) {
	for _, n := range w.notices {
		if w.cluster.erased && !n.released && !n.lifted.IsZero() {
			n.unsure, n.lifted = true, time.Time{}
		}
		known := slices.ContainsFunc(i.store.Entries(), func(e state.Entry) bool { return w.of(e.Event.ID) == n })
		stands := slices.ContainsFunc(i.store.Entries(), func(e state.Entry) bool { return w.of(e.Event.ID) == n && e.Phase != state.Closed })
		switch seen := !n.firstSeen.IsZero(); {
		case seen && !known:
			n.firstSeen, n.vague, n.held, n.watching = time.Time{}, true, false, time.Time{}
		case stands && !seen:
			n.vague = true
		}
	}
}

// wire makes the agent, as cmd/nth does.
func (i *incarnation) wire() {
	w := i.world
	var sources []agent.Source
	for _, kind := range event.Kinds() {
		if w.rules[kind].Action == policy.Ignore {
			i.unwatched = append(i.unwatched, kind)
			continue
		}
		sources = append(sources, source{w, i, kind})
	}
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	logger.SetLevel(logrus.PanicLevel)
	if verbose {
		logger.SetLevel(logrus.InfoLevel)
		logger.AddHook(journal{i})
	}
	i.agent = agent.New(agent.Config{
		Sources: sources, Node: host{i, drain.New(line{w, i}.client(), apitest.Node, w.options)}, Identity: credential{w},
		Record: book{i}, Service: service{i}, Policy: maps.Clone(w.rules), Unwatched: i.unwatched, BootID: w.bootID(),
		Log: logrus.NewEntry(logger), Now: i.now, Settled: i.settled,
		Reboot: i.reboot,
	})
}

// reboot is the reboot of the machine that nth requests from logind, which refuses some requests. It judges the request by what nth has on record. EC2
// clears about half of the events at the reboot.
func (i *incarnation) reboot(context.Context) error {
	w := i.world
	refused, cleared := w.dice(4) == 0, w.dice(2) == 0
	w.mu.Lock()
	defer w.mu.Unlock()
	if i.gone {
		return context.Canceled
	}
	w.noteLocked("nth %d requests a reboot", i.number)
	w.judgedLocked(rebootsDrained, rebootsOnce)
	recorded := false
	for _, e := range i.store.Entries() {
		n := w.of(e.Event.ID)
		if n == nil || e.RebootAt.IsZero() || e.RebootAt.Equal(n.requested) || e.Released() || e.Phase != state.Drained || e.BootID != w.bootID() {
			continue
		}
		recorded, n.requested = true, e.RebootAt
		if n.requests++; n.requests > 1 && w.forgot.Before(n.announced) {
			w.violatedLocked(rebootsOnce, "%s: %d times; %s", n.name, n.requests, w.standing())
		}
		w.judgeEmpty(n, rebootsDrained)
		if cleared && !refused {
			time.AfterFunc(time.Second, func() { w.edit(n.name, (*notice).withdraw) })
		}
	}
	node := w.server.CurrentNode()
	open := node != nil && !node.Spec.Unschedulable && time.Since(w.cluster.uncordoned) > slow && w.steady(slow)
	if !recorded || open {
		w.violatedLocked(rebootsDrained, "on record: %t, uncordoned: %t; %s", recorded, open, w.standing())
	}
	if refused {
		return errors.New("somebody blocks shutdowns")
	}
	time.AfterFunc(time.Second, func() { w.reboot(happening{span: 10 * time.Second, n: 5}) })
	return nil
}

// check makes an error of the test's own file operations a violation.
func (w *world) check(err error) {
	if err != nil {
		w.violatedLocked(diskWorks, "%v", err)
	}
}

// ended records that an incarnation has ended by itself, as it should when it is stopped.
func (w *world) ended(i *incarnation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i.gone {
		return
	}
	w.noteLocked("nth %d has ended", i.number)
	w.saveDiskLocked(i)
	w.loseUnwrittenLocked(i)
	i.gone = true
	if w.nth == i {
		w.nth = nil
	}
}

// killLocked ends an incarnation in an instant. why is for the story. It does nothing if i is nil or gone.
func (w *world) killLocked(i *incarnation, why string) {
	if i == nil || i.gone {
		return
	}
	w.noteLocked("nth %d is killed %s", i.number, why)
	w.saveDiskLocked(i)
	w.loseUnwrittenLocked(i)
	i.gone = true
	w.nth = nil
	i.cancel()
}

// loseUnwrittenLocked notes what is not known any more because an incarnation ends: what has not reached the disk.
func (w *world) loseUnwrittenLocked(i *incarnation) {
	failed := !i.failed.IsZero()
	for _, n := range w.notices {
		n.outdated = n.outdated || failed
		unwritten := failed && w.cluster.uncordoned.After(i.failed.Add(-slow))
		if !n.lifted.IsZero() && unwritten {
			n.unsure, n.lifted = true, time.Time{}
		}
	}
}

// beginAfterLocked starts an incarnation after a time. Until then, nothing is expected of nth.
func (w *world) beginAfterLocked(d time.Duration) {
	w.hinderLocked(d)
	time.AfterFunc(d, w.begin)
}

// dead reports whether an incarnation has ended or was killed.
func (w *world) dead(i *incarnation) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return i.gone
}

// mostToStop is how long nth may take to stop. It waits for a write that is under way, and after that up to ten seconds for its record.
const mostToStop = kube.WritePressed + 11*time.Second

// stop asks nth to stop, and waits until it has. It returns false if nth does not run.
func (w *world) stop() bool {
	w.mu.Lock()
	i := w.nth
	if i == nil {
		w.mu.Unlock()
		return false
	}
	w.noteLocked("nth %d is asked to stop", i.number)
	i.stopping = true
	if hung := time.Until(w.hung); hung > 0 { // Nobody drains while it waits for its record.
		w.hinderLocked(min(hung, mostToStop))
	}
	w.mu.Unlock()
	i.cancel()
	select {
	case <-i.ended:
	case <-time.After(mostToStop):
		w.violated(stops, "it has not after %s", mostToStop)
		w.mu.Lock()
		w.killLocked(i, "as it does not stop")
		w.mu.Unlock()
	}
	return true
}

// journal is a logrus.Hook that adds nth's log to the story.
type journal struct{ i *incarnation }

// Levels implements logrus.Hook.
func (journal) Levels() []logrus.Level { return logrus.AllLevels }

// Fire implements logrus.Hook.
func (j journal) Fire(e *logrus.Entry) error {
	j.i.world.note("    nth %d says: %s", j.i.number, e.Message)
	return nil
}

// credential is an agent.Identity. Its node is known once the kubelet's credential exists.
type credential struct{ world *world }

// KeepWarm implements agent.Identity.
func (c credential) KeepWarm(ctx context.Context, tell func(string, error)) {
	if c.world.missing() {
		tell("", fmt.Errorf("not yet"))
	}
	if c.world.identified(ctx) {
		tell(apitest.Node, nil)
	}
	<-ctx.Done()
}

// missing reports whether the kubelet's credential does not exist yet.
func (w *world) missing() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Before(w.identity)
}

// identified waits for the kubelet's credential, and reports whether it exists before the context ends.
func (w *world) identified(ctx context.Context) bool {
	for w.missing() {
		if !w.pause(ctx, 500*time.Millisecond) {
			return false
		}
	}
	return ctx.Err() == nil
}

// host is an agent.Node that waits for the credential before it does anything, as cmd/nth does (self.go).
type host struct {
	nth  *incarnation
	node *drain.Node
}

// Guard implements agent.Node. It waits for the credential, and begins again when the node has another name.
func (h host) Guard(ctx context.Context, task *drain.Task, tell func(drain.Progress)) {
	w := h.nth.world
	for w.identified(ctx) {
		named, ended := context.WithCancel(ctx)
		w.mu.Lock()
		w.rename = ended
		w.mu.Unlock()
		h.node.Guard(named, task, tell)
		ended()
	}
}

// Uncordon implements agent.Node.
func (h host) Uncordon(ctx context.Context, booted drain.Booted) (drain.UncordonResult, error) {
	if !h.nth.world.identified(ctx) {
		return "", ctx.Err()
	}
	return h.node.Uncordon(ctx, booted)
}

// Claim implements agent.Node.
func (h host) Claim(ctx context.Context) (drain.Claim, bool, error) {
	if !h.nth.world.identified(ctx) {
		return drain.Claim{}, false, ctx.Err()
	}
	return h.node.Claim(ctx)
}

// service is the service manager: it judges whether nth feeds the watchdog.
type service struct{ i *incarnation }

// Ready implements agent.Service.
func (service) Ready() {}

// Status implements agent.Service.
func (service) Status(string, ...any) {}

// Stopping implements agent.Service.
func (service) Stopping() {}

// Beat implements agent.Service.
func (s service) Beat() {
	w := s.i.world
	w.mu.Lock()
	defer w.mu.Unlock()
	if gap := time.Since(s.i.beat); gap > beat+time.Second && !s.i.gone && !s.i.stopping {
		w.violatedLocked(beats, "not for %s", gap)
	}
	s.i.beat = time.Now()
	w.judgedLocked(beats)
}

// book is the agent.Record of an incarnation. Its disk may hang or be full, and the incarnation may be killed at a write.
type book struct{ i *incarnation }

// Entries implements agent.Record.
func (b book) Entries() []state.Entry {
	// The loop asks for them again and again. The store's answer changes with a Put only.
	i := b.i
	i.entriesMu.Lock()
	defer i.entriesMu.Unlock()
	if i.entries == nil {
		i.entries = i.store.Entries()
	}
	return slices.Clone(i.entries)
}

// forget has the next Entries ask the store.
func (i *incarnation) forget() {
	i.entriesMu.Lock()
	defer i.entriesMu.Unlock()
	i.entries = nil
}

// Put implements agent.Record. The store writes at once. If the disk hangs, the agent is only answered when it no longer does, and a
// power cut until then loses the write (saveDiskLocked).
func (b book) Put(written func(error), entries ...state.Entry) {
	i, w := b.i, b.i.world
	w.mu.Lock()
	i.puts++
	puts := i.puts
	if i.crash == puts && i.before {
		w.killLocked(i, fmt.Sprintf("before write %d of its record", puts))
		w.beginAfterLocked(i.down)
	}
	if !i.gone {
		w.judgeEntries(i, entries)
	}
	hung := time.Until(w.hung)
	if i.failed.IsZero() && hung > 0 {
		i.failed = time.Now()
	}
	w.mu.Unlock()
	defer i.forget()
	i.store.Put(func(err error) {
		w.mu.Lock()
		if err != nil && !i.broken {
			w.violatedLocked(diskWorks, "%v", err)
		}
		switch {
		case err == nil && hung <= 0:
			i.failed = time.Time{}
		case i.failed.IsZero():
			i.failed = time.Now()
		}
		if i.crash == puts && !i.gone {
			w.killLocked(i, fmt.Sprintf("after write %d of its record", puts))
			w.beginAfterLocked(i.down)
		}
		w.mu.Unlock()
		if hung > 0 {
			time.AfterFunc(hung, func() { written(nil) })
			return
		}
		written(err)
	}, entries...)
}

// now is the incarnation's clock, which pkg/record/clock.go makes for each boot.
func (i *incarnation) now() time.Time { return i.world.ec2().Add(i.ahead) }

// Flush implements agent.Record.
func (b book) Flush(ctx context.Context) error {
	w := b.i.world
	w.mu.Lock()
	hung := time.Until(w.hung)
	w.mu.Unlock()
	if hung > 0 && !w.pause(ctx, hung) {
		return ctx.Err()
	}
	return b.i.store.Flush(ctx)
}
