package notify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// maxNoticeAge is the age at which a notice is given up.
	maxNoticeAge = 24 * time.Hour
	// youngNotice is the age after which most interrupted machines are gone. While there is a younger notice,
	// the longest pause between two attempts is maxPauseYoung, and later maxPauseOld.
	youngNotice   = 15 * time.Minute
	maxPauseYoung = 15 * time.Second
	maxPauseOld   = 5 * time.Minute
	// lookupTimeout is how long a notice waits for the description of the machine, and then for that of its Node.
	lookupTimeout = 2 * time.Second
	// maxRenders and workers are how many notices are rendered, and posted, at a time. While all workers are busy, one more
	// post may begin each extraPostInterval, up to maxPosts: an endpoint that hangs delays no new notice longer than that.
	maxRenders        = 4
	workers           = 8
	extraPostInterval = time.Second
	maxPosts          = 64
	// maxRetryAfter bounds the pause that an endpoint may ask for.
	maxRetryAfter = time.Hour
)

// errTooMany is why a notice was given up in favor of newer ones.
var errTooMany = errors.New("too many are waiting")

// errStopped is why a notice was given up when nth stopped.
var errStopped = errors.New("nth stopped before it was delivered")

// Run makes notices and posts them until ctx ends, and then tries each notice that is left once more, for a moment. Call it once.
func (w *Webhook) Run(ctx context.Context) {
	w.work(ctx)
	w.mu.Lock()
	w.stopping = true
	w.mu.Unlock()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	w.work(last)
	w.mu.Lock()
	lost := DeliveryResult{Err: errStopped, GivenUp: true, Alike: w.backlog() + len(w.outbox.waiting) - 1}
	if len(w.outbox.waiting) > 0 {
		lost.Notice = w.outbox.waiting[0]
	}
	w.mu.Unlock()
	if lost.Alike >= 0 {
		w.report(lost)
	}
}

// work runs workers until ctx ends, and waits for them. While nth stops, it also returns once everything has been tried again.
func (w *Webhook) work(ctx context.Context) {
	var busy sync.WaitGroup
	defer busy.Wait()
	for ctx.Err() == nil {
		wait := w.dispatch(ctx, &busy)
		w.reportDropped()
		if w.flushed() {
			return
		}
		select {
		case <-ctx.Done():
		case <-w.wake:
		case <-time.After(wait):
		}
	}
}

// flushed reports whether nth stops and every notice has been tried again.
func (w *Webhook) flushed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stopping && w.rendering+w.posting == 0
}

// dispatch starts workers for all that can be done now, and returns how long there is nothing else to do unless it is woken.
func (w *Webhook) dispatch(ctx context.Context, busy *sync.WaitGroup) time.Duration {
	for {
		job, wait := w.nextJob(time.Now())
		if job == nil {
			return wait
		}
		busy.Go(func() {
			job(ctx)
			wake(w.wake)
		})
	}
}

// nextJob returns what a worker is to do now; nil, and for how long, if there is nothing.
func (w *Webhook) nextJob(now time.Time) (job func(context.Context), wait time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	settings := w.settings
	if settings == nil {
		w.dropBacklog()
		return nil, idleWait
	}
	if !w.tried {
		if w.rendering > 0 {
			return nil, idleWait
		}
		w.rendering++
		return func(context.Context) { w.try(settings) }, 0
	}
	q, render, wait := w.next(now)
	if q == nil {
		return nil, wait
	}
	q.busy = true
	if render {
		t := q.transitions[0]
		q.transitions = q.transitions[1:]
		w.rendering++
		return func(ctx context.Context) { w.makeNotice(ctx, settings, q, t) }, 0
	}
	n := q.notices[0] // as it was before this attempt
	q.posting = n.ID
	q.notices[0].tries++
	q.notices[0].triedAtStop = w.stopping
	w.posting++
	w.lastPost = now
	probe := w.endpoint.beginProbe(n)
	return func(ctx context.Context) { w.post(ctx, settings, q, n, now, probe) }, 0
}

// try tries the template. nth's own takes the place of one that fails.
func (w *Webhook) try(settings *WebhookSettings) {
	err := settings.Template.Try(settings.ContentType())
	w.mu.Lock()
	w.rendering--
	current := w.settings == settings
	if current {
		w.tried = true
	}
	if current && err != nil {
		own := *settings
		own.Template, _ = CompileTemplate("", "") // It always compiles.
		w.settings = &own
	}
	w.mu.Unlock()
	if current && err != nil {
		w.opts.Degraded(fmt.Errorf("webhook: %w; nth's own template is used", err))
	}
}

// dropBacklog drops what was heard while the webhook was off.
func (w *Webhook) dropBacklog() {
	for id, q := range w.queues {
		if q.transitions = nil; !q.busy && len(q.notices) == 0 {
			delete(w.queues, id)
		}
	}
}

