package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/loop"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// EC2 is what EC2 says of instances. ec2.Catalog implements it. An error is ec2.ErrRefused if IAM does not allow the request.
type EC2 interface {
	// Look asks EC2 for an instance. known is false if EC2 does not know the instance.
	Look(ctx context.Context, id string) (found ec2.Instance, known bool, err error)
	// AtAddress returns the instances that have a private IP address.
	AtAddress(ctx context.Context, address string) ([]ec2.Instance, error)
	// InReservation returns the IDs of the instances in a capacity reservation.
	InReservation(ctx context.Context, reservation string) ([]string, error)
	// Notable returns, by instance ID, the status of all instances of the region with scheduled events and, with checks, of those whose
	// status checks fail.
	Notable(ctx context.Context, checks bool) (map[string]ec2.Status, error)
	// Change makes a request about an instance, or only tries whether EC2 would refuse it. An error is ec2.ErrUnanswered if EC2 may have acted.
	Change(ctx context.Context, request ec2.Request, id string, try bool) error
}

// lookUpTimeout bounds the time for which a look waits for EC2's answer.
const lookUpTimeout = 5 * time.Second

// truth is what EC2 has listed in the last two polls. The term's mutex guards it.
type truth struct {
	// listed are the statuses of instances by the last successful poll, and before are those by the successful poll before that.
	listed, before map[string]ec2.Status
	// looked and lookedBefore are when these polls began; zero if there was no such poll, or EC2 refuses.
	looked, lookedBefore time.Time
	trouble              error // of the last poll
}

// wasMissing reports whether the event of an instance was missing from the list before the last one.
func (t truth) wasMissing(id string, ev event.Event) bool {
	switch {
	case t.lookedBefore.IsZero(): // There was no such list.
		return false
	case ev.Kind == event.StatusCheck:
		return t.before[id].Impaired == ""
	}
	_, wasListed := find(t.before[id].Planned, ev.ID)
	return !wasListed
}

// belongsHere reports whether the tags of an instance name this cluster. It returns false without Options.Cluster.
func (t *term) belongsHere(found ec2.Instance) bool {
	return slices.Contains(found.Clusters, t.opts.Cluster)
}

// belongsElsewhere reports whether the tags of an instance name only other clusters. It returns false without such tags, and without
// Options.Cluster.
func (t *term) belongsElsewhere(found ec2.Instance) bool {
	return t.opts.Cluster != "" && len(found.Clusters) > 0 && !t.belongsHere(found)
}

