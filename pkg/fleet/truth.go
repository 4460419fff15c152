package fleet

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/loop"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// EC2 is what EC2 says of instances. ec2.Catalog implements it. An error is ec2.ErrRefused if IAM does not allow the request.
type EC2 interface {
	// Look returns what is known of an instance, which may be minutes old; LookNow asks now.
	Look(ctx context.Context, id string) (found ec2.Instance, known bool, err error)
	LookNow(ctx context.Context, id string) (found ec2.Instance, known bool, err error)
	// AtAddress returns the instances that have a private IP address.
	AtAddress(ctx context.Context, address string) ([]ec2.Instance, error)
	// InReservation returns the IDs of the instances in a capacity reservation.
	InReservation(ctx context.Context, reservation string) ([]string, error)
	// Notable returns, by instance ID, the status of all instances of the region with scheduled events and, with checks, of those whose
	// status checks fail.
	Notable(ctx context.Context, checks bool) (map[string]ec2.Status, error)
}

// lookUpTimeout bounds a question to EC2 on which the work for an instance waits. A later answer is cached for the next look.
const lookUpTimeout = 5 * time.Second

// truth is what EC2 has said last. The term's mutex guards it.
type truth struct {
	// listed are the statuses of instances by the last successful poll, and before those by the one before that.
	listed, before map[string]ec2.Status
	// looked and lookedBefore are when these polls began; zero if there was none, or EC2 refuses.
	looked, lookedBefore time.Time
	trouble              error // of the last poll
}

// wasMissing reports whether the event of an instance was not listed by the poll before the last one.
func (t truth) wasMissing(id string, ev event.Event) bool {
	switch {
	case t.lookedBefore.IsZero():
		return false
	case ev.Kind == event.StatusCheck:
		return t.before[id].Impaired == ""
	}
	return !slices.ContainsFunc(t.before[id].Planned, func(before event.Event) bool { return before.ID == ev.ID })
}

// belongsHere and belongsElsewhere report whether the tags of an instance say that it is this cluster's, or that it is another one's. They say
// neither without a tag, and without Options.Cluster.
func (t *term) belongsHere(found ec2.Instance) bool {
	return slices.Contains(found.Clusters, t.opts.Cluster)
}

func (t *term) belongsElsewhere(found ec2.Instance) bool {
	return t.opts.Cluster != "" && len(found.Clusters) > 0 && !t.belongsHere(found)
}

