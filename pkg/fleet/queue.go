package fleet

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// Limits bound how many nodes all processes on the queue drain at once: Draining in all, and Group of those with the same value of the
// label Options.GroupLabel. 0 is no limit.
type Limits struct{ Draining, Group int }

// counts is how many nodes are being drained, in all and by group.
type counts struct {
	all   int
	group map[string]int
}

// dispatch starts the sessions that need not wait, and those for which there is room.
func (f *Fleet) dispatch(t *leaseTerm) {
	f.mu.Lock()
	defer f.mu.Unlock()
	limits := f.rules.Load().Limits
	limited := limits.Draining > 0 || limits.Group > 0
	var waiting []*session
	for _, s := range f.waiting() {
		if limited && !s.urgent.Load() {
			waiting = append(waiting, s)
		} else {
			f.start(t, s)
		}
	}
	switch {
	case f.opts.DryRun:
		for _, s := range admit(waiting, f.countDraining(t, nil), limits) {
			f.start(t, s)
		}
	case len(waiting) > 0:
		f.leases.lookSoon()
		f.updateSlots(t)
	case limited && len(f.draining()) > 0, f.holdsSlots:
		f.updateSlots(t)
	}
}

// start starts a session that waits, unless it has been removed or the term has ended. f.mu is held.
func (f *Fleet) start(t *leaseTerm, s *session) {
	if f.sessions[s.node] != s || s.begun || t.ctx.Err() != nil {
		return
	}
	s.begun = true
	ctx, stop := context.WithCancel(t.ctx)
	s.stop = stop
	f.work.Add(1)
	t.sessions.Go(func() {
		defer f.work.Done()
		defer close(s.ended)
		defer stop()
		s.run(ctx, t)
	})
}

// waiting returns the sessions that have not begun, in the order in which they may. f.mu is held.
func (f *Fleet) waiting() []*session {
	var all []*session
	for _, s := range f.sessions {
		if !s.begun {
			s.prioritize()
			all = append(all, s)
		}
	}
	slices.SortFunc(all, byPriority)
	return all
}

// prioritize sets the urgency and the deadline of a waiting session from its tasks. f.mu is held.
func (s *session) prioritize() {
	urgent, deadline := false, time.Time{}
	for _, t := range s.tasks {
		urgent = urgent || t.isUrgent()
		if byDeadline(t.notice.Event.Deadline, deadline) < 0 {
			deadline = t.notice.Event.Deadline
		}
	}
	s.urgent.Store(urgent)
	s.deadline = deadline
}

// admit returns those of the waiting sessions that may begin while so many nodes are being drained. A session whose group is full holds up
// no other.
func admit(waiting []*session, draining counts, limits Limits) []*session {
	var admitted []*session
	for _, s := range waiting {
		full := limits.Draining > 0 && draining.all >= limits.Draining || limits.Group > 0 && draining.group[s.group] >= limits.Group
		if full && !s.urgent.Load() {
			continue
		}
		draining.all++
		draining.group[s.group]++
		admitted = append(admitted, s)
	}
	return admitted
}

// byPriority sorts urgent sessions first, then by the nearest deadline, then by the time of waiting.
func byPriority(a, b *session) int {
	if urgent := a.urgent.Load(); urgent != b.urgent.Load() {
		if urgent {
			return -1
		}
		return 1
	}
	return cmp.Or(byDeadline(a.deadline, b.deadline), a.since.Compare(b.since), cmp.Compare(a.node, b.node))
}

// byDeadline sorts the nearest deadline first, and none last.
func byDeadline(a, b time.Time) int {
	if a.IsZero() != b.IsZero() {
		if a.IsZero() {
			return 1
		}
		return -1
	}
	return a.Compare(b)
}

// returnWaiting ends the tasks of all sessions that have not begun.
func (f *Fleet) returnWaiting(back func(*task)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, s := range f.sessions {
		if s.begun {
			continue
		}
		delete(f.sessions, name)
		for _, t := range s.tasks {
			back(t)
		}
	}
}
