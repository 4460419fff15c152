package fleet

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/state"
)

// Instances is what EC2 knows about instances. ec2.Catalog implements it.
type Instances interface {
	Look(ctx context.Context, id string) (found ec2.Instance, known bool, err error)
	// LookAnew is Look without a cache.
	LookAnew(ctx context.Context, id string) (found ec2.Instance, known bool, err error)
	// InGroup returns the IDs of the instances of an Auto Scaling group.
	InGroup(ctx context.Context, group string) ([]string, error)
	// InReservation returns the IDs of the instances that run in a capacity reservation.
	InReservation(ctx context.Context, reservation string) ([]string, error)
}

// Take begins the work that a message asks for. receives is how often the message has been received. It does not block.
func (f *Fleet) Take(notices []sqs.Notice, receives int, message Message) {
	f.take(notices, retryPause(receives), message)
}

// take is Take with the delay after a failure.
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

// handleInterruption finds the node that an interruption is for. EC2 is asked only where its answer makes a difference. An event that is
// ignored here may concern another cluster, which must get its message with LeaveUnknown.
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

// beginTask gives an interruption to the session of its node, unless it is ignored or over.
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

// lookUpInstance asks EC2 about an interruption's instance, and then finds its node.
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

// retryLater logs why the API server or AWS could not be asked, and returns the task to be tried again.
func (f *Fleet) retryLater(ctx context.Context, t *task, err error) {
	if ctx.Err() != nil {
		t.retryAfter(0)
		return
	}
	f.opts.Log.Warn(err)
	t.retry()
}

// endWithoutNode logs that an instance has no Node here, and ends its task.
func (f *Fleet) endWithoutNode(t *task, who owner) {
	if who == otherCluster {
		f.opts.Log.Infof("%s: the instance %s is another cluster's", describeNotice(t.notice), t.notice.Instance)
	} else {
		f.logNoNode(t)
	}
	f.endForeign(t)
}

// logNoNode logs that an instance has no Node here.
func (f *Fleet) logNoNode(t *task) {
	f.opts.Log.Infof("%s: the instance %s has no Node in this cluster", describeNotice(t.notice), t.notice.Instance)
}

// endOwnWithoutNode ends a task about an instance of this cluster that has no Node: no other reader of the queue needs its message. An
// instance that is about to be interrupted may still join the cluster.
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

// endForeign ends a task that does not concern this cluster: its message is deleted or, with LeaveUnknown, returned for others, with the
// same delay as after a failure.
func (f *Fleet) endForeign(t *task) {
	if f.opts.LeaveUnknown {
		t.retry()
		return
	}
	t.done()
}

// expandReservation turns the end of a capacity reservation into one interruption for each of its instances.
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

// taskMessage is a task that waits for other tasks, as their Message.
type taskMessage struct{ *task }

// Done implements Message.
func (m taskMessage) Done() { m.done() }

// Return implements Message.
func (m taskMessage) Return(after time.Duration) { m.retryAfter(after) }

// uncordonLimit is how long an instance that has been started may take until its node is Ready.
const uncordonLimit = 15 * time.Minute

// handleRunning handles that an instance runs: a drain because of its stop is over, and a cordon of nth-queue that is older is no longer
// needed.
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

// endStopped ends the tasks that are over because the instance runs again, and uncordons its node.
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

// staleCordon returns the cordon that nth-queue had set before the instance was started, if it is to be lifted.
func (f *Fleet) staleCordon(on node, t *task) (claim drain.Claim, left bool) {
	return on.cordon, f.opts.UncordonStarted && on.ours && on.cordon.Since.Before(t.notice.Event.Noticed)
}

