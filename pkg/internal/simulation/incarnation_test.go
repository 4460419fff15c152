package simulation_test

import (
	"context"
	"fmt"
	"io"
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
	ended  chan struct{}
	agent  *agent.Agent
	store  *record.Store

	entriesMu sync.Mutex
	entries   []state.Entry // what the store has answered since the last Put

	// What follows belongs to who has the world's lock.
	gone      bool // it was killed: nothing that it does counts
	stopping  bool
	unwatched []event.Kind
	told      map[event.Kind]time.Time // when a document was first told in this incarnation
	beat      time.Time
	puts      int
	phases    map[string]state.Phase
	// crash is when to be killed: after so many writes of the record, before one or after it.
	crash  int
	before bool
	down   time.Duration
	// failed is since when what is put does not reach the disk.
	failed time.Time
	// broken tells that its disk was full once.
	broken bool
	// connection counts those to the API server, and failedReads and failedWrites what has failed in a row on the present one.
	connection, failedReads, failedWrites int
}

const beat = 2 * time.Second

// begin starts nth, as it would be found after whatever became of the last one.
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
		told: map[event.Kind]time.Time{}, phases: map[string]state.Phase{},
	}
	w.nth = i
	for _, n := range w.notices {
		n.outcome = "" // What it says is judged anew.
	}
	w.all = append(w.all, i)
	w.judged(runs, stops, recordReadable)
	w.told("nth %d starts in %s", i.number, w.bootID())
	dir := w.statePath(i.number)
	w.check(os.MkdirAll(dir, 0o700))
	if w.disk != nil {
		w.check(os.WriteFile(filepath.Join(dir, "record.json"), w.disk, 0o600))
	}
	store, err := record.Open(dir, w.bootID(), w.ec2().Add(w.offset-w.uptime()))
	if err != nil {
		w.violatedNow(recordReadable, "%v", err)
	}
	i.store = store
	i.ahead = store.Booted().Add(w.uptime()).Sub(w.ec2())
	w.stepped = w.stepped || w.started > 1 && i.ahead != w.ahead
	w.ahead = i.ahead
	for _, e := range store.Entries() {
		i.phases[e.Event.ID] = e.Phase
	}
	w.unremembered(i)
	if w.full {
		w.breakDisk(i)
	}
	i.wire()
	w.disturb(0)
	w.running.Add(1)
	w.mu.Unlock()
	go func() {
		defer w.running.Done()
		defer close(i.ended)
		if err := i.agent.Run(ctx); err != nil {
			w.violated(runs, "it ended with %v", err)
		}
		w.ended(i)
	}()
}

// unremembered takes in of what nth was told before, and does not remember: the entry never reached the disk. It belongs to who has
// the lock.
func (w *world) unremembered(i *incarnation) {
	for _, n := range w.notices {
		known := slices.ContainsFunc(i.store.Entries(), func(e state.Entry) bool { return w.of(e.Event.ID) == n })
		if !known && !n.seen.IsZero() {
			n.seen, n.vague, n.held, n.watching = time.Time{}, true, false, time.Time{}
		}
	}
}

// wire makes the agent as cmd/nth does.
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
		Record: book{i}, Service: service{i}, Policy: clone(w.rules), Unwatched: i.unwatched, BootID: w.bootID(),
		Log: logrus.NewEntry(logger), Now: i.now, Beat: beat, Settled: i.settled,
	})
}

func clone(rules policy.Settings) policy.Settings {
	c := policy.Settings{}
	for kind, rule := range rules {
		c[kind] = rule
	}
	return c
}

func (w *world) check(err error) {
	if err != nil {
		w.violatedNow(diskWorks, "%v", err)
	}
}

// ended takes in that nth has ended as it was asked to.
func (w *world) ended(i *incarnation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i.gone {
		return
	}
	w.told("nth %d has ended", i.number)
	w.power(i)
	w.unrecorded(i)
	i.gone = true
	if w.nth == i {
		w.nth = nil
	}
}

// kill ends nth without a word. It belongs to who has the lock.
func (w *world) kill(i *incarnation, why string) {
	if i == nil || i.gone {
		return
	}
	w.told("nth %d is killed %s", i.number, why)
	w.power(i)
	w.unrecorded(i)
	i.gone = true
	w.nth = nil
	i.cancel()
}

// unrecorded is what comes of a disk that does not take what is put when nth ends.
func (w *world) unrecorded(i *incarnation) {
	if i.failed.IsZero() {
		return
	}
	for _, n := range w.notices {
		n.outdated = true
		if !n.lifted.IsZero() && w.cluster.uncordoned.After(i.failed.Add(-slow)) {
			n.unsure, n.lifted = true, time.Time{} // the uncordon was not recorded
		}
	}
}

// beginIn starts nth after a while.
func (w *world) beginIn(d time.Duration) {
	w.hinder(d)
	time.AfterFunc(d, w.begin)
}

func (w *world) dead(i *incarnation) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return i.gone
}

// mostToStop is how long nth may take to stop: it waits ten seconds for its record.
const mostToStop = 12 * time.Second

