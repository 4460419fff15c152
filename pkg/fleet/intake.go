package fleet

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/state"
)

// Instances knows what EC2 knows.
type Instances interface {
	Look(ctx context.Context, id string) (found ec2.Instance, known bool, err error)
	// LookAnew is Look, and nothing counts that was said before.
	LookAnew(ctx context.Context, id string) (found ec2.Instance, known bool, err error)
	// InGroup are the IDs of the instances of an Auto Scaling group.
	InGroup(ctx context.Context, group string) ([]string, error)
	// InReservation are those of the instances that run in a capacity reservation.
	InReservation(ctx context.Context, reservation string) ([]string, error)
}

// Take begins what a message asks for. receives is how often the message has been received so far. It does not block.
func (f *Fleet) Take(notices []sqs.Notice, receives int, message Message) {
	f.take(notices, retryPause(receives), message)
}

func (f *Fleet) take(notices []sqs.Notice, pause time.Duration, message Message) {
	w := &messageWork{message: message, open: len(notices), pause: pause}
	for _, n := range notices {
		n.Event.Instance = n.Instance
		t := f.newTask(n, w)
		switch n.About {
		case sqs.Interruption:
			f.handleInterruption(t)
		case sqs.Running:
			f.handleRunning(t)
		case sqs.Launch:
			f.handleLaunch(t)
		default:
			t.done()
		}
	}
}

// handleInterruption finds the node that an interruption is for. EC2 is asked only where that makes a difference. What is to be ignored here may be
// wanted by others.
func (f *Fleet) handleInterruption(t *task) {
	if f.ignored(t) && !f.opts.LeaveUnknown {
		t.done()
		return
	}
	if t.notice.Reservation != "" {
		f.background(func(ctx context.Context) { f.expandReservation(ctx, t) })
		return
	}
	found, there := f.nodes.findInstance(t.notice.Instance)
	switch {
	case there && !f.opts.ManagedOnly:
		f.beginTask(found, t)
	case !there && !f.nodes.hasUnidentified() && !f.opts.ManagedOnly:
		f.background(func(ctx context.Context) { f.confirmNoNode(ctx, t) })
	default:
		f.background(func(ctx context.Context) { f.lookUpInstance(ctx, t) })
	}
}

func (f *Fleet) ignored(t *task) bool { return f.policy().Ignores(state.Entry{Event: t.notice.Event}) }

// beginTask begins what an interruption asks for at its node, unless that is over or nothing.
func (f *Fleet) beginTask(n node, t *task) {
	switch {
	case f.ignored(t):
		t.done()
		return
	case f.needsVerification(t):
		f.background(func(ctx context.Context) { f.verify(ctx, n, t) })
		return
	}
	if !isStale(t.notice) {
		f.hold(t)
		f.join(n, t)
		return
	}
	f.background(func(ctx context.Context) {
		over, err := f.runsAgain(ctx, t.notice, n)
		switch {
		case err != nil:
			f.retryLater(ctx, t, err)
		case over:
			f.endOvertaken(t, n)
		default:
			f.hold(t)
			f.join(n, t)
		}
	})
}

// lookUpInstance asks EC2 about an interruption's instance, and then decides as if that had been known.
func (f *Fleet) lookUpInstance(ctx context.Context, t *task) {
	var found node
	var there bool
	if f.opts.Instances != nil {
		instance, managed := f.managedInstance(ctx, t)
		if !managed {
			return
		}
		if found, there = f.nodes.findInstance(t.notice.Instance); !there {
			found, there = f.nodes.findDNS(instance.DNS)
		}
	}
	if there {
		f.beginTask(found, t)
	} else {
		f.confirmNoNode(ctx, t)
	}
}

// retryLater gives a task back for which the API server or AWS could not be asked.
func (f *Fleet) retryLater(ctx context.Context, t *task, err error) {
	if ctx.Err() != nil {
		t.retryAfter(0)
		return
	}
	f.opts.Log.Warn(err)
	t.retry()
}

// endWithoutNode says that an instance has no Node here, and ends its task.
func (f *Fleet) endWithoutNode(t *task, who owner) {
	if who == otherCluster {
		f.opts.Log.Infof("%s: the instance %s is another cluster's", describeNotice(t.notice), t.notice.Instance)
	} else {
		f.logNoNode(t)
	}
	f.endForeign(t)
}