// next chooses the queue for the next worker, and whether the worker is to render a notice or to post one. If there is none, it
// returns nil and for how long.
func (w *Webhook) next(now time.Time) (best *eventQueue, render bool, wait time.Duration) {
	wait = idleWait
	for event, q := range w.queues {
		if len(q.transitions)+len(q.notices) == 0 && !q.busy {
			delete(w.queues, event)
			continue
		}
		until, renders := w.ready(q, now)
		if until > 0 {
			wait = min(wait, until)
			continue
		}
		if best == nil || renders && !render || renders == render && q.before(best) {
			best, render = q, renders
		}
	}
	return best, render, wait
}

// ready returns how long it takes until a worker may serve a queue, 0 if it may now, and whether it would render a
// notice.
func (w *Webhook) ready(q *eventQueue, now time.Time) (wait time.Duration, render bool) {
	if q.busy {
		return idleWait, false
	}
	if !w.stopping {
		if wait := w.gateWait(q.node, now); wait > 0 {
			return wait, false
		}
	}
	// While the endpoint works, no notice is rendered unless the outbox has room for it.
	if len(q.transitions) > 0 && w.rendering < maxRenders && (w.stopping || w.endpoint.failing() || w.outbox.room() > w.rendering) {
		return 0, true
	}
	if len(q.notices) == 0 || w.posting >= maxPosts {
		return idleWait, false
	}
	return w.postWait(q.notices[0], now), false
}

// postWait is how long it takes until a notice may be posted, once its node's gate is open.
func (w *Webhook) postWait(n pendingNotice, now time.Time) time.Duration {
	if w.stopping {
		if n.triedAtStop || w.endpoint.retryAfter.After(now) {
			return idleWait
		}
		return 0
	}
	if wait := w.lastPost.Add(extraPostInterval).Sub(now); w.posting >= workers && wait > 0 {
		return wait
	}
	return w.endpoint.wait(n, now)
}

// before sorts by the number of attempts, and then the newest first.
func (q *eventQueue) before(other *eventQueue) bool {
	if len(q.notices) == 0 || len(other.notices) == 0 {
		return len(other.notices) > 0
	}
	a, b := q.notices[0], other.notices[0]
	return cmp.Or(cmp.Compare(a.tries, b.tries), b.Made.Compare(a.Made)) < 0
}

// gateWait is how long notices about a node wait for its cordon; for that of any node if its name is not known.
func (w *Webhook) gateWait(node string, now time.Time) time.Duration {
	wait := func(node string) time.Duration {
		switch n := w.nodes[node]; {
		case n == nil:
			return 0
		case n.gate.cordoning: // It may not succeed.
			return max(n.gate.begun.Add(maxCordonWait).Sub(now), 0)
		default:
			return n.gate.closed(now)
		}
	}
	if node != "" {
		return max(wait(node), wait(""))
	}
	var longest time.Duration
	for node := range w.nodes {
		longest = max(longest, wait(node))
	}
	return longest
}

// makeNotice renders a notice and puts it into the outbox.
func (w *Webhook) makeNotice(ctx context.Context, settings *WebhookSettings, q *eventQueue, t pendingTransition) {
	n, wanted, err := w.render(ctx, settings, t)
	var lost []Notice
	w.mu.Lock()
	switch {
	case n.ID == "":
	case err != nil:
	case !wanted:
		w.outbox.note(n.Event, n.What)
	default:
		q.notices = append(q.notices, pendingNotice{Notice: n, queued: time.Now()})
		lost = w.giveUp(w.outbox.add(n))
	}
	q.busy = false
	w.rendering--
	w.mu.Unlock()
	if err != nil {
		w.report(DeliveryResult{Notice: n, Err: err, GivenUp: true})
	}
	for _, old := range lost {
		w.report(DeliveryResult{Notice: old, Err: errTooMany, GivenUp: true})
	}
}

// giveUp removes notices from their queues, and returns those that are lost. A notice that is being posted may still be delivered:
// its result is reported when it is known.
func (w *Webhook) giveUp(notices []Notice) (lost []Notice) {
	for _, n := range notices {
		q := w.queues[n.Event]
		if q == nil || q.posting != n.ID {
			lost = append(lost, n)
		}
		if q != nil {
			q.remove(n.ID)
		}
	}
	return lost
}

// render makes the notice of a transition; it has no ID if the outcome was reported before.
func (w *Webhook) render(ctx context.Context, settings *WebhookSettings, t pendingTransition) (n Notice, wanted bool, err error) {
	id := t.Entry.Event.ID
	w.mu.Lock()
	news := isNews(w.outbox.of(id), t.outcome)
	w.mu.Unlock()
	if !news {
		return Notice{}, false, nil
	}
	info := w.lookUp(ctx, t.Node)
	phase := phaseOf(t.outcome)
	f := newFields(t.Transition, t.outcome, subject{settings.Cluster, info, t.pods, t.deleted}, w.opts.DryRun)
	n = Notice{ID: f.NoticeID, Event: id, Node: f.Node, Made: f.Made.UTC().Round(0), What: t.outcome}
	n.Text, err = settings.Template.Render(f)
	if err != nil {
		return n, false, fmt.Errorf("making a message: %w", err)
	}
	return n, settings.wants(phase) && n.Text != "", nil
}

