package notify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/record"
)

const (
	// oldest is how long a notice is of use to anybody.
	oldest = 24 * time.Hour
	// urgentPause is the longest pause between two attempts while there is a notice that is younger than urgent, within
	// which most machines that are doomed go; patientPause is the longest later on.
	urgent       = 15 * time.Minute
	urgentPause  = 15 * time.Second
	patientPause = 5 * time.Minute
	// askTime is how long a notice waits for the description of the machine and of its Node.
	askTime = 2 * time.Second
	// makers and workers are how many notices are made, and posted, at a time. While all workers are busy, one more post may
	// begin each crowded, up to mostPosts: an endpoint that hangs keeps no new notice waiting for longer than that.
	makers    = 4
	workers   = 8
	crowded   = time.Second
	mostPosts = 64
	// syncPause is the shortest pause between two writes of the outbox, and lastWrite how long the last one is waited for.
	syncPause = 500 * time.Millisecond
	lastWrite = 2 * time.Second
)

// errTooMany is why a notice was given up for newer ones.
var errTooMany = errors.New("too many are waiting")

// Run makes notices and posts them until ctx ends, and then tries once more, for a moment, what is left. Run it once.
func (w *Webhook) Run(ctx context.Context) {
	changed, over, saved := make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(saved)
		w.save(changed, over)
	}()
	w.work(ctx, changed)

	w.mu.Lock()
	w.ending = true
	w.mu.Unlock()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTime)
	defer cancel()
	w.finish(last, changed)
	close(over)
	select {
	case <-saved:
	case <-time.After(lastWrite):
		w.tell(Telling{Err: errors.New("writing the outbox: the disk does not answer")})
	}
}

// work has workers do what there is to do until ctx ends, and waits for them.
func (w *Webhook) work(ctx context.Context, changed chan<- struct{}) {
	var busy sync.WaitGroup
	defer busy.Wait()
	for ctx.Err() == nil {
		wait := w.assign(ctx, &busy)
		w.tellLost()
		signal(changed)
		select {
		case <-ctx.Done():
		case <-w.wake:
		case <-time.After(wait):
		}
	}
}

// finish is the last try: of everything once, whatever the gates and the endpoint say, for as long as ctx lasts.
func (w *Webhook) finish(ctx context.Context, changed chan<- struct{}) {
	var busy sync.WaitGroup
	defer busy.Wait()
	for ctx.Err() == nil {
		w.assign(ctx, &busy)
		if w.idle() {
			break
		}
		select {
		case <-ctx.Done():
		case <-w.wake:
		}
	}
	w.tellLost()
	signal(changed)
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// save keeps the disk up to date until over is closed, and then once more. A disk that hangs holds no notice up.
func (w *Webhook) save(changed <-chan struct{}, over <-chan struct{}) {
	failing := false
	for {
		ended := false
		select {
		case <-changed:
		case <-over:
			ended = true
		}
		err := w.opts.Outbox.Sync()
		if err != nil && !failing {
			w.tell(Telling{Err: err})
		}
		failing = err != nil
		if ended {
			return
		}
		select {
		case <-over:
		case <-time.After(syncPause):
		}
		if failing {
			signal(w.wake) // It is tried again.
		}
	}
}

// idle tells whether no worker is at work.
func (w *Webhook) idle() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.making+w.posting == 0
}

// assign gives workers what can be done now, and returns how long there is nothing more if nothing is heard.
func (w *Webhook) assign(ctx context.Context, busy *sync.WaitGroup) time.Duration {
	for {
		w.mu.Lock()
		settings := w.settings
		if settings == nil {
			w.heard, w.lanes = 0, w.waitingOnly()
			w.mu.Unlock()
			return idle
		}
		now := time.Now()
		id, making, wait := w.next(now)
		if id == "" {
			w.mu.Unlock()
			return wait
		}
		l := w.lanes[id]
		l.busy = true
		if making {
			h := l.heard[0]
			l.heard = l.heard[1:]
			w.heard--
			w.making++
			w.mu.Unlock()
			busy.Go(func() { w.make(ctx, settings, l, h) })
			continue
		}
		n := l.waiting[0] // as it was before this post
		l.posted = n.ID
		l.waiting[0].tries++
		l.waiting[0].last = w.ending
		w.posting++
		w.begun = now
		asks := w.endpoint.asks(n)
		w.mu.Unlock()
		busy.Go(func() { w.post(ctx, settings, l, n, now, asks) })
	}
}

// waitingOnly are the lanes without what was heard while there was nobody to tell.
func (w *Webhook) waitingOnly() map[string]*lane {
	left := map[string]*lane{}
	for id, l := range w.lanes {
		if l.heard = nil; l.busy || len(l.waiting) > 0 {
			left[id] = l
		}
	}
	return left
}

// next chooses the event that a worker can turn to, and whether a notice about it is to be made or posted. Without one it
// returns how long there will be none.
func (w *Webhook) next(now time.Time) (id string, making bool, wait time.Duration) {
	wait = idle
	var best *lane
	for event, l := range w.lanes {
		if len(l.heard)+len(l.waiting) == 0 && !l.busy {
			delete(w.lanes, event)
			continue
		}
		until, makes := w.ready(l, now)
		if until > 0 {
			wait = min(wait, until)
			continue
		}
		if best == nil || makes && !making || makes == making && l.before(best) {
			best, id, making = l, event, makes
		}
	}
	return id, making, wait
}