// stop asks nth to stop, and waits until it has.
func (w *world) stop() {
	w.mu.Lock()
	i := w.nth
	if i == nil {
		w.mu.Unlock()
		return
	}
	w.told("nth %d is asked to stop", i.number)
	i.stopping = true
	w.mu.Unlock()
	i.cancel()
	select {
	case <-i.ended:
	case <-time.After(mostToStop):
		w.violated(stops, "it has not after %s", mostToStop)
		w.mu.Lock()
		w.kill(i, "as it does not stop")
		w.mu.Unlock()
	}
}

// nthTold notes that an incarnation has been told of a document. It belongs to who has the lock.
func (w *world) nthTold(i *incarnation, kind event.Kind) {
	if i.told[kind].IsZero() {
		i.told[kind] = time.Now()
	}
}

// journal puts what nth says into the story.
type journal struct{ i *incarnation }

// Levels implements logrus.Hook.
func (journal) Levels() []logrus.Level { return logrus.AllLevels }

// Fire implements logrus.Hook.
func (j journal) Fire(e *logrus.Entry) error {
	why := ""
	if err, ok := e.Data[logrus.ErrorKey]; ok {
		why = fmt.Sprintf(": %v", err)
	}
	j.i.world.tell("    nth %d says: %s%s", j.i.number, e.Message, why)
	return nil
}

// credential is the kubelet's.
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

func (w *world) missing() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Before(w.identity)
}

// identified waits until there is a credential.
func (w *world) identified(ctx context.Context) bool {
	for w.missing() {
		if !w.lie(ctx, 500*time.Millisecond) {
			return false
		}
	}
	return ctx.Err() == nil
}

// host is the node, to which nth gets with the credential only; cmd/nth/self.go.
type host struct {
	nth  *incarnation
	node *drain.Node
}

// Guard implements agent.Node.
func (h host) Guard(goal drain.Goal, tell func(drain.Progress)) drain.Guard {
	return &waiting{host: h, goal: goal, tell: tell}
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

// waiting is a guard that waits for the credential.
type waiting struct {
	host host
	tell func(drain.Progress)

	mu    sync.Mutex
	goal  drain.Goal
	guard drain.Guard
}

// Run implements drain.Guard. Another guard begins when the node has another name.
func (g *waiting) Run(ctx context.Context) {
	w := g.host.nth.world
	for w.identified(ctx) {
		named, ended := context.WithCancel(ctx)
		w.mu.Lock()
		w.rename = ended
		w.mu.Unlock()
		g.mu.Lock()
		g.guard = g.host.node.Guard(g.goal, g.tell)
		g.mu.Unlock()
		g.guard.Run(named)
		ended()
	}
}

// Adjust implements drain.Guard.
func (g *waiting) Adjust(goal drain.Goal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.goal = goal
	if g.guard != nil {
		g.guard.Adjust(goal)
	}
}

// Result implements drain.Guard.
func (g *waiting) Result() drain.Result {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.guard == nil {
		return drain.Result{}
	}
	return g.guard.Result()
}

// service is the service manager, whose watchdog waits.
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
		w.violatedNow(beats, "it did not for %s", gap)
	}
	s.i.beat = time.Now()
	w.judged(beats)
}

// book is the record, whose disk may hang, and at whose writes nth may be killed.
type book struct{ i *incarnation }

// Entries implements agent.Record.
func (b book) Entries() []state.Entry {
	// The loop asks again and again; it gets the store's answer, which stands until the next Put.
	i := b.i
	i.entriesMu.Lock()
	defer i.entriesMu.Unlock()
	if i.entries == nil {
		i.entries = i.store.Entries()
	}
	return slices.Clone(i.entries)
}

// forget forgets what the store has answered.
func (i *incarnation) forget() {
	i.entriesMu.Lock()
	defer i.entriesMu.Unlock()
	i.entries = nil
}

// Put implements agent.Record.
func (b book) Put(written func(error), entries ...state.Entry) {
	i, w := b.i, b.i.world
	w.mu.Lock()
	i.puts++
	puts := i.puts
	if i.crash == puts && i.before {
		w.kill(i, fmt.Sprintf("before write %d of its record", puts))
		w.beginIn(i.down)
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
			w.violatedNow(diskWorks, "%v", err)
		}
		switch {
		case err == nil && hung <= 0:
			i.failed = time.Time{}
		case i.failed.IsZero():
			i.failed = time.Now()
		}
		if w.keeps && !i.gone {
			w.power(i)
		}
		if i.crash == puts && !i.gone {
			w.kill(i, fmt.Sprintf("after write %d of its record", puts))
			w.beginIn(i.down)
		}
		w.mu.Unlock()
		if hung > 0 {
			time.AfterFunc(hung, func() { written(nil) })
			return
		}
		written(err)
	}, entries...)
}

// now is the clock of this boot; pkg/record/clock.go.
func (i *incarnation) now() time.Time { return i.world.ec2().Add(i.ahead) }

// Flush implements agent.Record.
func (b book) Flush(ctx context.Context) error {
	w := b.i.world
	w.mu.Lock()
	hung := time.Until(w.hung)
	w.mu.Unlock()
	if hung > 0 && !w.lie(ctx, hung) {
		return ctx.Err()
	}
	return b.i.store.Flush(ctx)
}
