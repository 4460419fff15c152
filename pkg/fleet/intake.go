package fleet

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

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
		f.confirmLater(t)
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
	if f.opts.Instances == nil {
		f.confirmLater(t)
		return
	}
	instance, managed := f.managedInstance(ctx, t)
	if !managed {
		return
	}
	found, there := f.nodes.findInstance(t.notice.Instance)
	if !there {
		found, there = f.nodes.findDNS(instance.DNS)
	}
	if there {
		f.beginTask(found, t)
	} else {
		f.confirmLater(t)
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

// confirmLater decides what becomes of a notice of an instance that has no Node, as far as the watch has told.
func (f *Fleet) confirmLater(t *task) {
	f.background(func(ctx context.Context) { f.confirmNoNode(ctx, t) })
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
		f.completeWithoutNode(t)
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
		f.confirmLater(t)
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

const (
	// gathering is how long those who must know which Nodes there are wait for others who do, and pace how long it is from one answer to the
	// next question at least.
	gathering, pace = time.Second, 10 * time.Second
	// briefly is how long the watch may take to catch up before all Nodes are listed, for the first question in a long while. For others it
	// is a minute and a half: where nothing happens to any Node, a bookmark comes about each minute.
	briefly, lagging, while = 2 * time.Second, 90 * time.Second, 5 * time.Minute
	// page is how many Nodes are in memory at once while they are listed.
	page = 200
)

// nodeLister tells those who must know it that the watch is not behind. Everybody is answered by what the API server has said after they asked,
// and those who ask at the same time by the same. It asks for a list of one Node, which comes with the version of all: when the watch has
// told of that version, or of a later one, it has told of every Node that was there. Where it does not get there, or versions are no
// numbers, all Nodes are listed.
type nodeLister struct {
	client kubernetes.Interface
	nodes  *nodes
	begin  func(func(ctx context.Context))
	turn   chan struct{} // holds an element while a question is under way

	mu   sync.Mutex
	next *listCall // the one that has not begun yet; nil without one

	asked time.Time // when the last question was answered; who has the turn has it
}

// listCall is one question.
type listCall struct {
	done chan struct{}
	// instances are those that have a Node, where all were listed; nil where the watch knows.
	instances map[string]bool
	err       error
}

func newNodeLister(client kubernetes.Interface, nodes *nodes, begin func(func(ctx context.Context))) *nodeLister {
	return &nodeLister{client: client, nodes: nodes, begin: begin, turn: make(chan struct{}, 1)}
}

// has tells whether there is a Node of that EC2 instance now.
func (r *nodeLister) has(ctx context.Context, instance string) (bool, error) {
	r.mu.Lock()
	c := r.next
	if c == nil {
		c = &listCall{done: make(chan struct{})}
		r.next = c
		r.begin(func(ctx context.Context) { // Others may wait for it when the one who began it does not any more.
			defer close(c.done)
			defer r.begun(c) // Also if its term ended before that.
			if c.err = r.call(ctx, c); c.err != nil {
				c.err = fmt.Errorf("listing the nodes: %w", c.err)
			}
		})
	}
	r.mu.Unlock()
	select {
	case <-c.done:
		_, there := r.nodes.findInstance(instance)
		return there || c.instances[instance], c.err
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// begun has those who ask from now on wait for another question.
func (r *nodeLister) begun(c *listCall) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == c {
		r.next = nil
	}
}

// call waits for its turn, and asks.
func (r *nodeLister) call(ctx context.Context, c *listCall) error {
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if !drain.Await(ctx, nil, max(gathering, time.Until(r.asked.Add(pace)))) {
		return ctx.Err()
	}
	r.begun(c)
	one, err := r.page(ctx, 1, "")
	if err != nil {
		return err
	}
	within := lagging
	if time.Since(r.asked) > while {
		within = briefly
	}
	shown := r.nodes.waitForVersion(ctx, one.ResourceVersion, within)
	if r.asked = time.Now(); shown || ctx.Err() != nil {
		return ctx.Err()
	}
	c.instances, err = r.all(ctx)
	return err
}

// all lists all Nodes for their instances.
func (r *nodeLister) all(ctx context.Context) (map[string]bool, error) {
	instances := map[string]bool{}
	for more := ""; ; {
		some, err := r.page(ctx, page, more)
		if err != nil {
			return nil, err
		}
		for i := range some.Items {
			instances[instanceOf(some.Items[i].Spec.ProviderID)] = true
		}
		if more = some.Continue; more == "" {
			return instances, nil
		}
	}
}

func (r *nodeLister) page(ctx context.Context, length int64, from string) (*corev1.NodeList, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	return r.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{Limit: length, Continue: from})
}

// owner is whose an instance is that has no Node here, as far as AWS tells.
type owner int

const (
	// unclear is an instance of which AWS does not tell it: no tag of its names a cluster, it has been gone for too long, or EC2 cannot be
	// asked.
	unknownOwner owner = iota
	thisCluster
	otherCluster
)

// lookUpTimeout bounds a question about whose an instance is. Meanwhile its message is kept from those who may know it; if EC2 takes longer, the
// answer is remembered for when the message comes again.
const lookUpTimeout = 5 * time.Second

// ownerOf asks AWS whose a task's instance is. That the message is in the queue says nothing, as the rules bring what happens to all
// instances and groups of a region. A tag that names a cluster does; and if a hook's group has another instance that is a Node here, all of
// them are ours.
func (f *Fleet) ownerOf(ctx context.Context, t *task) (owner, error) {
	if f.opts.Instances == nil {
		return unknownOwner, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookUpTimeout)
	defer cancel()
	who, err := f.ownerByTags(ctx, t.notice.Instance)
	if who == thisCluster && f.groupWaits(t) && f.nodes.hasUnidentified() {
		who = unknownOwner // A Node may hide it, whose pods would go with the machine if its group did not wait.
	}
	if err != nil || who != unknownOwner || t.notice.Hook == nil {
		return who, err
	}
	members, err := f.opts.Instances.InGroup(ctx, t.notice.Hook.Group)
	if slices.ContainsFunc(members, func(id string) bool { _, there := f.nodes.findInstance(id); return there }) {
		who = thisCluster
	}
	return who, err
}

// ownerByTags tells whose an instance is by its tags. It is another cluster's if they name others and not this one, whose name is known: by the
// settings, or since the instances of all Nodes are tagged with the same one. By whatever name one of them is tagged, it is none of
// another's, so that no slip in the settings makes strangers of our own.
func (f *Fleet) ownerByTags(ctx context.Context, id string) (owner, error) {
	found, known, err := f.clusterTags.lookUp(ctx, id)
	switch {
	case err != nil:
		return unknownOwner, err
	case known && found.Managed && f.opts.OwnTag, slices.Contains(found.Clusters, f.opts.Cluster):
		return thisCluster, nil
	case len(found.Clusters) == 0:
		return unknownOwner, nil
	}
	names, err := f.clusterTags.clusterNames(ctx)
	switch {
	case err != nil:
		return unknownOwner, err
	case slices.ContainsFunc(found.Clusters, func(name string) bool { return names[name] }):
		return thisCluster, nil
	case f.opts.Cluster != "" || len(names) == 1:
		return otherCluster, nil
	}
	return unknownOwner, nil
}

// isForeign tells whether an instance of that owner, without a Node here, is no matter of ours, whatever the API server says.
func (f *Fleet) isForeign(who owner) bool {
	return who == otherCluster || who == unknownOwner && f.opts.LeaveUnknown
}

// endIfForeign ends a task whose instance has no Node here and is no matter of ours, and tells whether it has.
func (f *Fleet) endIfForeign(ctx context.Context, t *task) bool {
	if _, there := f.findNode(ctx, t.notice.Instance); there {
		return false
	}
	who, err := f.ownerOf(ctx, t)
	if err != nil {
		who = unknownOwner
	}
	if _, there := f.findNode(ctx, t.notice.Instance); there || !f.isForeign(who) {
		return false
	}
	f.endWithoutNode(t, who)
	return true
}

// findNode finds the node of an instance: by what the Node tells of itself or, where Nodes do not all tell that, by the name that EC2 knows.
func (f *Fleet) findNode(ctx context.Context, id string) (node, bool) {
	found, there := f.nodes.findInstance(id)
	if there || f.opts.Instances == nil || !f.nodes.hasUnidentified() {
		return found, there
	}
	ctx, cancel := context.WithTimeout(ctx, lookUpTimeout)
	defer cancel()
	instance, _, err := f.clusterTags.lookUp(ctx, id)
	if err != nil {
		return node{}, false
	}
	return f.nodes.findDNS(instance.DNS)
}

// clusterTags knows by which names the instances of this cluster's Nodes are tagged. EC2 is asked about each of them once.
type clusterTags struct {
	nodes *nodes
	ec2   Instances
	turn  chan struct{} // holds an element while somebody learns

	asked, names map[string]bool // those who learn have them

	mu  sync.Mutex
	err error // what EC2 has said instead of an answer, which counts
	til time.Time
}

const (
	// sulking is how long EC2 is not asked again whose instances are when it has refused to say, or could not: it may be for good, and what
	// it takes in is counted for the whole account.
	ec2ErrorPause = 30 * time.Second
	// learning is how many instances are asked about at once; it is as many as go in one request.
	lookUpBatch = 200
)

func newClusterTags(nodes *nodes, ec2 Instances) *clusterTags {
	return &clusterTags{nodes: nodes, ec2: ec2, turn: make(chan struct{}, 1), asked: map[string]bool{}, names: map[string]bool{}}
}

// lookUp is Instances.Look, but fails with what EC2 has said if it has just failed.
func (k *clusterTags) lookUp(ctx context.Context, id string) (ec2.Instance, bool, error) {
	k.mu.Lock()
	err, til := k.err, k.til
	k.mu.Unlock()
	if time.Now().Before(til) {
		return ec2.Instance{}, false, err
	}
	found, known, err := k.ec2.Look(ctx, id)
	if err != nil && ctx.Err() == nil {
		k.mu.Lock()
		k.err, k.til = err, time.Now().Add(ec2ErrorPause)
		k.mu.Unlock()
	}
	return found, known, err
}

// clusterNames returns the names of this cluster, as of all Nodes that there are.
func (k *clusterTags) clusterNames(ctx context.Context) (map[string]bool, error) {
	select {
	case k.turn <- struct{}{}:
		defer func() { <-k.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	var news []string
	asked := map[string]bool{}
	k.nodes.each(func(n node) {
		switch {
		case k.asked[n.instance]:
			asked[n.instance] = true
		case n.instance != "":
			news = append(news, n.instance)
		}
	})
	k.asked = asked
	for some := range slices.Chunk(news, lookUpBatch) {
		if err := k.addTagsOf(ctx, some); err != nil {
			return nil, err
		}
	}
	return maps.Clone(k.names), nil
}

// addTagsOf takes in the tags of some instances.
func (k *clusterTags) addTagsOf(ctx context.Context, ids []string) error {
	found, failed := make([]ec2.Instance, len(ids)), make([]error, len(ids))
	var all sync.WaitGroup
	for i, id := range ids {
		all.Go(func() { found[i], _, failed[i] = k.lookUp(ctx, id) })
	}
	all.Wait()
	for i, id := range ids {
		if failed[i] != nil {
			return failed[i]
		}
		k.asked[id] = true
		for _, name := range found[i].Clusters {
			k.names[name] = true
		}
	}
	return nil
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
		delete(s.tasks, id)
		delete(s.announced, id)
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

// dropStale ends those of a session's tasks that have been overtaken, or done by another process, while it waited for its turn, and gives
// back those of which nobody can say. It tells whether any are left. held is the Node as it is now.
func (s *session) dropStale(ctx context.Context, held *corev1.Node) bool {
	f := s.fleet
	on := f.nodes.parse(held)
	for _, t := range s.removeObsolete(on) {
		f.endNotDue(on, t)
	}
	at, _ := f.nodes.find(s.node)
	for _, t := range s.staleTasks() {
		over, err := f.runsAgain(ctx, t.notice, at)
		if err == nil && !over {
			continue
		}
		f.mu.Lock()
		delete(s.tasks, t.notice.Event.ID)
		delete(s.announced, t.notice.Event.ID)
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

// removeObsolete takes out the tasks for which nothing is left to be done, as the Node says.
func (s *session) removeObsolete(held node) []*task {
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
		case t.lifts, noted && ev.State == event.Pending && !f.isDue(held, ev): // What is lifted by now would be drained for anew.
			done = append(done, t)
		}
	}
	for _, t := range done {
		delete(s.tasks, t.notice.Event.ID)
		delete(s.announced, t.notice.Event.ID)
	}
	return done
}

// staleTasks are the tasks whose notices have grown old.
func (s *session) staleTasks() []*task {
	s.fleet.mu.Lock()
	defer s.fleet.mu.Unlock()
	var old []*task
	for _, t := range s.tasks {
		if isStale(t.notice) {
			old = append(old, t)
		}
	}
	return old
}