// ready tells how long it takes until a worker may turn to a lane, 0 if it may now, and whether it would make a notice.
func (w *Webhook) ready(l *lane, now time.Time) (wait time.Duration, makes bool) {
	if l.busy {
		return idle, false
	}
	if !w.ending {
		if wait := w.closed(l.node, now); wait > 0 {
			return wait, false
		}
	}
	// While the endpoint takes notices, none is made that the outbox has no place for.
	if len(l.heard) > 0 && w.making < makers && (w.ending || w.endpoint.failing() || w.opts.Outbox.Room() > w.making) {
		return 0, true
	}
	if len(l.waiting) == 0 || w.posting >= mostPosts {
		return idle, false
	}
	return w.postable(l.waiting[0], now), false
}

// postable is how long it takes until a notice may be posted, as far as that is not up to its node.
func (w *Webhook) postable(n waiting, now time.Time) time.Duration {
	if w.ending {
		if n.last || w.endpoint.obeyed.After(now) {
			return idle
		}
		return 0
	}
	if wait := w.begun.Add(crowded).Sub(now); w.posting >= workers && wait > 0 {
		return wait
	}
	return w.endpoint.closed(n, now)
}

// before tells whether a lane goes before another one: what was tried less often, and then what is newer.
func (l *lane) before(other *lane) bool {
	if len(l.waiting) == 0 || len(other.waiting) == 0 {
		return len(other.waiting) > 0
	}
	a, b := l.waiting[0], other.waiting[0]
	return cmp.Or(cmp.Compare(a.tries, b.tries), b.Made.Compare(a.Made)) < 0
}

// closed is how long notices about a node give way to its cordon. Where it is not known which node it is, any cordon counts.
func (w *Webhook) closed(node string, now time.Time) time.Duration {
	closed := func(of string) time.Duration {
		switch g := w.gates[of]; {
		case g == nil:
			return 0
		case g.cordoning: // It may not come about.
			return max(g.begun.Add(cordonTime).Sub(now), 0)
		default:
			return g.closed(now)
		}
	}
	if node != "" {
		return max(closed(node), closed(""))
	}
	var wait time.Duration
	for of := range w.gates {
		wait = max(wait, closed(of))
	}
	return wait
}

// make makes a notice and puts it into the outbox.
func (w *Webhook) make(ctx context.Context, settings *WebhookSettings, l *lane, h heard) {
	n, wanted, err := w.render(ctx, settings, h)
	var lost []record.Notice
	w.mu.Lock()
	switch {
	case n.ID == "":
	case err != nil:
	case !wanted:
		w.opts.Outbox.Note(n.Event, n.What)
	default:
		var givenUp []record.Notice
		if givenUp, err = w.opts.Outbox.Add(n); err == nil {
			l.waiting = append(l.waiting, waiting{Notice: n, came: time.Now()})
		}
		lost = w.giveUp(givenUp)
	}
	l.busy = false
	w.making--
	w.mu.Unlock()
	if err != nil {
		w.tell(Telling{Notice: n, Err: err, GivenUp: true})
	}
	for _, old := range lost {
		w.tell(Telling{Notice: old, Err: errTooMany, GivenUp: true})
	}
	w.nudge()
}

// giveUp takes notices out of their lanes, and returns those that are lost. One that is being posted is not yet: it is told of
// when it is known what came of that.
func (w *Webhook) giveUp(notices []record.Notice) (lost []record.Notice) {
	for _, n := range notices {
		l := w.lanes[n.Event]
		if l == nil || l.posted != n.ID {
			lost = append(lost, n)
		}
		if l != nil {
			l.drop(n.ID)
		}
	}
	return lost
}

// render makes the notice of what was heard; it has no ID if that has been told. It is wanted if there is somebody who wants it.
func (w *Webhook) render(ctx context.Context, settings *WebhookSettings, h heard) (n record.Notice, wanted bool, err error) {
	if !due(w.opts.Outbox.Told(h.Entry.Event.ID), h.outcome) {
		return record.Notice{}, false, nil
	}
	about := w.ask(ctx, h.Node)
	h.Node = cmp.Or(h.Node, about.node)
	phase := phaseOf(h.outcome)
	f := fieldsOf(h.Happening, phase, h.outcome, h.pods, w.opts.DryRun)
	about.machine.into(&f)
	if about.labels != nil {
		f.NodeLabels = about.labels
	}
	n = record.Notice{ID: f.NoticeID, Event: h.Entry.Event.ID, Node: h.Node, Made: f.Made.UTC().Round(0), What: h.outcome}
	n.Text, err = settings.Template.Render(f)
	if err != nil {
		return n, false, fmt.Errorf("making a message: %w", err)
	}
	return n, settings.wants(phase) && n.Text != "", nil
}

