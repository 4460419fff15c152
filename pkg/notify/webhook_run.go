package notify

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
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
)

// Run makes notices and posts them until ctx ends, and then tries once more, for a moment, what is left. Run it once.
func (w *Webhook) Run(ctx context.Context) {
	for ctx.Err() == nil {
		wait := w.turn(ctx)
		select {
		case <-ctx.Done():
		case <-w.wake:
		case <-time.After(wait):
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTime)
	defer cancel()
	if settings, heard := w.take(); settings != nil {
		w.write(last, settings, heard)
		w.round(last, settings, true)
	}
}

// turn does what there is to do, and returns how long there is nothing more if nothing is heard.
func (w *Webhook) turn(ctx context.Context) time.Duration {
	if wait := w.closed(time.Now()); wait > 0 {
		return wait
	}
	settings, heard := w.take()
	if settings == nil {
		return idle
	}
	if w.write(ctx, settings, heard) {
		w.retry = time.Time{}
	}
	if wait := time.Until(w.retry); wait > 0 {
		return wait
	}
	if len(w.opts.Outbox.Waiting()) == 0 {
		return idle
	}
	return w.round(ctx, settings, false)
}

// closed is how long notices give way to a cordon.
func (w *Webhook) closed(now time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	wait := w.gate.closed(now)
	if w.gate.cordoning {
		wait = w.begun.Add(cordonTime).Sub(now)
	}
	return max(wait, 0)
}

// take returns the settings and what was heard.
func (w *Webhook) take() (*WebhookSettings, []heard) {
	w.mu.Lock()
	defer w.mu.Unlock()
	heard := w.heard
	w.heard = nil
	return w.settings, heard
}

// write makes notices and puts them into the outbox. It tells whether there were any.
func (w *Webhook) write(ctx context.Context, settings *WebhookSettings, heard []heard) bool {
	if len(heard) == 0 {
		return false
	}
	for i, h := range heard {
		if i == 0 || h.Node != w.asked {
			w.ask(ctx, h.Node)
		}
		if !due(w.opts.Outbox.Told(h.Entry.Event.ID), h.outcome) {
			continue
		}
		if h.Node == "" {
			h.Node = w.node
		}
		phase := phaseOf(h.outcome)
		f := fieldsOf(h.Happening, phase, h.outcome, h.pods, w.opts.DryRun)
		w.machine.into(&f)
		if w.labels != nil {
			f.NodeLabels = w.labels
		}
		n := record.Notice{ID: f.NoticeID, Event: h.Entry.Event.ID, Made: f.Made.UTC().Round(0), What: h.outcome}
		text, err := settings.Template.Render(f)
		if err != nil {
			w.opts.Told(Telling{Notice: n, Err: fmt.Errorf("making a message: %w", err), GivenUp: true})
			continue
		}
		n.Text = text
		w.keep(n, settings.wants(phase))
	}
	return true
}

// ask asks what a node and its machine are. What is not answered in time stays what it was.
func (w *Webhook) ask(ctx context.Context, about string) {
	if about != w.asked {
		w.asked, w.machine, w.node, w.labels = about, Machine{}, "", nil
	}
	if w.machine.ID == "" {
		asking, cancel := context.WithTimeout(ctx, askTime)
		w.machine = w.opts.Machine(asking, about)
		cancel()
	}
	asking, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	if node, labels := w.opts.Node(asking, about); node != "" {
		w.node, w.labels = node, labels
	}
}

// keep puts one notice into the outbox, or only notes it there, if nobody wants it.
func (w *Webhook) keep(n record.Notice, wanted bool) {
	if !wanted || n.Text == "" {
		if err := w.opts.Outbox.Note(n.Event, n.What); err != nil {
			w.opts.Told(Telling{Notice: n, Err: err})
		}
		return
	}
	givenUp, err := w.opts.Outbox.Add(n)
	if err != nil {
		w.opts.Told(Telling{Notice: n, Err: err, GivenUp: errors.Is(err, record.ErrTooLong)})
	}
	for _, old := range givenUp {
		w.opts.Told(Telling{Notice: old, Err: errors.New("too many are waiting"), GivenUp: true})
	}
}

// round tries to post everything that waits, in order for each event: where one fails, those behind it wait. Unless it is
// the last round, it gives way to a cordon. It returns how long to wait until the next round.
func (w *Webhook) round(ctx context.Context, settings *WebhookSettings, last bool) time.Duration {
	stuck := map[string]bool{}
	newest := oldest
	for _, n := range w.opts.Outbox.Waiting() {
		if ctx.Err() != nil || !last && w.closed(time.Now()) > 0 {
			break
		}
		if stuck[n.Event] {
			continue
		}
		age := time.Since(n.Made)
		if age > oldest {
			w.settle(n, errors.New("it is older than a day"), true)
			continue
		}
		err := settings.Post(ctx, n.ID, n.Text)
		if ctx.Err() != nil && err != nil {
			return 0
		}
		_, rejected := errors.AsType[rejectedError](err)
		w.settle(n, err, rejected)
		if err != nil && !rejected {
			stuck[n.Event] = true
			newest = min(newest, age)
		}
	}
	if len(stuck) == 0 {
		w.failures, w.retry = 0, time.Time{}
		return w.closed(time.Now())
	}
	pause := w.pause(newest)
	w.retry = time.Now().Add(pause)
	return pause
}

// settle takes in what became of a notice, and tells it.
func (w *Webhook) settle(n record.Notice, err error, over bool) {
	again := w.tried[n.ID]
	w.tried[n.ID] = true
	if err == nil || over {
		delete(w.tried, n.ID)
		if removing := w.opts.Outbox.Remove(n.ID); removing != nil {
			w.opts.Told(Telling{Notice: n, Err: removing})
		}
	}
	w.opts.Told(Telling{Notice: n, Err: err, GivenUp: err != nil && over, Again: again})
}

// pause doubles with each round that went wrong. It is spread, so that the nodes of a fleet do not come all at once when
// their endpoint is back.
func (w *Webhook) pause(newest time.Duration) time.Duration {
	longest := patientPause
	if newest < urgent {
		longest = urgentPause
	}
	pause := min(firstPause<<min(w.failures, 16), longest)
	w.failures++
	return pause/2 + rand.N(pause/2+1)
}

func withoutNamespace(pod string) string {
	_, name, found := strings.Cut(pod, "/")
	if !found {
		return pod
	}
	return name
}
