package fleet

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	coordination "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nth-project/nth/pkg/drain"
)

// Limits bound how many nodes are drained at once, all processes on the queue counted: Draining of all nodes, and Group of those with the same
// value of Options.GroupLabel. 0 is no limit.
type Limits struct{ Draining, Group int }

// counts say how many nodes are being drained, in all and by group.
type counts struct {
	all   int
	group map[string]int
}

// waiting are the sessions that have not begun, in the order in which they may begin. f.mu is held.
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

// prioritize derives from its tasks how much hurry a session that waits is in. f.mu is held.
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

// admit returns those of the waiting sessions that may begin under the limits while so many nodes are being drained. A session that waits
// because its group is full holds up no other.
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

// byPriority puts what is urgent first, then the nearest deadline, then whoever has waited for longest.
func byPriority(a, b *session) int {
	if urgent := a.urgent.Load(); urgent != b.urgent.Load() {
		if urgent {
			return -1
		}
		return 1
	}
	return cmp.Or(byDeadline(a.deadline, b.deadline), a.since.Compare(b.since), cmp.Compare(a.node, b.node))
}

// byDeadline puts the nearest deadline first, and no deadline last.
func byDeadline(a, b time.Time) int {
	if a.IsZero() != b.IsZero() {
		if a.IsZero() {
			return 1
		}
		return -1
	}
	return a.Compare(b)
}

const (
	// placesLease is the Lease by which all processes agree on who drains what, where there are ceilings.
	slotsLease = "places"
	// SlotsAnnotation on that Lease says which nodes each process drains, as taken.text has it.
	SlotsAnnotation = drain.KeyPrefix + "places"
	// placeTries is how often one change of the places is tried while others change them, too.
	slotTries = 5
	// tidying is how often what nobody waits for is changed, at most.
	slotReleaseInterval = time.Second
)

// slots are the groups of the nodes that are being drained, by process and node.
type slots map[string]map[nodeKey]string

// nodeKey is short for a node's name, of which 10,000 do not fit into an annotation. Two names have the same key once in a few million
// clusters of that size, and are counted as one then.
type nodeKey string

// keyLength is how long a key is, in letters of which each is six bits of a hash of the name.
const keyLength = 8

func nodeKeyOf(node string) nodeKey {
	sum := sha256.Sum256([]byte(node))
	return nodeKey(base64.RawURLEncoding.EncodeToString(sum[:keyLength*6/8]))
}

// keysFollow begins a value that is the keys of all nodes of a group. No group has that in its name.
const keysFollow = ":"

// text is what is written: JSON of each process's groups, with the keys of their nodes one after another.
func (all slots) text() string {
	written := map[string]map[string]string{}
	for process, nodes := range all {
		keys := map[string][]byte{} // One after another, a string would be copied whole for each node.
		for _, key := range slices.Sorted(maps.Keys(nodes)) {
			keys[nodes[key]] = append(keys[nodes[key]], key...)
		}
		written[process] = map[string]string{}
		for group, all := range keys {
			written[process][group] = keysFollow + string(all)
		}
	}
	text, _ := json.Marshal(written) // texts always encode
	return string(text)
}

// parseSlots reads what was written. Earlier versions have put down the group of each node by its name.
func parseSlots(text string) slots {
	var written map[string]map[string]string
	if json.Unmarshal([]byte(text), &written) != nil {
		return slots{} // Somebody has written into it. Each process puts its own there again.
	}
	all := slots{}
	for process, groups := range written {
		nodes := map[nodeKey]string{}
		for group, value := range groups {
			keys, ours := strings.CutPrefix(value, keysFollow)
			if !ours {
				nodes[nodeKeyOf(group)] = value
				continue
			}
			for key := range slices.Chunk([]byte(keys), keyLength) {
				nodes[nodeKey(key)] = group
			}
		}
		all[process] = nodes
	}
	return all
}

// slotStore is what makes ceilings exact, however many processes begin at the same moment, and however far their watches are
// behind: who wants to begin what may have to wait puts its node into one object first, guarded by the resourceVersion of
// the object that was counted. What does not wait is put there as soon as that can be done.
type slotStore struct {
	leases *leases
	// known is the object as it was last written or read; nil if it must be read.
	known *coordination.Lease
	// tidied is when it was last written, and answered when a request for it was last over.
	tidied, answered time.Time
	// refused is how often in a row it could not be read or written.
	refused int
}