// logNoNode says that an instance has no Node here.
func (f *Fleet) logNoNode(t *task) {
	f.opts.Log.Infof("%s: the instance %s has no Node in this cluster", describeNotice(t.notice), t.notice.Instance)
}

// endOwnWithoutNode ends a task of an instance of ours that has no Node: nobody else wants its message. One that is about to be taken may yet join.
func (f *Fleet) endOwnWithoutNode(t *task) {
	switch ev := t.notice.Event; {
	case f.groupWaits(t) && f.wantsDrain(t):
		f.opts.Log.Infof("%s: the instance %s has no Node in this cluster, and the Auto Scaling group %s need not wait for it",
			describeNotice(t.notice), t.notice.Instance, t.notice.Hook.Group)
		f.completeTask(t, event.Drained)
	case t.notice.About == sqs.Interruption && isUrgent(ev) && time.Now().Before(ev.Deadline):
		t.retry()
	default:
		f.logNoNode(t)
		t.done()
	}
}

func describeNotice(n sqs.Notice) string {
	if n.Event.Kind != "" {
		return string(n.Event.Kind)
	}
	return string(n.About)
}

// endForeign ends what is not ours: it is deleted, or left to others. It is not kept from them for longer than what failed here, as it comes
// back here as often as to them.
func (f *Fleet) endForeign(t *task) {
	if f.opts.LeaveUnknown {
		t.retry()
		return
	}
	t.done()
}

// expandReservation makes of the end of a reservation one interruption for each of its instances.
func (f *Fleet) expandReservation(ctx context.Context, t *task) {
	if f.opts.Instances == nil {
		f.confirmNoNode(ctx, t)
		return
	}
	found, err := f.opts.Instances.InReservation(ctx, t.notice.Reservation)
	if err != nil {
		f.retryLater(ctx, t, err)
		return
	}
	notices := make([]sqs.Notice, 0, len(found))
	for _, id := range found {
		n := t.notice
		n.Instance, n.Reservation = id, ""
		n.Event.ID += "-" + id
		notices = append(notices, n)
	}
	if len(notices) == 0 {
		t.done()
		return
	}
	f.take(notices, t.message.pause, taskMessage{t})
}

// taskMessage makes a task the message of others, which it waits for.
type taskMessage struct{ *task }

// Done implements Message.
func (m taskMessage) Done() { m.done() }

// Return implements Message.
func (m taskMessage) Return(after time.Duration) { m.retryAfter(after) }

// uncordonLimit is how long an instance that has been started may take to be Ready.
const uncordonLimit = 15 * time.Minute

// handleRunning takes in that an instance runs. A drain for its stop is over, and a cordon of nth's from before was for what is over now.
func (f *Fleet) handleRunning(t *task) {
	found, there := f.nodes.findInstance(t.notice.Instance)
	if there || !f.opts.LeaveUnknown && !f.nodes.hasUnidentified() {
		f.endStopped(found, t)
		return
	}
	f.background(func(ctx context.Context) {
		if !f.endIfForeign(ctx, t) {
			found, _ := f.findNode(ctx, t.notice.Instance)
			f.endStopped(found, t)
		}
	})
}

// endStopped ends what is over at the node of an instance that runs, and lifts the cordon that was for that.
func (f *Fleet) endStopped(found node, t *task) {
	if found.name == "" {
		t.done()
		return
	}
	halted, busy := f.endTasksBefore(found, t.notice.Event.Noticed)
	if _, left := f.staleCordon(found, t); busy || halted == nil && !left {
		t.done()
		return
	}
	f.background(func(ctx context.Context) {
		if halted != nil {
			<-halted.ended
		}
		f.uncordonStarted(ctx, found.name, t)
	})
}

// staleCordon is a cordon of nth-queue's from before the instance ran, which is to be lifted.
func (f *Fleet) staleCordon(on node, t *task) (claim drain.Claim, left bool) {
	return on.cordon, f.opts.UncordonStarted && on.ours && on.cordon.Since.Before(t.notice.Event.Noticed)
}