// lookUp describes a node and its machine. What cannot be read in time is as it was the last time.
func (w *Webhook) lookUp(ctx context.Context, node string) nodeInfo {
	var info nodeInfo
	w.mu.Lock()
	if n := w.nodes[node]; n != nil {
		info = n.nodeInfo
	}
	w.mu.Unlock()
	if info.machine.ID == "" {
		limited, cancel := context.WithTimeout(ctx, lookupTimeout)
		info.machine = w.opts.Machine(limited, node)
		cancel()
	}
	limited, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	if name, labels := w.opts.Node(limited, node); name != "" {
		info.name, info.labels = name, labels
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := w.nodes[node]; n != nil {
		n.nodeInfo = info
	}
	return info
}

func (q *eventQueue) remove(id string) {
	q.notices = slices.DeleteFunc(q.notices, func(n pendingNotice) bool { return n.ID == id })
}

// post posts a notice, unless it is too old, and handles the result.
func (w *Webhook) post(ctx context.Context, settings *WebhookSettings, q *eventQueue, n pendingNotice, began time.Time, probe bool) {
	over, err := n.age() > maxNoticeAge, errors.New("it is older than a day")
	tried := !over
	if tried {
		err = settings.Post(ctx, n.ID, n.Text)
		_, over = errors.AsType[rejectedError](err)
	}
	canceled := err != nil && !over && ctx.Err() != nil

	w.mu.Lock()
	if probe {
		w.endpoint.probing = false
	}
	switch {
	case canceled, !tried:
	case err == nil, over:
		w.endpoint.succeeded()
	default:
		w.endpoint.failed(err, began, w.newestAge())
	}
	if err == nil || over {
		w.outbox.remove(n.ID)
		q.remove(n.ID)
	} else if !slices.ContainsFunc(q.notices, func(of pendingNotice) bool { return of.ID == n.ID }) { // given up meanwhile
		over, canceled, err = true, false, errTooMany
	}
	q.busy, q.posting = false, ""
	w.posting--
	w.mu.Unlock()
	if !canceled {
		w.report(DeliveryResult{Notice: n.Notice, Err: err, GivenUp: over, Again: n.tries > 0})
	}
}

// newestAge is the age of the newest notice that waits.
func (w *Webhook) newestAge() time.Duration {
	newest := maxNoticeAge
	for _, q := range w.queues {
		if len(q.notices) > 0 {
			newest = min(newest, q.notices[0].age())
		}
	}
	return newest
}

func (w *Webhook) report(t DeliveryResult) {
	w.reporting.Lock()
	defer w.reporting.Unlock()
	w.opts.Told(t)
}

func (w *Webhook) reportDropped() {
	w.mu.Lock()
	dropped := w.dropped
	w.dropped = DeliveryResult{}
	w.mu.Unlock()
	if dropped.GivenUp {
		w.report(dropped)
	}
}

// endpoint is the state of the webhook's endpoint.
type endpoint struct {
	failures   int
	failedAt   time.Time // the last failure; zero while it works
	nextProbe  time.Time // what was queued by failedAt is not tried before
	probing    bool      // a notice is being posted to see whether the endpoint is back
	retryAfter time.Time // the end of the pause that the endpoint has asked for
}

func (e *endpoint) failing() bool { return !e.failedAt.IsZero() }

// wait is how long it takes until a notice may be posted. A notice that was queued after the last failure is tried once without
// waiting.
func (e *endpoint) wait(n pendingNotice, now time.Time) time.Duration {
	if wait := e.retryAfter.Sub(now); wait > 0 {
		return wait
	}
	switch {
	case !e.failing(), n.tries == 0 && n.queued.After(e.failedAt):
		return 0
	case e.probing:
		return idleWait
	}
	return max(e.nextProbe.Sub(now), 0)
}

// beginProbe reports whether posting a notice is a probe: whether it shows if the endpoint is back.
func (e *endpoint) beginProbe(n pendingNotice) bool {
	probe := e.failing() && (n.tries > 0 || !n.queued.After(e.failedAt))
	e.probing = e.probing || probe
	return probe
}

// succeeded keeps a pause that the endpoint has asked for: the notice that it accepted was on its way before.
func (e *endpoint) succeeded() { *e = endpoint{retryAfter: e.retryAfter} }

// failed handles the failure of a post, with the time at which it began. The pause doubles with each failure in a row. It is jittered, so
// that the nodes of a fleet do not all come at once when their endpoint is back.
func (e *endpoint) failed(err error, began time.Time, newestAge time.Duration) {
	now := time.Now()
	if later, ok := errors.AsType[retryAfterError](err); ok {
		if until := now.Add(later.after); until.After(e.retryAfter) {
			e.retryAfter = until
		}
	}
	if e.failing() && began.Before(e.failedAt) {
		return // It was on its way when another post failed: this is the same failure.
	}
	longest := maxPauseOld
	if newestAge < youngNotice {
		longest = maxPauseYoung
	}
	pause := min(minBackoff<<min(e.failures, 16), longest)
	e.failures++
	e.failedAt, e.nextProbe = now, now.Add(wait.Jitter(pause/2, 1))
}