// read returns the object, which is made if it is not there. What a look has shown may be behind: whoever writes by it is
// refused then, and comes again.
func (p *slotStore) read(ctx context.Context) (*coordination.Lease, error) {
	if p.known != nil {
		return p.known, nil
	}
	ctx, cancel := context.WithTimeout(ctx, renewalTimeout)
	defer cancel()
	defer func() { p.answered = time.Now() }()
	found, err := p.leases.api().Get(ctx, slotsLease, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		made := &coordination.Lease{ObjectMeta: metav1.ObjectMeta{
			Name: slotsLease, Namespace: LeaseNamespace, Labels: map[string]string{"app.kubernetes.io/name": manager},
		}}
		found, err = p.leases.api().Create(ctx, made, metav1.CreateOptions{FieldManager: manager})
		if apierrors.IsAlreadyExists(err) {
			found, err = p.leases.api().Get(ctx, slotsLease, metav1.GetOptions{})
		}
	}
	if err != nil {
		return nil, fmt.Errorf("reading which nodes are being drained: %w", err)
	}
	p.known = found
	return found, nil
}

// write replaces what is taken, unless that has changed since it was read.
func (p *slotStore) write(ctx context.Context, read *coordination.Lease, all slots) error {
	ctx, cancel := context.WithTimeout(ctx, renewalTimeout)
	defer cancel()
	next := read.DeepCopy()
	if next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	next.Annotations[SlotsAnnotation] = all.text()
	p.known, p.tidied = nil, time.Now()
	written, err := p.leases.api().Update(ctx, next, metav1.UpdateOptions{FieldManager: manager})
	p.answered = time.Now()
	if err != nil {
		return fmt.Errorf("writing which nodes are being drained: %w", err)
	}
	p.known = written
	return nil
}

// catchUp takes in what the last look has shown, if it is not what is known. A look that began before the last answer may show what was there
// before: by it, what was taken since would seem to have been given back.
func (p *slotStore) catchUp() {
	p.leases.mu.Lock()
	defer p.leases.mu.Unlock()
	if seen := p.leases.slots; seen != nil && p.leases.looked.After(p.answered) {
		p.known = seen
	}
}

// takeSlots lets those in the line begin for whom there is room once their places are taken, and gives back those of ours that
// are no longer needed.
func (f *Fleet) takeSlots(t *leaseTerm) error {
	p := f.slots
	p.catchUp()
	for range slotTries {
		read, err := p.read(t.ctx)
		if err != nil {
			return err
		}
		before := parseSlots(read.Annotations[SlotsAnnotation])
		next, begin := f.proposeSlots(t, before)
		same := maps.Equal(before[t.process], next[t.process])
		if len(begin) == 0 && (same || time.Since(p.tidied) < slotReleaseInterval) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.holdsSlots = f.holdsSlots && (!same || len(next[t.process]) > 0)
			return nil
		}
		if err := p.write(t.ctx, read, next); apierrors.IsConflict(err) {
			continue
		} else if err != nil {
			return err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.holdsSlots = len(next[t.process]) > 0
		for _, s := range begin {
			f.start(t, s)
		}
		return nil
	}
	return nil // Others are quicker all the time. The line is looked at again.
}

// proposeSlots is what is to be taken, and who may begin then.
func (f *Fleet) proposeSlots(t *leaseTerm, before slots) (next slots, begin []*session) {
	f.mu.Lock()
	defer f.mu.Unlock()
	next = slots{}
	for process, nodes := range before {
		if process != t.process && !f.leases.hasEnded(process) {
			next[process] = nodes
		}
	}
	ours := f.draining()
	begin = admit(f.waiting(), f.countDraining(t, next), f.rules.Load().Limits)
	for _, s := range begin {
		ours[s.nodeKey] = s.group
	}
	if len(ours) > 0 {
		next[t.process], f.holdsSlots = ours, true // Also if the answer to what is written is lost.
	}
	return next, begin
}

// draining are the groups of the nodes that this process drains. f.mu is held.
func (f *Fleet) draining() map[nodeKey]string {
	ours := map[nodeKey]string{}
	for _, s := range f.sessions {
		if s.begun && !s.leftAlone() {
			ours[s.nodeKey] = s.group
		}
	}
	return ours
}

// countDraining counts the nodes that are being drained: by us, by those who have taken places, and by those whose claims the watch
// has shown. f.mu is held.
func (f *Fleet) countDraining(t *leaseTerm, others slots) counts {
	all := f.draining()
	for _, nodes := range others {
		maps.Copy(all, nodes)
	}
	f.nodes.each(func(n node) {
		if s := f.sessions[n.name]; s != nil && s.begun {
			return
		}
		if f.claims.free(t.process, n) != nil {
			all[nodeKeyOf(n.name)] = n.group
		}
	})
	c := counts{all: len(all), group: map[string]int{}}
	for _, group := range all {
		c.group[group]++
	}
	return c
}

