package fleet

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/sqs"
)

// lag is for how long it is believed what a message says has happened to an instance. That is longer than a message is on
// its way, and longer than what EC2 describes is behind what it has told; an instance is hardly stopped and started again
// in less. A message may wait for much longer: in the queue while nobody reads it, or in the line.
const lag = 2 * time.Minute

// stale tells whether what a notice says may have been undone since: who was stopped may have been started again. What
// was terminated has not, so a spot instance that still runs after its termination was due is about to go. A message
// that does not tell when it is of is not stale.
func stale(n sqs.Notice) bool {
	stops := stopped(n)
	return !stops.IsZero() && time.Since(stops) > lag
}

// stopped is when a notice says that its instance stops; zero if it says something else.
func stopped(n sqs.Notice) time.Time {
	switch ev := n.Event; {
	case ev.Kind == event.StateChange:
		return ev.Noticed
	case ev.Kind == event.SpotInterruption && (ev.Code == "stop" || ev.Code == "hibernate"):
		return ev.Deadline
	}
	return time.Time{}
}

// overtaken tells whether a stale notice is over: its instance runs. It is EC2 who knows. Where EC2 cannot be asked at
// all, a Node that is Ready will do, as a machine that has been down for longer than lag has none: to leave an instance to
// itself that is slow to stop costs less than to empty one that has come back.
func (f *Fleet) overtaken(ctx context.Context, n sqs.Notice, at node) (bool, error) {
	if f.opts.Instances == nil {
		return at.ready, nil
	}
	instance, known, err := f.opts.Instances.LookAnew(ctx, n.Instance)
	return known && instance.Runs(), err
}

// pass ends a task whose notice has been overtaken.
func (f *Fleet) pass(t *task, at node) {
	f.opts.Log.WithField(fieldNode, at.name).Infof("%s: the instance %s runs again: what was said of it (%s) is over",
		about(t.notice), t.notice.Instance, t.notice.Event.Code)
	t.done()
}

// overtake ends those of a node's tasks that are over as its instance ran then, whatever is being done for them. It returns the session if
// that was for nothing else, and otherwise whether there is one that needs the node as it is.
func (f *Fleet) overtake(at node, ran time.Time) (halted *session, busy bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.sessions[at.name]
	if s == nil || !s.begun || s.over {
		return nil, false // What waits in the line is judged when its turn comes.
	}
	for id, t := range s.tasks {
		if stops := stopped(t.notice); stops.IsZero() || stops.After(ran) {
			continue
		}
		delete(s.tasks, id)
		delete(s.announced, id)
		f.pass(t, at)
		s.announce(t.notice.Event.Kind)
	}
	if len(s.tasks) > 0 {
		return nil, true
	}
	s.over = true
	s.stop()
	return s, false
}

// sift ends those of a session's tasks that have been overtaken, or done by another process, while it waited for its turn, and gives
// back those of which nobody can say. It tells whether any are left. held is the Node as it is now.
func (s *session) sift(ctx context.Context, held *corev1.Node) bool {
	f := s.fleet
	on := f.nodes.of(held)
	for _, t := range s.superfluous(on) {
		f.notOwed(on, t)
	}
	at, _ := f.nodes.named(s.node)
	for _, t := range s.stale() {
		over, err := f.overtaken(ctx, t.notice, at)
		if err == nil && !over {
			continue
		}
		f.mu.Lock()
		delete(s.tasks, t.notice.Event.ID)
		delete(s.announced, t.notice.Event.ID)
		f.mu.Unlock()
		if err != nil {
			f.failed(ctx, t, err)
		} else {
			f.pass(t, at)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s.over = len(s.tasks) == 0
	return !s.over
}

// superfluous takes out the tasks for which nothing is left to be done, as the Node says.
func (s *session) superfluous(held node) []*task {
	f := s.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	var done []*task
	for _, t := range s.tasks {
		ev := t.notice.Event
		_, noted := held.notes.find(ev)
		switch {
		case t.lifts && held.ours && held.cordon.Event == ev.ID:
			return nil // What goes on beside it is to be looked after again.
		case t.lifts, noted && ev.State == event.Pending && !f.owed(held, ev): // What is lifted by now would be drained for anew.
			done = append(done, t)
		}
	}
	for _, t := range done {
		delete(s.tasks, t.notice.Event.ID)
		delete(s.announced, t.notice.Event.ID)
	}
	return done
}

// stale are the tasks whose notices have grown old.
func (s *session) stale() []*task {
	s.fleet.mu.Lock()
	defer s.fleet.mu.Unlock()
	var old []*task
	for _, t := range s.tasks {
		if stale(t.notice) {
			old = append(old, t)
		}
	}
	return old
}