// uncordonStarted takes back what nth-queue has left on the node of an instance that runs again.
func (f *Fleet) uncordonStarted(ctx context.Context, name string, t *task) {
	limited, cancel := context.WithTimeout(ctx, uncordonLimit)
	defer cancel()
	held, err := f.opts.Client.CoreV1().Nodes().Get(limited, name, metav1.GetOptions{}) // The watch may not show the cordon yet.
	if err != nil && !drain.NotFound(err) {
		f.retryLater(ctx, t, fmt.Errorf("reading node %q: %w", name, err))
		return
	}
	claim, left := f.staleCordon(f.nodes.parse(held), t)
	if err != nil || !left {
		t.done()
		return
	}
	if !f.opts.DryRun {
		err = f.untaint(limited, name) // Before the cordon, which tells the next attempt that something is left.
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

// reportClosed reports to the node's listeners that an event is over and that nothing of it is left on the node. If a session works on the
// node, its listeners are used, because they keep the node's conditions.
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

// listenersOf returns the listeners of the session that works on a node; nil if there is none.
func (f *Fleet) listenersOf(node string) []agent.Listener {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.sessions[node]; s != nil {
		return s.listeners
	}
	return nil
}

// confirmNoNode decides what becomes of a task whose instance has no Node in the watch. If a tag says that the instance is another
// cluster's, that is enough. Otherwise the API server has to confirm that there is no such Node, because the watch may be behind. If the
// Node appears in the meantime, the task continues with it.
func (f *Fleet) confirmNoNode(ctx context.Context, t *task) {
	asking, stop := f.untilNodeAppears(ctx, t.notice.Instance)
	defer stop()
	who, err := f.ownerOf(asking, t)
	if err != nil && !f.groupWaits(t) {
		who, err = unknownOwner, nil // The API server's answer is enough.
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
		t.retry() // By the next time, the watch has the Node, or the launch is over.
	case who == thisCluster:
		f.endOwnWithoutNode(t)
	default:
		f.endWithoutNode(t, who)
	}
}

// untilNodeAppears returns a context that ends when an instance's Node appears in the watch.
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

// staleAfter is the age up to which a message about a stop is believed without asking EC2. It is longer than a message takes to arrive and
// than the lag of the EC2 API, and an instance is hardly ever stopped and started again in less. A message is older if nobody has read the
// queue, or if its node has waited for its turn.
const staleAfter = 2 * time.Minute

// isStale reports whether a notice is so old that its instance, which was stopped, may have been started again. A terminated instance is
// never started again, so a spot instance that still runs after its termination was due is about to go. A notice without a time is not
// stale.
func isStale(n sqs.Notice) bool {
	stops := stopTime(n)
	return !stops.IsZero() && time.Since(stops) > staleAfter
}

// stopTime is when the instance stops according to a notice; zero if the notice is not about a stop.
func stopTime(n sqs.Notice) time.Time {
	switch ev := n.Event; {
	case ev.Kind == event.StateChange:
		return ev.Noticed
	case ev.Kind == event.SpotInterruption && (ev.Code == "stop" || ev.Code == "hibernate"):
		return ev.Deadline
	}
	return time.Time{}
}

// runsAgain reports whether the instance of a stale notice runs, so that the notice is over. Without EC2, a node that is Ready counts as
// running: a machine that has been down for staleAfter is not Ready, and leaving a slow stop alone does less harm than draining a node
// that has come back.
func (f *Fleet) runsAgain(ctx context.Context, n sqs.Notice, at node) (bool, error) {
	if f.opts.Instances == nil {
		return at.ready, nil
	}
	instance, known, err := f.opts.Instances.LookAnew(ctx, n.Instance)
	return known && instance.Runs(), err
}

// endOvertaken ends a task whose instance runs again.
func (f *Fleet) endOvertaken(t *task, at node) {
	f.opts.Log.WithField(fieldNode, at.name).Infof("%s: the instance %s runs again: what was said of it (%s) is over",
		describeNotice(t.notice), t.notice.Instance, t.notice.Event.Code)
	t.done()
}

// endTasksBefore ends those of a node's tasks that are over because its instance ran at that time, even if they are being worked on. It
// returns the session if that has left it without tasks, and otherwise whether there is a session that needs the node as it is.
func (f *Fleet) endTasksBefore(at node, ran time.Time) (halted *session, busy bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.sessions[at.name]
	if s == nil || !s.begun || s.over {
		return nil, false // dropStale decides about a session that waits, when its turn comes.
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

// dropStale ends the tasks for which nothing is left to be done when the session's turn comes, according to the Node, as it was when it
// was claimed, or to EC2. It returns those about which EC2 cannot be asked, and reports whether any task is left.
func (s *session) dropStale(ctx context.Context, held *corev1.Node) bool {
	f := s.fleet
	on := f.nodes.parse(held)
	var obsolete, stale []*task
	f.mu.Lock()
	lift := s.tasks[on.cordon.Event]
	lifts := lift != nil && lift.lifts && on.ours // The session works on its other events anyway.
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