// updateSlots takes the places in a goroutine of its own, one such at a time. What cannot be placed is not held for ever: its
// messages go back into the queue. f.mu is held.
func (f *Fleet) updateSlots(t *leaseTerm) {
	if f.updatingSlots {
		return
	}
	f.updatingSlots = true
	t.sessions.Go(func() {
		err := f.takeSlots(t)
		if err == nil || t.ctx.Err() != nil {
			f.slots.refused = 0
		} else {
			f.slots.refused++
		}
		refused := f.slots.refused
		f.mu.Lock()
		f.updatingSlots = false
		f.mu.Unlock()
		switch {
		case refused == 1:
			f.opts.Log.Warn(err)
		case refused > 1:
			f.returnWaiting((*task).retry)
		}
	})
}

// OwnPod is the pod that a process runs in. The process leaves the node below it to another one of its Deployment, if that is ready; else
// it drains the node itself, and its own pod goes last.
type OwnPod struct {
	// Node is the name of the node below the pod. Where it is empty, no node is treated in another way.
	Node string
	// Namespace and Pod are the pod's namespace and name.
	Namespace, Pod string
}

// The labels by which the pods of one Deployment know each other: what they run, and as whose part.
const (
	nameLabel, instanceLabel = "app.kubernetes.io/name", "app.kubernetes.io/instance"
	nameValue                = "nth-queue"
)

const (
	// givenBack is how long what others are to drain goes back into the queue for: the shortest time that SQS counts in, if it is not 0,
	// with which it would come again at once, perhaps a hundred times in the time that others need.
	handoverPause = time.Second
	// lookAgain is the same where another process drains the node already, and holds the same message or another one.
	claimedPause = 5 * time.Second
	// handover is for how long others are given the chance to drain the node below us: somebody who seems to be ready may not be.
	handoverTime = 15 * time.Second
	// forgotten is how long after it was last given back a chance is not the same any more.
	handoverForget = time.Minute
)

// handovers are what others had to drain the node below us, by the IDs of the events that it was to be drained for: that nobody has come for
// one, or that one was seen to a moment ago, says nothing of the next.
type handovers struct {
	mu sync.Mutex
	of map[string]handoverTry
}

// handoverTry is since when others had it, and when for the last time.
type handoverTry struct{ first, last time.Time }

// left tells whether others are still to have the chance to see to all of those events.
func (c *handovers) left(events []string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.of == nil {
		c.of = map[string]handoverTry{}
	}
	maps.DeleteFunc(c.of, func(_ string, had handoverTry) bool { return now.Sub(had.last) > handoverForget })
	left := true
	for _, id := range events {
		had, known := c.of[id]
		if !known {
			had.first = now
		}
		had.last = now
		c.of[id] = had
		left = left && now.Sub(had.first) < handoverTime
	}
	return left
}

// errLeaveToOthers says that a node is not for us to drain, but for another process that is there. What is asked for it goes back into the
// queue for that long.
type errLeaveToOthers struct{ pause time.Duration }

func (errLeaveToOthers) Error() string {
	return "another process is to drain the node that this one runs on"
}

// leaveToOthers returns errOthers if the session's node is the one below us and another process can drain it.
func (s *session) leaveToOthers(ctx context.Context, process string, n node) error {
	f, own := s.fleet, s.fleet.opts.Own
	if own.Node == "" || n.name != own.Node {
		return nil
	}
	if f.claims.free(process, n) != nil {
		return errLeaveToOthers{claimedPause}
	}
	relieved, err := own.otherReady(ctx, f.opts.Client)
	if err != nil {
		f.opts.Log.WithField(fieldNode, n.name).Warn(err) // Nobody may be there, so that we are.
	}
	f.mu.Lock()
	events := slices.Collect(maps.Keys(s.tasks))
	f.mu.Unlock()
	if !relieved || !f.handovers.left(events) {
		return nil
	}
	return errLeaveToOthers{handoverPause}
}

// otherReady tells whether another pod of our Deployment is ready on another node.
func (o OwnPod) otherReady(ctx context.Context, client kubernetes.Interface) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	all, err := client.CoreV1().Pods(o.Namespace).List(ctx, metav1.ListOptions{LabelSelector: nameLabel + "=" + nameValue, ResourceVersion: "0"})
	if err != nil {
		return false, fmt.Errorf("looking for another nth-queue, as node %q is the one below this one: %w", o.Node, err)
	}
	ours := slices.IndexFunc(all.Items, func(pod corev1.Pod) bool { return pod.Name == o.Pod })
	if ours < 0 {
		return false, nil
	}
	part := all.Items[ours].Labels[instanceLabel]
	return slices.ContainsFunc(all.Items, func(pod corev1.Pod) bool {
		return pod.Spec.NodeName != o.Node && pod.Labels[instanceLabel] == part && pod.DeletionTimestamp == nil && isReady(&pod)
	}), nil
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
