package soak_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/lab"
)

// judge looks at what has happened in the round, on the way to how things are now.
func (l *life) judge(t *testing.T, s sight) {
	t.Helper()
	cordons, uncordons := -l.model.cordons, -l.model.uncordons
	terminated := map[string]time.Time{}
	for _, m := range l.heard()[l.from:] {
		switch m.What {
		case lab.Cordoned:
			cordons++
		case lab.Uncordoned:
			uncordons++
		case lab.PodTerminating:
			terminated[m.Pod] = m.At
		case lab.PodGone:
		}
	}
	m := l.model
	if (m.owner == admin || m.owner == queue) && cordons+uncordons > 0 {
		t.Fatalf("nth cordoned %d times and uncordoned %d times, although the cordon is that of %s", cordons, uncordons, m.owner)
	}
	if m.owner == nth && m.any((*notice).holdsOn) && uncordons > 0 {
		t.Fatalf("nth uncordoned %d times, although the node was to be cordoned all the time", uncordons)
	}
	if !m.mayCordonNow() && cordons > 0 {
		t.Fatalf("nth cordoned %d times, although there was nothing new", cordons)
	}
	for _, p := range m.pods {
		if _, was := terminated[p.name]; was && m.fate(p) == stays {
			t.Fatalf("pod %s was terminated, want it to stay", p.name)
		}
	}
	l.judgeDeadlines(t, terminated)
	l.judgeOutcomes(t, s)
}

// judgeDeadlines fails the test if a pod that was there in time was not told to go before a hard deadline, whatever held it
// and whatever had been begun before. Where something was broken, that cannot be promised.
func (l *life) judgeDeadlines(t *testing.T, terminated map[string]time.Time) {
	t.Helper()
	if l.model.troubled || l.model.limited || l.model.limitedNow {
		return
	}
	for _, n := range l.model.notices {
		if !n.fresh || !n.hard || !n.obeys() || n.wants != drain || n.at.IsZero() || len(n.times) > 1 {
			continue
		}
		for _, p := range l.model.pods {
			if p.spared || p.never || p.returning || p.born > n.since {
				continue
			}
			if at, was := terminated[p.name]; !was || at.After(n.at) {
				t.Fatalf("%s: pod %s was told to go at %q, which is too late", n, p.name, at.UTC())
			}
			l.soak.toll.add("deadlines kept")
			if p.held() {
				l.soak.toll.add("deadlines kept for held pods")
			}
		}
	}
}

// judgeOutcomes fails the test if what came of an event was told more than once, or again.
func (l *life) judgeOutcomes(t *testing.T, s sight) {
	t.Helper()
	told := map[string]map[string]int{}
	for _, e := range l.toldSoFar()[l.toldBefore:] {
		id := e.Fields[systemd.FieldEventID]
		if told[id] == nil {
			told[id] = map[string]int{}
		}
		if e.Fields["error"] == "" { // With one, it has failed and is tried again.
			told[id][e.Fields[systemd.FieldMessageID]]++
		}
	}
	for _, n := range l.model.notices {
		e, _ := n.entry(s.record)
		drained, incomplete := told[e.Event.ID][systemd.Drained], told[e.Event.ID][systemd.DrainIncomplete]
		switch {
		case n.shaky || n.moved || l.model.troubled || n.wants != drain:
		case n.holdsOn() && !n.open && drained+incomplete > 0:
			t.Fatalf("%s: what came of it was told again", n)
		case drained > 1 || incomplete > 1:
			t.Fatalf("%s: it was told %d times that the node is drained, and %d times that it is not", n, drained, incomplete)
		}
	}
}