// uncordonStarted takes back what nth-queue has left on the node of an instance that runs again.
func (f *Fleet) uncordonStarted(ctx context.Context, name string, t *task) {
	limited, cancel := context.WithTimeout(ctx, uncordonLimit)
	defer cancel()
	held, err := f.opts.Client.CoreV1().Nodes().Get(limited, name, metav1.GetOptions{}) // The watch may not have told of the cordon yet.
	if err != nil && !apierrors.IsNotFound(err) {
		f.retryLater(ctx, t, fmt.Errorf("reading node %q: %w", name, err))
		return
	}
	claim, left := f.staleCordon(f.nodes.parse(held), t)
	if err != nil || !left {
		t.done()
		return
	}
	if !f.opts.DryRun {
		err = f.untaint(limited, name) // First, as the cordon tells the next attempt that something is left.
	}
	if err == nil {
		booted := func(id string) bool { return id != claim.BootID }
		_, err = f.drainNode(name, nil).Uncordon(limited, booted)
	}
	if err != nil {
		f.retryLater(ctx, t, err)
		return
	}
	f.opts.Log.WithField(fieldNode, name).Info("the instance has been started: its node takes pods again")
	f.reportClosed(name, state.Entry{
		Event: event.Event{ID: claim.Event, Kind: event.Kind(claim.Kind)}, Ending: state.Completed, FirstSeen: claim.Since,
	})
	t.done()
}

// reportClosed tells that an event is over, and that nothing is left of it on the node. Where a session works on the node, its listeners are
// told: they alone know how the node stands.
func (f *Fleet) reportClosed(node string, e state.Entry) {
	if f.opts.Listeners == nil {
		return
	}
	now := time.Now()
	e.Phase, e.Changed = state.Closed, now.Round(0)
	told := f.listenersOf(node)
	if told == nil {
		var end func(lost bool)
		told, end = f.opts.Listeners(node, func() []state.Entry { return append(f.otherEntries(node, []state.Entry{e}), e) })
		defer end(false)
	}
	for _, l := range told {
		l.OnTransition(state.Transition{Kind: state.ClosedWith, At: now, Node: node, Entry: e, Plan: f.policy().Describe(e)})
	}
}

// listenersOf are those of the session that works on a node; nil if there is none.
func (f *Fleet) listenersOf(node string) []agent.Listener {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.sessions[node]; s != nil {
		return s.listeners
	}
	return nil
}

// confirmNoNode decides what becomes of a task whose instance has no Node, as far as the watch has told. What is another cluster's is left to it
// as soon as a tag says so. All else is a stranger's only once the API server says that there is no such Node: the watch may be behind, and
// a Node that has joined since it broke off is not in it. If it comes meanwhile, the task goes on with it.
func (f *Fleet) confirmNoNode(ctx context.Context, t *task) {
	asking, stop := f.untilNodeAppears(ctx, t.notice.Instance)
	defer stop()
	who, err := f.ownerOf(asking, t)
	if err != nil && !f.groupWaits(t) {
		who, err = unknownOwner, nil // The API server's word will do.
	}
	there := false
	if err == nil && !f.isForeign(who) {
		there, err = f.lister.has(asking, t.notice.Instance)
	}
	found, known := f.findNode(ctx, t.notice.Instance)
	switch {
	case known && t.notice.About == sqs.Interruption:
		f.beginTask(found, t)
	case err != nil && !known:
		f.retryLater(ctx, t, err)
	case known || there:
		t.retry() // The watch knows it, or a launch has come to its end, when the message comes again.
	case who == thisCluster:
		f.endOwnWithoutNode(t)
	default:
		f.endWithoutNode(t, who)
	}
}

// untilNodeAppears returns a context that ends when the watch tells of an instance's Node.
func (f *Fleet) untilNodeAppears(ctx context.Context, instance string) (context.Context, context.CancelFunc) {
	waiting, stop := context.WithCancel(ctx)
	f.work.Go(func() {
		for {
			news := f.nodes.changes()
			if _, there := f.nodes.findInstance(instance); there {
				stop()
			}
			select {
			case <-news:
			case <-waiting.Done():
				return
			}
		}
	})
	return waiting, stop
}

