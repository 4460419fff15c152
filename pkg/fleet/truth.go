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
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// EC2 is what EC2 says of instances. ec2.Catalog implements it. An error is ec2.ErrRefused if IAM does not allow the request.
type EC2 interface {
	// Look returns what is known of an instance, which may be minutes old; LookAnew asks now.
	Look(ctx context.Context, id string) (found ec2.Instance, known bool, err error)
	LookAnew(ctx context.Context, id string) (found ec2.Instance, known bool, err error)
	// AtAddress returns the instances that have a private IP address.
	AtAddress(ctx context.Context, address string) ([]ec2.Instance, error)
	// InGroup returns the IDs of the instances of an Auto Scaling group, and InReservation those in a capacity reservation.
	InGroup(ctx context.Context, group string) ([]string, error)
	InReservation(ctx context.Context, reservation string) ([]string, error)
	// Notable returns, by instance ID, the status of all instances of the region with scheduled events and, with checks, of those whose
	// status checks fail.
	Notable(ctx context.Context, checks bool) (map[string]ec2.Status, error)
}

// owner is the cluster that an instance belongs to, as far as AWS knows.
type owner int

const (
	// unknownOwner: no tag names a cluster, this cluster's name is not set, the instance has been gone for too long, or EC2 cannot be asked.
	unknownOwner owner = iota
	thisCluster
	otherCluster
)

// lookUpTimeout bounds a question to EC2 on which the work for an instance waits. A later answer is cached for the next look.
const lookUpTimeout = 5 * time.Second

// truth is what EC2 has said last. The term's mutex guards it.
type truth struct {
	listed  map[string]ec2.Status // by instance, by the last poll
	looked  time.Time             // when the last successful poll began; zero if EC2 refuses, or was not asked yet
	trouble error                 // of the last poll
}

