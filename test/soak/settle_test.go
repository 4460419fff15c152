package soak_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/test/lab"
)

const (
	// cordonAnnotation is the key under which nth says whose cordon it is (docs/node-contract.md).
	cordonAnnotation = "nth/cordon"
	// lookedAt is a document at which nth looks often.
	lookedAt = "/latest/meta-data/autoscaling/target-lifecycle-state"
	// quiet is how many looks must find nothing to do before things have settled.
	quiet = 3
	// patience is how long things may take to settle: a drain that has failed is repeated after as much as a minute.
	patience = 100 * time.Second
)

// A sight is what can be seen of the machine and its node.
type sight struct {
	record  []record.Entry
	owner   owner
	claimed bool // the node bears nth's annotation
	pods    map[types.UID]corev1.Pod
}

// settle waits until the node is as the model wants it and nth has nothing more to do, and judges the round.
func (l *life) settle(t *testing.T) {
	t.Helper()
	give := time.Now().Add(patience)
	goal := -1
	for {
		l.nth.MustRun(t)
		seen, wrong := l.look(t)
		looks := l.imds.Requests().ByPath[lookedAt]
		switch {
		case len(wrong) > 0 && time.Now().After(give):
			t.Fatalf("the node does not become what it must be:\n%s", strings.Join(wrong, "\n"))
		case len(wrong) > 0:
			goal = -1
		case goal < 0:
			goal = looks + quiet
		case looks >= goal:
			l.judge(t)
			l.conclude(t, seen)
			return
		}
		<-time.After(cadence)
	}
}

// look looks at everything, the cheapest first, and returns what is not as it must be.
func (l *life) look(t *testing.T) (sight, []string) {
	t.Helper()
	s := sight{record: l.machine.Record(t)}
	if wrong := l.wrongRecord(s.record); len(wrong) > 0 {
		return s, wrong
	}
	node := l.node.Object(t)
	_, s.claimed = node.Annotations[cordonAnnotation]
	switch {
	case !node.Spec.Unschedulable:
		s.owner = nobody
	case s.claimed && cordonedByNTH(node):
		s.owner = nth
	default:
		s.owner = admin
	}
	s.pods = map[types.UID]corev1.Pod{}
	for _, object := range l.node.Pods(t) {
		s.pods[object.UID] = object
	}
	return s, slices.Concat(l.wrongNode(s), l.wrongPods(s), l.unheard(s))
}

// wrongRecord compares what nth remembers with what is announced.
func (l *life) wrongRecord(entries []record.Entry) []string {
	var wrong []string
	announced := map[string]bool{}
	busy := l.model.draining(entries)
	for _, n := range l.model.notices {
		e, found := n.entry(entries)
		announced[e.Event.ID] = found
		if !found {
			wrong = append(wrong, fmt.Sprintf("%s is not on record", n))
		} else if allowed := n.phases(busy); !slices.Contains(allowed, e.Phase) {
			wrong = append(wrong, fmt.Sprintf("%s is %s, want one of %s", n, e.Phase, allowed))
		}
	}
	for _, e := range entries {
		if !announced[e.Event.ID] && e.Phase != record.Closed {
			wrong = append(wrong, fmt.Sprintf("%s is %s and not announced", e.Event.ID, e.Phase))
		}
	}
	return wrong
}

// entry finds what nth remembers of a notice.
func (n *notice) entry(entries []record.Entry) (record.Entry, bool) {
	i := slices.IndexFunc(entries, func(e record.Entry) bool {
		if e.Event.Kind != n.kind || e.Event.Code != n.code && n.kind != event.RebalanceRecommendation {
			return false
		}
		switch n.kind {
		case event.ScheduledMaintenance:
			return e.Event.ID == n.id
		case event.RebalanceRecommendation:
			return e.Event.Noticed.Equal(n.at)
		case event.ASGTermination:
			return e.BootID == n.bootID
		default:
			return e.Event.Deadline.Equal(n.at)
		}
	})
	if i < 0 {
		return record.Entry{}, false
	}
	return entries[i], true
}

// draining tells whether there is a drain that goes on and on, since a budget holds it.
func (m *model) draining(entries []record.Entry) bool {
	return m.any(func(n *notice) bool {
		e, _ := n.entry(entries)
		return n.acts() && e.Phase == record.Draining
	})
}

// phases are those in which a notice may be when things have settled. draining tells that a drain goes on: nth takes one
// step at a time, so that others whose deadline is no nearer wait for it.
func (n *notice) phases(draining bool) []record.Phase {
	var phases []record.Phase
	switch {
	case n.over:
		return []record.Phase{record.Closed}
	case !n.acts():
		return []record.Phase{record.Seen}
	case n.mayBeOver():
		phases = []record.Phase{record.Cordoned, record.Drained, record.Closed}
	case n.wants == drain && n.hard:
		return []record.Phase{record.Drained}
	case n.brief:
		phases = []record.Phase{record.Closed}
	case n.wants == cordon:
		phases = []record.Phase{record.Cordoned}
	default:
		phases = []record.Phase{record.Drained, record.Draining}
	}
	if draining {
		phases = append(phases, record.Seen, record.Cordoning)
	}
	return phases
}

