package soak_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/test/internal/lab"
)

const (
	// lookedAt is a document at which nth looks often.
	lookedAt = "/latest/meta-data/autoscaling/target-lifecycle-state"
	// quiet is how many looks must find nothing to do before things have settled.
	quiet = 3
	// patience is how long things may take to settle: a drain that has failed is repeated after as much as a minute.
	patience = 100 * time.Second
)

// A sight is what can be seen of the machine and its node.
type sight struct {
	record  []state.Entry
	owner   owner
	claim   struct{ Writer, Event string }
	claimed string // the annotation in which that is; empty if there is none
	label   string // the one for load balancers; empty if there is none
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
			l.judge(t, seen)
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
	s.claimed, s.label = node.Annotations[cordonAnnotation], node.Labels[excludeLabel]
	if s.claimed != "" && json.Unmarshal([]byte(s.claimed), &s.claim) != nil {
		t.Fatalf("the annotation %s cannot be read: %s", cordonAnnotation, s.claimed)
	}
	switch {
	case !node.Spec.Unschedulable:
		s.owner = nobody
	case s.claim.Writer == "nth-queue":
		s.owner = queue
	case s.claim.Writer == "nth" && cordonedByNTH(node):
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
func (l *life) wrongRecord(entries []state.Entry) []string {
	var wrong []string
	announced := map[string]bool{}
	for _, n := range l.model.notices {
		e, found := n.entry(entries)
		announced[e.Event.ID] = found
		switch allowed := n.phases(); {
		case !found && n.wants != ignored:
			wrong = append(wrong, fmt.Sprintf("%s is not on record", n))
		case found && !slices.Contains(allowed, e.Phase):
			wrong = append(wrong, fmt.Sprintf("%s is %s, want one of %s", n, e.Phase, allowed))
		case n.acts() && n.brief && e.Phase == state.Cordoned && !e.CordonedAt.IsZero():
			wrong = append(wrong, fmt.Sprintf("%s: its time to live is not over yet", n))
		case n.acts() && n.order == given && !e.Released() && n.brief && len(n.times) > 1: // Its time was over before it moved.
		case n.acts() && n.order == given && !e.Released():
			wrong = append(wrong, fmt.Sprintf("%s: the order to let the node take pods is forgotten", n))
		case n.acts() && n.order == none && e.Released():
			wrong = append(wrong, fmt.Sprintf("%s: nobody has ordered to let the node take pods", n))
		}
	}
	for _, e := range entries {
		if !announced[e.Event.ID] && e.Phase != state.Closed {
			wrong = append(wrong, fmt.Sprintf("%s is %s and not announced", e.Event.ID, e.Phase))
		}
	}
	return wrong
}

// entry finds what nth remembers of a notice, which may have had several times.
func (n *notice) entry(entries []state.Entry) (state.Entry, bool) {
	var found []state.Entry
	for _, e := range entries {
		if e.Event.Kind == n.kind && (e.Event.Code == n.code || n.kind == event.RebalanceRecommendation) && n.is(e) {
			found = append(found, e)
		}
	}
	if len(found) == 0 {
		return state.Entry{}, false
	}
	if i := slices.IndexFunc(found, func(e state.Entry) bool { return e.Phase != state.Closed }); i >= 0 {
		return found[i], true
	}
	return found[len(found)-1], true
}

func (n *notice) is(e state.Entry) bool {
	switch n.kind {
	case event.ScheduledMaintenance:
		return e.Event.ID == n.id
	case event.RebalanceRecommendation:
		return slices.ContainsFunc(n.times, e.Event.Noticed.Equal)
	case event.ASGTermination:
		return e.BootID == n.bootID
	default:
		return slices.ContainsFunc(n.times, e.Event.Deadline.Equal)
	}
}

func (l *life) wrongNode(s sight) []string {
	var wrong []string
	m := l.model
	if owners := m.owners(); !slices.Contains(owners, s.owner) {
		wrong = append(wrong, fmt.Sprintf("the cordon is that of %s, want %s", s.owner, owners))
	}
	reasons := m.any(func(n *notice) bool { return n.acts() && !n.brief })
	switch {
	case s.owner == queue && s.claimed != l.claim:
		wrong = append(wrong, fmt.Sprintf("nth-queue's annotation is %s, want %s", s.claimed, l.claim))
	case s.claim.Writer == "nth" && !reasons && s.owner != admin:
		wrong = append(wrong, "nth's annotation is left on the node")
	case s.claimed != "" && s.claim.Writer == "":
		wrong = append(wrong, "the annotation does not name its writer: "+s.claimed)
	}
	obeyed, doubtful := m.any((*notice).obeys), m.any((*notice).isDoubtful)
	switch {
	case s.label != "" && s.label != "nth":
		wrong = append(wrong, "the label for load balancers is "+s.label)
	case s.label != "" && (!l.traits.Balanced || !obeyed && !doubtful || s.owner == nobody):
		wrong = append(wrong, "the label for load balancers is there")
	case s.label == "" && l.traits.Balanced && obeyed && s.owner != nobody && !m.limited:
		wrong = append(wrong, "the label for load balancers is not there")
	}
	return wrong
}

func (l *life) wrongPods(s sight) []string {
	var wrong []string
	held := false
	for uid, object := range s.pods {
		p := l.model.pods[uid]
		held = held || p == nil || p.held() || p.returning
		if p == nil || !p.returning {
			if object.DeletionTimestamp != nil {
				wrong = append(wrong, "pod "+object.Name+" is about to go")
			}
		}
	}
	for uid, p := range l.model.pods {
		_, ok := s.pods[uid]
		switch fate := l.model.fate(p); {
		case ok && fate == mustGo:
			wrong = append(wrong, "pod "+p.name+" is there, want it gone")
		case !ok && fate == stays:
			wrong = append(wrong, "pod "+p.name+" is gone, want it to stay")
		}
	}
	for _, n := range l.model.notices {
		switch e, _ := n.entry(s.record); {
		case !n.obeys() || done(e.Phase):
		case e.LeftAlone && !l.model.limited:
			wrong = append(wrong, fmt.Sprintf("%s is left alone, and nobody asks for it", n))
		case !e.LeftAlone && !held:
			wrong = append(wrong, fmt.Sprintf("%s is %s, and nothing holds a pod", n, e.Phase))
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

// conclude ends the round.
func (l *life) conclude(t *testing.T, s sight) {
	t.Helper()
	l.model.settled(s.owner, func(n *notice) state.Entry {
		e, _ := n.entry(s.record)
		return e
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
		if _, ok := s.pods[uid]; !ok {
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
	for word, is := range map[string]bool{
		"far": n.far, "over": n.over, "brief": n.brief, "open": n.open, "ignored": n.wants == ignored, "only told": n.wants == nothing,
		"perhaps lifted": n.order == perhaps, "lifted": n.order == given,
	} {
		if is {
			text += ", " + word
		}
	}
	return text
}