// ask asks what a node and its machine are. What is not answered in time stays what it was.
func (w *Webhook) ask(ctx context.Context, about string) known {
	w.mu.Lock()
	k := w.known[about]
	w.mu.Unlock()
	if k.machine.ID == "" {
		asking, cancel := context.WithTimeout(ctx, askTime)
		k.machine = w.opts.Machine(asking, about)
		cancel()
	}
	asking, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	if node, labels := w.opts.Node(asking, about); node != "" {
		k.node, k.labels = node, labels
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, kept := w.gates[about]; kept || about == "" {
		w.known[about] = k
	}
	return k
}

// drop takes a notice out of its lane.
func (l *lane) drop(id string) {
	l.waiting = slices.DeleteFunc(l.waiting, func(n waiting) bool { return n.ID == id })
}

// post posts a notice, unless it is too old, and takes in what became of it. One that nobody has tried to post is never too old:
// the clock may have been set, or the machine away.
func (w *Webhook) post(ctx context.Context, settings *WebhookSettings, l *lane, n waiting, began time.Time, asks bool) {
	over, err := n.tries > 0 && n.age() > oldest, errors.New("it is older than a day")
	asked := !over
	if asked {
		err = settings.Post(ctx, n.ID, n.Text)
		_, over = errors.AsType[rejectedError](err)
	}
	canceled := err != nil && !over && ctx.Err() != nil

	w.mu.Lock()
	if asks {
		w.endpoint.asking = false
	}
	switch {
	case canceled, !asked:
	case err == nil, over:
		w.endpoint.answered()
	default:
		w.endpoint.failed(err, began, w.newest())
	}
	if err == nil || over {
		w.opts.Outbox.Remove(n.ID)
		l.drop(n.ID)
	} else if !slices.ContainsFunc(l.waiting, func(of waiting) bool { return of.ID == n.ID }) { // It was given up meanwhile.
		over, canceled, err = true, false, errTooMany
	}
	l.busy, l.posted = false, ""
	w.posting--
	w.mu.Unlock()
	if !canceled {
		w.tell(Telling{Notice: n.Notice, Err: err, GivenUp: over, Again: n.tries > 0})
	}
	w.nudge()
}

// newest is the age of the newest notice that waits.
func (w *Webhook) newest() time.Duration {
	newest := oldest
	for _, l := range w.lanes {
		if len(l.waiting) > 0 {
			newest = min(newest, l.waiting[0].age())
		}
	}
	return newest
}

// tell tells what became of a notice.
func (w *Webhook) tell(t Telling) {
	w.telling.Lock()
	defer w.telling.Unlock()
	w.opts.Told(t)
}

// tellLost tells of what was lost since it did so last.
func (w *Webhook) tellLost() {
	w.mu.Lock()
	lost := w.lost
	w.lost = Telling{}
	w.mu.Unlock()
	if lost.GivenUp {
		w.tell(lost)
	}
}

// endpoint is how the endpoint does.
type endpoint struct {
	failures int
	since    time.Time // when it failed last; zero while it does not
	retry    time.Time // what was there by then is not tried before
	asking   bool      // one notice is asking whether it is back
	obeyed   time.Time // nothing is posted before, as it asks for that
}

func (e *endpoint) failing() bool { return !e.since.IsZero() }

// closed is how long it takes until a notice may be posted. What came after the endpoint failed is tried once at any time.
func (e *endpoint) closed(n waiting, now time.Time) time.Duration {
	if wait := e.obeyed.Sub(now); wait > 0 {
		return wait
	}
	switch {
	case !e.failing(), n.tries == 0 && n.came.After(e.since):
		return 0
	case e.asking:
		return idle
	}
	return max(e.retry.Sub(now), 0)
}

// asks tells whether a notice that is about to be posted asks whether the endpoint is back, and notes that one does.
func (e *endpoint) asks(n waiting) bool {
	asks := e.failing() && (n.tries > 0 || !n.came.After(e.since))
	e.asking = e.asking || asks
	return asks
}

// answered takes in that the endpoint is there. A pause that it has asked for holds all the same: what it has taken since then was
// on its way.
func (e *endpoint) answered() { *e = endpoint{obeyed: e.obeyed} }

// failed takes in that a post which began then failed. The pause doubles with each failure in a row; it is spread, so that the
// nodes of a fleet do not come all at once when their endpoint is back.
func (e *endpoint) failed(err error, began time.Time, newest time.Duration) {
	now := time.Now()
	if later, ok := errors.AsType[laterError](err); ok {
		if until := now.Add(min(later.after, longestObeyed)); until.After(e.obeyed) {
			e.obeyed = until
		}
	}
	if e.failing() && began.Before(e.since) {
		return // It says nothing new: it was on its way when another one failed.
	}
	longest := patientPause
	if newest < urgent {
		longest = urgentPause
	}
	pause := min(firstPause<<min(e.failures, 16), longest)
	e.failures++
	e.since, e.retry = now, now.Add(pause/2+rand.N(pause/2+1))
}

func withoutNamespace(pod string) string {
	_, name, found := strings.Cut(pod, "/")
	if !found {
		return pod
	}
	return name
}