// isManaged reports whether the node of an instance may be drained: always, or with Options.ManagedOnly only if the instance has the tag. An instance
// that EC2 does not know any more counts as managed.
func (t *term) isManaged(id string) (bool, error) {
	if !t.opts.ManagedOnly {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(t.ctx, lookUpTimeout)
	defer cancel()
	found, known, err := t.opts.EC2.Look(ctx, id)
	return !known || found.Managed, err
}

// errAmbiguous means that several Nodes or instances have one address, and no tag shows which belong together.
var errAmbiguous = errors.New("ambiguous address")

// nodesOf returns the Nodes of an instance; the first is the one to be drained. These are the Nodes that name the instance in spec.providerID. If
// none does, it is the silent Node with the instance's private address, by EC2. Private addresses are unique only in a VPC: the error is
// errAmbiguous if another silent Node, or another instance that may be in this cluster, has the same address.
func (t *term) nodesOf(inst *instance) ([]node, error) {
	silent, _ := t.nodes.informer.GetIndexer().IndexKeys(byAddress, anySilent) // An error would mean that no such index exists.
	if named := t.nodes.of(inst.id); len(named) > 0 || len(silent) == 0 {
		return named, nil
	}
	t.mu.Lock()
	before := inst.node
	t.mu.Unlock()
	if before.silent { // The last look has found the Node. EC2 forgets the address when the instance is terminated.
		if now, ok := t.nodes.now(before); ok && now.machine == before.machine {
			return []node{now}, nil
		}
	}
	ctx, cancel := context.WithTimeout(t.ctx, lookUpTimeout)
	defer cancel()
	found, known, err := t.opts.EC2.Look(ctx, inst.id)
	if err != nil || !known || found.Address == "" || t.belongsElsewhere(found) {
		return nil, err
	}
	nodes := t.nodes.indexed(byAddress, found.Address)
	if len(nodes) == 0 {
		return nil, nil
	}
	if len(nodes) > 1 {
		return nil, fmt.Errorf("%w: %d Nodes have the address %s of the instance %s; delete those of earlier machines", errAmbiguous, len(nodes), found.Address, inst.id)
	}
	withAddress, err := t.opts.EC2.AtAddress(ctx, found.Address)
	if err != nil {
		return nil, err
	}
	for _, other := range withAddress {
		if other.ID != inst.id && !other.Gone() && !t.belongsElsewhere(other) {
			return nil, fmt.Errorf("%w: the instances %s and %s share the address %s, and their tags do not say which one is in this cluster; set fleet.cluster",
				errAmbiguous, inst.id, other.ID, found.Address)
		}
	}
	return nodes, nil
}

const (
	// answerLag is how long EC2's answers may lag behind its messages.
	answerLag = 30 * time.Second
	// askPause is the pause before EC2 is asked again for an answer that is needed soon.
	askPause = 5 * time.Second
	// stopTrust is how long a message about a stop counts if IAM does not let nth-queue ask EC2.
	stopTrust = 2 * time.Minute
)

// stopTime returns when the instance of a hint stops, by the hint's event. It returns zero for any other event, such as a termination: only a stopped
// instance can be started again.
func stopTime(h *hint) time.Time {
	switch ev := h.Event; {
	case ev.Kind == event.StateChange:
		return cmp.Or(ev.Noticed, h.received)
	case ev.Kind == event.SpotInterruption && (ev.Code == "stop" || ev.Code == "hibernate"):
		return ev.Deadline
	}
	return time.Time{}
}

// askAboutStop asks EC2 whether the instance of a hint about a stop runs again, so that the event is over. A message may be days old. again is when to
// ask once more, if EC2's answer does not decide it yet; 0 if it does. If EC2 says that the instance has stopped, the instance keeps that.
func (t *term) askAboutStop(inst *instance, h *hint, on node) (over bool, again time.Duration) {
	stops := stopTime(h)
	age := time.Since(stops)
	stillRuns := h.Event.Kind == event.SpotInterruption && age < answerLag // The stop is still to come, or has just come.
	if stops.IsZero() || stillRuns {
		return false, 0
	}
	ctx, cancel := context.WithTimeout(t.ctx, lookUpTimeout)
	defer cancel()
	found, known, err := t.opts.EC2.Look(ctx, h.Instance)
	switch {
	case errors.Is(err, ec2.ErrRefused): // A machine that has been down for so long is not Ready.
		return age > stopTrust && on.ready, 0
	case err != nil && on.ready:
		return false, t.failed(h, err)
	case err != nil: // The Node is not Ready, so the machine may be down as the message says.
		return false, 0
	case !known || !found.Runs():
		isGoingDown := found.State == "stopping" || found.State == "shutting-down"
		if h.Stopped && !isGoingDown {
			t.mu.Lock()
			inst.stoppedBy = h.Event.ID
			t.mu.Unlock()
		}
		return false, 0
	case age < answerLag && !t.toLocalClock(found.Launched).After(stops): // EC2's answer may be older than the stop.
		return false, askPause
	}
	return true, 0
}

// failed logs why EC2 could not be asked about a hint, and returns when to look again. The pauses grow with the age of the hint.
func (t *term) failed(h *hint, err error) time.Duration {
	if t.ctx.Err() == nil {
		t.opts.Log.Warnf("cannot act on the %s of %s: %s; retrying", h.describe(), "the instance "+h.Instance, err)
	}
	if isUrgent(h.Event) {
		return askPause
	}
	return pauseAfter(time.Since(h.received))
}

// listedEvents returns the events that EC2 has listed last for an instance: its scheduled events, and a status check that has failed for long enough.
// asked is false if no poll has succeeded since EC2 last refused one, or if it is unknown whether the instance is managed. An instance that is not
// managed has no events, and those that it had are over.
func (t *term) listedEvents(inst *instance, on node) (events []event.Event, asked, over bool) {
	t.mu.Lock()
	status, looked := t.truth.listed[inst.id], t.truth.looked
	t.mu.Unlock()
	if len(status.Planned) > 0 || status.Impaired != "" {
		managed, err := t.isManaged(inst.id)
		if isKnown := err == nil; !isKnown || !managed {
			return nil, isKnown, isKnown // If it is not known, the next poll has the instance looked at again.
		}
	}
	for _, ev := range status.Planned {
		ev.Instance = inst.id
		ev.Deadline, ev.Until = t.toLocalClock(ev.Deadline), t.toLocalClock(ev.Until)
		events = append(events, ev.Credible())
	}
	since := t.toLocalClock(status.Since)
	isImpaired := status.Impaired != "" && !since.IsZero() && looked.Sub(since) >= t.opts.Impaired
	if !isImpaired {
		return events, !looked.IsZero(), false
	}
	ev := event.Event{
		ID: event.ContentID(event.StatusCheck, inst.id, strconv.FormatInt(since.Unix(), 10)), Kind: event.StatusCheck, Code: status.Impaired,
		State: event.Pending, Noticed: event.CredibleTime(since), Instance: inst.id,
	}
	if on.hasOwnCordon && on.cordon.Kind == string(event.StatusCheck) {
		ev.ID = on.cordon.Event // The node is cordoned for this event, which had its ID from an earlier value of since.
	}
	return append(events, ev), true, false
}

// pollInterval is the pause between two polls of EC2's lists.
const pollInterval = time.Minute

// poll asks EC2 every pollInterval for scheduled events and failing status checks, until the term ends. Each time, it has all instances looked at
// that EC2 lists, and those whose Nodes have something of this Lease.
func (t *term) poll() {
	for {
		t.pollOnce()
		t.mu.Lock()
		listed := slices.Collect(maps.Keys(t.truth.listed))
		t.mu.Unlock()
		t.lookAt(listed...)
		for _, n := range t.nodes.all() {
			if !n.marked() {
				continue // Nothing was done to this Node.
			}
			id := t.instanceOn(n)
			if id == "" && n.silent {
				id = t.instanceAt(n)
			}
			t.lookAt(id)
		}
		if !loop.Await(t.ctx, nil, pollInterval) {
			return
		}
	}
}

// lookAt has the reconcilers look at instances. It ignores an empty ID, which stands for the unknown instance of a silent Node.
func (t *term) lookAt(ids ...string) {
	for _, id := range ids {
		if id == "" {
			continue
		}
		t.mu.Lock()
		t.instance(id)
		t.mu.Unlock()
		t.queue.Add(id)
	}
}

// instanceAt asks EC2 which instance has the address of a silent Node. It returns "" unless EC2 names exactly one.
func (t *term) instanceAt(n node) string {
	found, _ := t.opts.EC2.AtAddress(t.ctx, n.address)                         // After an error, the next poll asks again.
	found = slices.DeleteFunc(slices.Clone(found), func(i ec2.Instance) bool { // Other lookups have the same slice.
		return i.Gone() || t.belongsElsewhere(i)
	})
	if len(found) != 1 {
		return ""
	}
	return found[0].ID
}

// pollOnce asks EC2 once for scheduled events and failing status checks, and keeps the answer in t.truth. It asks nothing if the settings ignore
// both.
func (t *term) pollOnce() {
	checks := !t.ignoresKind(event.StatusCheck)
	if !checks && t.ignoresKind(event.ScheduledMaintenance) {
		return
	}
	at := time.Now()
	listed, err := t.opts.EC2.Notable(t.ctx, checks)
	if t.ctx.Err() != nil { // The term has ended.
		return
	}
	t.mu.Lock()
	before := t.truth
	switch {
	case err == nil:
		t.truth = truth{listed: listed, before: before.listed, looked: at, lookedBefore: before.looked}
	case errors.Is(err, ec2.ErrRefused): // The last lists are dropped: EC2 will not say when their events are over.
		t.truth = truth{trouble: err}
	default:
		t.truth.trouble = err
	}
	t.mu.Unlock()
	log := t.opts.Log.WithField(systemd.FieldMessageID, systemd.SourceTrouble)
	switch {
	case err == nil && before.trouble != nil:
		t.opts.Log.WithField(systemd.FieldMessageID, systemd.SourceRecovered).Info("can list scheduled maintenance and status checks again")
	case err == nil: // It was so before.
	case before.trouble != nil && kube.EqualIgnoringDigits(err.Error(), before.trouble.Error()): // This was logged.
	case errors.Is(err, ec2.ErrRefused):
		log.Warnf("cannot list scheduled maintenance or status checks: %s; nth-queue acts on neither, and retries every minute", err)
	default:
		log.Warnf("cannot list scheduled maintenance or status checks: %s; nth-queue keeps the last known state, and retries every minute", err)
	}
}

// ignoresKind reports whether the rules ignore a kind of events.
func (t *term) ignoresKind(kind event.Kind) bool {
	return t.opts.Policy.Ignores(state.Entry{Event: event.Event{Kind: kind}})
}