// ownerOf returns which cluster an instance belongs to, by its tags and by Options.Cluster. Without that, the tags say nothing.
func (t *term) ownerOf(ctx context.Context, id string) (owner, error) {
	found, _, err := t.opts.EC2.Look(ctx, id)
	switch {
	case err != nil:
		return unknownOwner, err
	case slices.Contains(found.Clusters, t.opts.Cluster):
		return thisCluster, nil
	case t.opts.Cluster == "" || len(found.Clusters) == 0:
		return unknownOwner, nil
	}
	return otherCluster, nil
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
// their instances, the one with the InternalIP that EC2 says it has. Private addresses and names are unique in a VPC only: where another
// instance has the same, the tags have to tell which one is this cluster's. The error is errAmbiguous if they do not.
func (t *term) nodesOf(ctx context.Context, in *instance) ([]node, error) {
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
	ctx, cancel := context.WithTimeout(ctx, lookUpTimeout)
	defer cancel()
	found, known, err := t.opts.EC2.Look(ctx, in.id)
	if err != nil || !known {
		return nil, err
	}
	nodes := t.nodes.at(found.Address)
	if len(nodes) == 0 {
		return nil, nil
	}
	// That answer may be minutes old, and the next machine have the address by now.
	if now, known, err := t.opts.EC2.LookAnew(ctx, in.id); err != nil || !known || now.Address != found.Address {
		return nil, err
	}
	who, err := t.ownerOf(ctx, in.id)
	if err != nil || who == otherCluster {
		return nil, err
	}
	if len(nodes) > 1 {
		return nil, fmt.Errorf("the instance %s: %d Nodes have its address %s: %w", in.id, len(nodes), found.Address, errAmbiguous)
	}
	if err := t.mustBeAlone(ctx, found, who); err != nil {
		return nil, err
	}
	return nodes, nil
}

// mustBeAlone returns errAmbiguous if another instance has the same address as found, and the tags do not say which one is this cluster's.
// who is the cluster of found.
func (t *term) mustBeAlone(ctx context.Context, found ec2.Instance, who owner) error {
	same, err := t.opts.EC2.AtAddress(ctx, found.Address)
	if err != nil {
		return err
	}
	for _, other := range same {
		if other.ID == found.ID || other.Gone() {
			continue
		}
		its, err := t.ownerOf(ctx, other.ID)
		if err != nil {
			return err
		}
		if who != thisCluster || its == thisCluster {
			return fmt.Errorf("the instances %s and %s have the address %s, and their tags do not say which one is in this cluster (set fleet.cluster): %w",
				found.ID, other.ID, found.Address, errAmbiguous)
		}
	}
	return nil
}

const (
	// settles is how long EC2's answers may lag behind its messages.
	settles = 30 * time.Second
	// asksAgain is when EC2 is asked again meanwhile.
	asksAgain = 5 * time.Second
	// believed is how long a message about a stop counts if EC2 may not be asked, and reopens how long a node stays closed for it at least: a
	// machine that EC2 takes may be Ready until some minutes after the message.
	believed, reopens = 2 * time.Minute, 10 * time.Minute
)

// stopTime is when the instance stops according to a hint; zero if the hint is not about a stop. A terminated instance is never started
// again.
func stopTime(h *hint) time.Time {
	switch ev := h.Event; {
	case ev.Kind == event.StateChange && ev.Noticed.IsZero():
		return h.received
	case ev.Kind == event.StateChange:
		return ev.Noticed
	case ev.Kind == event.SpotInterruption && (ev.Code == "stop" || ev.Code == "hibernate"):
		return ev.Deadline
	}
	return time.Time{}
}

// isOver asks EC2 whether the instance of a hint about a stop runs again, whatever the age of the message. again is when to ask again, if
// that is not known yet.
func (t *term) isOver(in *instance, h *hint, on node) (over bool, again time.Duration) {
	stops := stopTime(h)
	age := time.Since(stops)
	switch {
	case stops.IsZero(), h.Event.Kind == event.SpotInterruption && age < settles:
		return false, 0 // It is about no stop, or the instance runs until then.
	}
	found, known, err := t.opts.EC2.LookAnew(t.ctx, h.Instance)
	switch {
	case errors.Is(err, ec2.ErrRefused):
		return age > believed && on.ready, 0 // A machine that has been down for so long is not Ready.
	case err != nil:
		if !on.ready { // As the message says.
			return false, 0
		}
		return false, t.failed(h, err)
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

// startedAfter reports whether the instance runs and was started after that time, by EC2's last answer.
func (t *term) startedAfter(in *instance, at time.Time) (bool, error) {
	ctx, cancel := context.WithTimeout(t.ctx, lookUpTimeout)
	defer cancel()
	found, known, err := t.opts.EC2.Look(ctx, in.id)
	return err == nil && known && found.Runs() && t.toLocalClock(found.Launched).After(at), err
}

// restarted reports whether the instance of a recorded entry was started since, or, where EC2 may not be asked, whether it is too late for the
// stop that the entry is about. Its node is Ready.
func (t *term) restarted(in *instance, e state.Entry) bool {
	at := cmp.Or(e.Event.Noticed, e.CordonedAt) // The cordon alone does not say when the event was noticed.
	started, err := t.startedAfter(in, at)
	stops := e.Event.Kind == event.StateChange || e.Event.Kind == event.SpotInterruption
	return started || errors.Is(err, ec2.ErrRefused) && stops && time.Since(at) > reopens
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

// isPlanned reports whether EC2 lists what a notice tells of.
func isPlanned(n sqs.Notice) bool {
	return n.About == sqs.Interruption && n.Event.Kind == event.ScheduledMaintenance && ec2.Schedules(n.Event.Code)
}

// judgePlanned decides about a hint of maintenance that EC2 lists. The list decides, also the last one while EC2 cannot be asked. The message
// is believed only for an event that is not in it, while EC2 cannot be asked or may not list the event yet. judgePlanned returns when to decide again; 0 if only after news.
func (t *term) judgePlanned(in *instance, h *hint) time.Duration {
	t.mu.Lock()
	said, looked, trouble := t.truth.listed[in.id], t.truth.looked, t.truth.trouble
	t.mu.Unlock()
	if trouble == nil && looked.Before(h.received) {
		loop.Nudge(t.pollSoon)
		return asksAgain
	}
	ev, listed := listedAs(h.Event, t.plannedEvents(in, said))
	late := !h.Event.Noticed.IsZero() && time.Since(h.Event.Noticed) >= listDelay
	if !listed && (trouble != nil || h.Event.State == event.Pending && !late) {
		t.stand(in, h)
		return 0
	}
	if !listed || ev.State != event.Pending {
		t.opts.Log.Infof("%s: EC2 no longer lists %s for the instance %s", h.describe(), h.Event.Code, h.Instance)
	}
	t.done(in, h)
	return 0
}

// listedAs returns which of the events that EC2 lists is the announced one, and whether any is. AWS Health does not use EC2's IDs. An event
// that was moved has the same code, and one whose code has changed has the same time. The best match wins.
func listedAs(announced event.Event, events []event.Event) (event.Event, bool) {
	var found event.Event
	var best int
	for _, ev := range events {
		alike := 0
		sameTime := ev.Deadline.Sub(announced.Deadline).Abs() < time.Minute
		switch {
		case ev.Kind != announced.Kind:
		case ev.ID == announced.ID:
			alike = 5
		case ev.Code == announced.Code && sameTime:
			alike = 4
		case ev.State == event.Pending && ev.Code == announced.Code:
			alike = 3
		case ev.State == event.Pending && sameTime:
			alike = 2
		}
		if alike > best {
			found, best = ev, alike
		}
	}
	return found, best > 0
}

const (
	// pollInterval is how often EC2 is asked for all that is notable, and refusedInterval the same while IAM does not allow it.
	pollInterval, refusedInterval = time.Minute, 10 * time.Minute
	// listDelay is how long EC2's list may lag behind an announcement. After that, an event that it does not have is over.
	listDelay = 15 * time.Minute
)

// poll asks EC2 for what is scheduled and which status checks fail, until the term ends, and has the instances looked at.
func (t *term) poll() {
	for {
		pause := t.pollOnce()
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
		select {
		case <-t.ctx.Done():
			return
		case <-t.pollSoon:
			loop.Await(t.ctx, nil, firstPause) // One poll is enough for many messages.
		case <-time.After(pause):
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
	id := ""
	found, _ := t.opts.EC2.AtAddress(t.ctx, n.address) // The next poll asks again.
	for _, one := range found {
		switch {
		case one.Gone(): // It has no address any more.
		case id != "": // Two instances have the address.
			return ""
		default:
			id = one.ID
		}
	}
	return id
}

// pollOnce asks EC2, and returns the time until the next poll. Of instances without a Node nothing is kept.
func (t *term) pollOnce() time.Duration {
	checks := !t.ignoresKind(event.StatusCheck)
	if !checks && t.ignoresKind(event.ScheduledMaintenance) {
		return pollInterval
	}
	at := time.Now()
	said, err := t.opts.EC2.Notable(t.ctx, checks)
	if t.ctx.Err() != nil {
		return pollInterval
	}
	if err != nil {
		return t.pollFailed(err)
	}
	if !t.nodes.hasSilent() {
		for id := range said {
			if len(t.nodes.of(id)) == 0 {
				delete(said, id)
			}
		}
	}
	t.mu.Lock()
	recovered := t.truth.trouble != nil
	t.truth.listed, t.truth.looked, t.truth.trouble = said, at, nil
	t.mu.Unlock()
	if recovered {
		t.opts.Log.WithField(systemd.FieldMessageID, systemd.SourceRecovered).Info("scheduled maintenance can be listed again")
	}
	return pollInterval
}

// pollFailed remembers that EC2 does not say what is scheduled, and logs the first such error. It returns the time until the next poll.
func (t *term) pollFailed(err error) time.Duration {
	refused := errors.Is(err, ec2.ErrRefused)
	t.mu.Lock()
	first := t.truth.trouble == nil || errors.Is(t.truth.trouble, ec2.ErrRefused) != refused
	t.truth.trouble = err
	if refused {
		t.truth.listed, t.truth.looked = map[string]ec2.Status{}, time.Time{}
	}
	t.mu.Unlock()
	log := t.opts.Log.WithField(systemd.FieldMessageID, systemd.SourceTrouble)
	switch {
	case first && refused:
		log.Warnf("IAM does not let nth-queue list scheduled maintenance (%s): canceled or moved maintenance still drains on its first date, and failed "+
			"status checks are not seen; asking again every 10 minutes", err)
	case first:
		log.Warnf("cannot list scheduled maintenance: %s; keeping last known state, and asking every minute", err)
	}
	if refused {
		return refusedInterval
	}
	return pollInterval
}

// ignoresKind reports whether the rules ignore a kind of events.
func (t *term) ignoresKind(kind event.Kind) bool {
	return t.policy().Ignores(state.Entry{Event: event.Event{Kind: kind}})
}