// staleAfter is for how long it is believed what a message says has happened to an instance. That is longer than a message is on
// its way, and longer than what EC2 describes is behind what it has told; an instance is hardly stopped and started again
// in less. A message may wait for much longer: in the queue while nobody reads it, or in the line.
const staleAfter = 2 * time.Minute

// isStale tells whether what a notice says may have been undone since: who was stopped may have been started again. What
// was terminated has not, so a spot instance that still runs after its termination was due is about to go. A message
// that does not tell when it is of is not stale.
func isStale(n sqs.Notice) bool {
	stops := stopTime(n)
	return !stops.IsZero() && time.Since(stops) > staleAfter
}

// stopTime is when a notice says that its instance stops; zero if it says something else.
func stopTime(n sqs.Notice) time.Time {
	switch ev := n.Event; {
	case ev.Kind == event.StateChange:
		return ev.Noticed
	case ev.Kind == event.SpotInterruption && (ev.Code == "stop" || ev.Code == "hibernate"):
		return ev.Deadline
	}
	return time.Time{}
}

// runsAgain tells whether a stale notice is over: its instance runs. It is EC2 who knows. Where EC2 cannot be asked at
// all, a Node that is Ready will do, as a machine that has been down for longer than lag has none: to leave an instance to
// itself that is slow to stop costs less than to empty one that has come back.
func (f *Fleet) runsAgain(ctx context.Context, n sqs.Notice, at node) (bool, error) {
	if f.opts.Instances == nil {
		return at.ready, nil
	}
	instance, known, err := f.opts.Instances.LookAnew(ctx, n.Instance)
	return known && instance.Runs(), err
}

// endOvertaken ends a task whose notice has been overtaken.
func (f *Fleet) endOvertaken(t *task, at node) {
	f.opts.Log.WithField(fieldNode, at.name).Infof("%s: the instance %s runs again: what was said of it (%s) is over",
		describeNotice(t.notice), t.notice.Instance, t.notice.Event.Code)
	t.done()
}

// endTasksBefore ends those of a node's tasks that are over as its instance ran then, whatever is being done for them. It returns the session if
// that was for nothing else, and otherwise whether there is one that needs the node as it is.
func (f *Fleet) endTasksBefore(at node, ran time.Time) (halted *session, busy bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.sessions[at.name]
	if s == nil || !s.begun || s.over {
		return nil, false // What waits in the line is judged when its turn comes.
	}
	for id, t := range s.tasks {
		if stops := stopTime(t.notice); stops.IsZero() || stops.After(ran) {
			continue
		}
		s.forget(id)
		f.endOvertaken(t, at)
		s.announce(t.notice.Event.Kind)
	}
	if len(s.tasks) > 0 {
		return nil, true
	}
	s.over = true
	s.stop()
	return s, false
}

// dropStale ends the tasks of a session for which nothing is left to be done when its turn comes, as the Node that is held says or EC2, and
// gives back those of which EC2 cannot be asked. It tells whether any are left.
func (s *session) dropStale(ctx context.Context, held *corev1.Node) bool {
	f := s.fleet
	on := f.nodes.parse(held)
	var obsolete, stale []*task
	f.mu.Lock()
	lift := s.tasks[on.cordon.Event]
	lifts := lift != nil && lift.lifts && on.ours // Then all else is looked after again.
	for id, t := range s.tasks {
		ev := t.notice.Event
		_, noted := on.notes.find(ev)
		if !lifts && (t.lifts || noted && ev.State == event.Pending && !f.isDue(on, ev)) {
			s.forget(id)
			obsolete = append(obsolete, t)
		} else if isStale(t.notice) {
			stale = append(stale, t)
		}
	}
	f.mu.Unlock()
	for _, t := range obsolete {
		f.endNotDue(on, t)
	}
	at, _ := f.nodes.find(s.node)
	for _, t := range stale {
		over, err := f.runsAgain(ctx, t.notice, at)
		if err == nil && !over {
			continue
		}
		f.mu.Lock()
		s.forget(t.notice.Event.ID)
		f.mu.Unlock()
		if err != nil {
			f.retryLater(ctx, t, err)
		} else {
			f.endOvertaken(t, at)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s.over = len(s.tasks) == 0
	return !s.over
}