func (l *life) wrongNode(s sight) []string {
	var wrong []string
	if owners := l.model.owners(); !slices.Contains(owners, s.owner) {
		wrong = append(wrong, fmt.Sprintf("the cordon is that of %s, want %s", s.owner, owners))
	}
	wanted := l.model.any(func(n *notice) bool { return n.acts() })
	if s.claimed && !wanted && s.owner != admin {
		wrong = append(wrong, "nth's annotation is left on the node")
	}
	return wrong
}

func (l *life) wrongPods(s sight) []string {
	var wrong []string
	guarded, open := 0, l.model.draining(s.record)
	for uid, p := range l.model.pods {
		object, there := s.pods[uid]
		fate := l.model.fate(p)
		switch {
		case there && object.DeletionTimestamp != nil:
			wrong = append(wrong, "pod "+p.name+" is about to go")
		case there && fate == mustGo:
			wrong = append(wrong, "pod "+p.name+" is there, want it gone")
		case !there && fate == stays:
			wrong = append(wrong, "pod "+p.name+" is gone, want it to stay")
		case there && p.guarded:
			guarded++
		}
	}
	if open && guarded == 0 {
		wrong = append(wrong, "nth is draining, and no budget holds a pod")
	}
	if open && s.owner != nobody {
		for uid, object := range s.pods {
			if p := l.model.pods[uid]; lab.Evictable(&object) && (p == nil || !p.guarded) {
				wrong = append(wrong, "nth is draining, and pod "+object.Name+" is there")
			}
		}
	}
	return wrong
}

// unheard waits for the observer, who must have seen all cordons before the round is judged.
func (l *life) unheard(s sight) []string {
	cordoned := false
	for _, m := range l.heard() {
		switch m.What {
		case lab.Cordoned:
			cordoned = true
		case lab.Uncordoned:
			cordoned = false
		default:
		}
	}
	if cordoned != (s.owner != nobody) {
		return []string{"the observer has not seen the last change of the cordon"}
	}
	return nil
}

// judge looks at what has happened in the round, on the way to how things are now.
func (l *life) judge(t *testing.T) {
	t.Helper()
	cordons, uncordons := -l.model.adminCordons, -l.model.adminUncordons
	terminated := map[string]bool{}
	for _, m := range l.heard()[l.from:] {
		switch m.What {
		case lab.Cordoned:
			cordons++
		case lab.Uncordoned:
			uncordons++
		case lab.PodTerminating:
			terminated[m.Pod] = true
		case lab.PodGone:
		}
	}
	m := l.model
	if m.owner == admin && cordons+uncordons > 0 {
		t.Fatalf("nth cordoned %d times and uncordoned %d times, although the cordon is an administrator's", cordons, uncordons)
	}
	if m.owner == nth && m.any((*notice).holdsOn) && uncordons > 0 {
		t.Fatalf("nth uncordoned %d times, although the node was to be cordoned all the time", uncordons)
	}
	may := m.mayCordon || m.any(func(n *notice) bool { return n.acts() && (n.fresh || n.shaky || n.open) })
	if !may && cordons > 0 {
		t.Fatalf("nth cordoned %d times, although there was nothing new", cordons)
	}
	for _, p := range m.pods {
		if terminated[p.name] && m.fate(p) == stays {
			t.Fatalf("pod %s was terminated, want it to stay", p.name)
		}
	}
}

// conclude ends the round.
func (l *life) conclude(t *testing.T, s sight) {
	t.Helper()
	l.model.settled(s.owner, func(n *notice) record.Phase {
		e, _ := n.entry(s.record)
		return e.Phase
	})
	if l.steady {
		l.usage.measure(t, l.nth.PID())
	}
	var names []string
	for _, object := range s.pods {
		names = append(names, object.Name)
	}
	slices.Sort(names)
	l.note("settled: the cordon is that of %s; announced are %s; on the node are %s", s.owner, l.model.notices, names)
	for uid := range l.model.pods {
		if _, there := s.pods[uid]; !there {
			delete(l.model.pods, uid)
		}
	}
}

// String describes a notice in a few words.
func (n *notice) String() string {
	text := fmt.Sprintf("%s %s %s", n.kind, n.code, n.id)
	if !n.at.IsZero() {
		text += " at " + n.at.UTC().Format(metav1.RFC3339Micro)
	}
	for word, is := range map[string]bool{"far": n.far, "over": n.over, "brief": n.brief, "open": n.open} {
		if is {
			text += ", " + word
		}
	}
	return text
}
