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
