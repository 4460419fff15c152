package fleet

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/drain"
)

const (
	// slotsLease is the Lease on which all processes agree who drains which node, if there are limits.
	slotsLease = "places"
	// SlotsAnnotation on that Lease says which nodes each process drains, as slots.text.
	SlotsAnnotation = drain.KeyPrefix + "places"
	// slotTries is how often a change of the slots is tried if others change them at the same time.
	slotTries = 5
	// slotReleaseInterval is the shortest time between two changes that no session waits for.
	slotReleaseInterval = time.Second
)

// slots has the groups of the nodes that are being drained, by process and node.
type slots map[string]map[nodeKey]string

// nodeKey is a short hash of a node's name, because the names of 10,000 nodes do not fit into an annotation. In one of a few million
// clusters of that size two names have the same key; they count as one node then.
type nodeKey string

// keyLength is the length of a key in base64, with six bits of the hash in each character.
const keyLength = 8

func nodeKeyOf(node string) nodeKey {
	sum := sha256.Sum256([]byte(node))
	return nodeKey(base64.RawURLEncoding.EncodeToString(sum[:keyLength*6/8]))
}

// keysFollow is the first character of a value that holds the keys of all nodes of a group. No label value contains it.
const keysFollow = ":"

// text encodes the slots as JSON: for each process and group the keys of its nodes, concatenated.
func (all slots) text() string {
	written := map[string]map[string]string{}
	for process, nodes := range all {
		keys := map[string][]byte{} // A string would be copied whole for each node.
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

// parseSlots decodes slots. Earlier versions wrote the group of each node by its name.
func parseSlots(text string) slots {
	var written map[string]map[string]string
	if json.Unmarshal([]byte(text), &written) != nil {
		return slots{} // Somebody has overwritten it. Each process adds its own nodes again.
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

// slotStore makes limits exact, however many processes begin at the same moment, and however far their watches are behind. Before a
// process starts a session that may have to wait, it writes the node into one object, with the resourceVersion of the object in which it
// has counted. A node that need not wait is written as soon as possible.
type slotStore struct {
	leases *leases
	// known is the object as it was last read or written; nil if it must be read.
	known *coordination.Lease
	// written is when the object was last written, and answered when the last request for it ended.
	written, answered time.Time
	// refused is how often in a row the object could not be read or written.
	refused int
}

// read returns the object, and creates it if it does not exist. The object may be outdated: then write fails with a conflict.
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

// write replaces the slots, unless the object has changed since it was read.
func (p *slotStore) write(ctx context.Context, read *coordination.Lease, all slots) error {
	ctx, cancel := context.WithTimeout(ctx, renewalTimeout)
	defer cancel()
	next := read.DeepCopy()
	if next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	next.Annotations[SlotsAnnotation] = all.text()
	p.known, p.written = nil, time.Now()
	updated, err := p.leases.api().Update(ctx, next, metav1.UpdateOptions{FieldManager: manager})
	p.answered = time.Now()
	if err != nil {
		return fmt.Errorf("writing which nodes are being drained: %w", err)
	}
	p.known = updated
	return nil
}

// catchUp takes the object from the last list of Leases. A list that was requested before the last answer about the object may be older
// than that, and would show slots as free that have been taken since.
func (p *slotStore) catchUp() {
	p.leases.mu.Lock()
	defer p.leases.mu.Unlock()
	if seen := p.leases.slots; seen != nil && p.leases.looked.After(p.answered) {
		p.known = seen
	}
}

// takeSlots takes slots for the sessions that may begin and starts these, and releases the slots of this process that are not needed any
// more.
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
		if len(begin) == 0 && (same || time.Since(p.written) < slotReleaseInterval) {
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
	return nil // Others were faster each time. dispatch tries again.
}

// proposeSlots returns the slots to be written, and the sessions that may begin then.
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

// draining returns the groups of the nodes that this process drains. f.mu is held.
func (f *Fleet) draining() map[nodeKey]string {
	ours := map[nodeKey]string{}
	for _, s := range f.sessions {
		if s.begun && !s.leftAlone() {
			ours[s.nodeKey] = s.group
		}
	}
	return ours
}

// countDraining counts the nodes that are being drained: by this process, by those that have slots, and by those whose claims are on the
// Nodes. f.mu is held.
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

// updateSlots runs takeSlots in a goroutine, one at a time. If the slots cannot be written twice in a row, the messages of the waiting
// sessions are returned. f.mu is held.
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