// isManaged reports whether the settings let the node of an instance be drained.
func (t *term) isManaged(id string) (bool, error) {
	if !t.opts.ManagedOnly {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(t.ctx, lookUpTimeout)
	defer cancel()
	found, known, err := t.opts.EC2.Look(ctx, id)
	return !known || found.Managed, err
}

// errAmbiguous means that nobody can tell whose Node it is.
var errAmbiguous = errors.New("it is unclear which Node is its own")

// nodesOf returns the Nodes of an instance, the one to be drained first: those that name it in spec.providerID or, where Nodes do not name
// their instances, the one with the InternalIP that EC2 says it has. Private addresses are unique in a VPC only. The error is errAmbiguous if
// another Node, or another instance that may be in this cluster, has the same address.
func (t *term) nodesOf(in *instance) ([]node, error) {
	if named := t.nodes.of(in.id); len(named) > 0 || !t.nodes.hasSilent() {
		return named, nil
	}
	t.mu.Lock()
	before := in.node
	t.mu.Unlock()
	if before.silent { // EC2 forgets the address of an instance that is terminated.
		if now, ok := t.nodes.now(before); ok && now.machine == before.machine {
			return []node{now}, nil
		}
	}
	ctx, cancel := context.WithTimeout(t.ctx, lookUpTimeout)
	defer cancel()
	found, known, err := t.opts.EC2.LookNow(ctx, in.id) // The next machine may have an address of minutes ago.
	if err != nil || !known || t.belongsElsewhere(found) {
		return nil, err
	}
	nodes := t.nodes.at(found.Address)
	if len(nodes) == 0 {
		return nil, nil
	}
	if len(nodes) > 1 {
		return nil, fmt.Errorf("the instance %s: %d Nodes have its address %s: %w", in.id, len(nodes), found.Address, errAmbiguous)
	}
	same, err := t.opts.EC2.AtAddress(ctx, found.Address)
	for _, other := range same {
		if other.ID != in.id && !other.Gone() && !t.belongsElsewhere(other) {
			return nil, fmt.Errorf("the instances %s and %s have the address %s, and their tags do not say which one is in this cluster (set fleet.cluster): %w",
				in.id, other.ID, found.Address, errAmbiguous)
		}
	}
	return nodes, err
}

const (
	// settles is how long EC2's answers may lag behind its messages.
	settles = 30 * time.Second
	// asksAgain is when EC2 is asked again meanwhile.
	asksAgain = 5 * time.Second
	// believed is how long a message about a stop counts if EC2 may not be asked.
	believed = 2 * time.Minute
)

// stopTime is when the instance stops according to a hint; zero if the hint is not about a stop. A terminated instance is never started
// again.
func stopTime(h *hint) time.Time {
	switch ev := h.Event; {
	case ev.Kind == event.StateChange:
		return cmp.Or(ev.Noticed, h.received)
	case ev.Kind == event.SpotInterruption && (ev.Code == "stop" || ev.Code == "hibernate"):
		return ev.Deadline
	}
	return time.Time{}
}

// isOver asks EC2 whether the instance of a hint about a stop runs again, whatever the age of the message. again is when to ask again, if
// that is not known yet.
func (t *term) isOver(h *hint, on node) (over bool, again time.Duration) {
	stops := stopTime(h)
	age := time.Since(stops)
	if stops.IsZero() || h.Event.Kind == event.SpotInterruption && age < settles {
		return false, 0 // It is about no stop, or the instance runs until then.
	}
	ctx, cancel := context.WithTimeout(t.ctx, lookUpTimeout)
	defer cancel()
	found, known, err := t.opts.EC2.LookNow(ctx, h.Instance)
	switch {
	case errors.Is(err, ec2.ErrRefused):
		return age > believed && on.ready, 0 // A machine that has been down for so long is not Ready.
	case err != nil && on.ready:
		return false, t.failed(h, err)
	case err != nil: // The node is down, as the message says.
		return false, 0
	case !known || !found.Runs():
		t.mu.Lock()
		h.nowStopped = h.Stopped && found.State != "stopping" && found.State != "shutting-down"
		t.mu.Unlock()
		return false, 0
	case age < settles && !t.toLocalClock(found.Launched).After(stops): // EC2's answer may be older than the stop.
		return false, asksAgain
	}
	return true, 0
}

// failed logs why EC2 could not be asked about a hint, and returns when to try again. The pauses grow with the age of the hint.
func (t *term) failed(h *hint, err error) time.Duration {
	if t.ctx.Err() == nil {
		t.opts.Log.Warnf("cannot ask EC2 about %s (%s): %s; retrying", h.Instance, h.describe(), err)
	}
	if isUrgent(h.Event) {
		return asksAgain
	}
	return min(max(time.Since(h.received), firstPause), longestPause)
}

// listedEvents returns the events that EC2 has listed last for an instance, and whether EC2 was asked. It returns none for an instance that
// is not managed.
func (t *term) listedEvents(in *instance, on node) (events []event.Event, asked bool) {
	t.mu.Lock()
	said, looked := t.truth.listed[in.id], t.truth.looked
	t.mu.Unlock()
	if len(said.Planned) > 0 || said.Impaired != "" {
		if managed, err := t.isManaged(in.id); err != nil || !managed {
			return nil, err == nil // After an error, the next poll has the instance looked at again.
		}
	}
	events = t.plannedEvents(in, said)
	since := t.toLocalClock(said.Since)
	if said.Impaired == "" || since.IsZero() || looked.Sub(since) < t.rules.Load().Impaired {
		return events, !looked.IsZero()
	}
	sum := sha256.Sum256([]byte(in.id + "\n" + strconv.FormatInt(since.Unix(), 10)))
	ev := event.Event{
		ID: string(event.StatusCheck) + "-" + hex.EncodeToString(sum[:8]), Kind: event.StatusCheck, Code: said.Impaired,
		State: event.Pending, Noticed: event.CredibleTime(since), Instance: in.id,
	}
	if on.hasOwnCordon && on.cordon.Kind == string(event.StatusCheck) {
		ev.ID = on.cordon.Event // While the node is cordoned for such an event, it keeps its ID.
	}
	return append(events, ev), true
}

// plannedEvents returns the scheduled events in the status of an instance, with their times by this machine's clock.
func (t *term) plannedEvents(in *instance, said ec2.Status) []event.Event {
	var all []event.Event
	for _, ev := range said.Planned {
		ev.Instance = in.id
		ev.Deadline, ev.Until = t.toLocalClock(ev.Deadline), t.toLocalClock(ev.Until)
		all = append(all, ev.Credible())
	}
	return all
}

// pollInterval is how often EC2 is asked for all that is notable.
const pollInterval = time.Minute

// poll asks EC2 for what is scheduled and which status checks fail, until the term ends, and has the instances looked at.
func (t *term) poll() {
	for {
		t.pollOnce()
		t.mu.Lock()
		listed := slices.Collect(maps.Keys(t.truth.listed))
		t.mu.Unlock()
		t.lookAt(listed...)
		for _, n := range t.nodes.all() {
			if !n.marked() {
				continue // Nothing was done for it.
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

// lookAt has the reconcilers look at instances. It ignores an empty ID: the instance of a Node may be unknown.
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

// instanceAt asks EC2 which instance has the address of a Node that does not name its instance. It returns "" unless EC2 names exactly one.
func (t *term) instanceAt(n node) string {
	found, _ := t.opts.EC2.AtAddress(t.ctx, n.address) // The next poll asks again.
	found = slices.DeleteFunc(slices.Clone(found), ec2.Instance.Gone)
	if len(found) != 1 {
		return ""
	}
	return found[0].ID
}

// pollOnce asks EC2 for what is notable. Of instances without a Node nothing is kept.
func (t *term) pollOnce() {
	checks := !t.ignoresKind(event.StatusCheck)
	if !checks && t.ignoresKind(event.ScheduledMaintenance) {
		return
	}
	at := time.Now()
	said, err := t.opts.EC2.Notable(t.ctx, checks)
	if t.ctx.Err() != nil {
		return
	}
	if err == nil && !t.nodes.hasSilent() {
		maps.DeleteFunc(said, func(id string, _ ec2.Status) bool { return len(t.nodes.of(id)) == 0 })
	}
	t.mu.Lock()
	before := t.truth
	switch {
	case err == nil:
		t.truth = truth{listed: said, before: before.listed, looked: at, lookedBefore: before.looked}
	case errors.Is(err, ec2.ErrRefused):
		t.truth = truth{trouble: err}
	default:
		t.truth.trouble = err
	}
	t.mu.Unlock()
	log := t.opts.Log.WithField(systemd.FieldMessageID, systemd.SourceTrouble)
	switch {
	case err == nil && before.trouble != nil:
		t.opts.Log.WithField(systemd.FieldMessageID, systemd.SourceRecovered).Info("scheduled maintenance can be listed again")
	case err == nil, before.trouble != nil: // It is known already.
	case errors.Is(err, ec2.ErrRefused):
		log.Warnf("IAM does not let nth-queue list scheduled maintenance (%s): neither maintenance nor failed status checks are seen; asking every minute", err)
	default:
		log.Warnf("cannot list scheduled maintenance: %s; keeping last known state, and asking every minute", err)
	}
}

// ignoresKind reports whether the rules ignore a kind of events.
func (t *term) ignoresKind(kind event.Kind) bool {
	return t.policy().Ignores(state.Entry{Event: event.Event{Kind: kind}})
}
