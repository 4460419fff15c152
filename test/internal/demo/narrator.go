package demo

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// A row is one line of the timeline.
type row struct {
	at       time.Duration // since the notice
	who      string        // EC2, nth, node, pod or budget
	subject  string        // the pod or budget, if there is one
	text     string
	emphasis emphasis
}

// A narrator turns facts into rows, and remembers what the summary needs.
type narrator struct {
	start      time.Time // of the notice
	cordonedAt time.Duration
	lastGone   time.Duration
	pods       map[string]*podStory
	gone       int
}

// podStory is what has become of a pod so far. Times are since the notice; zero is not yet.
type podStory struct {
	budget            string // the one that held it, if one did
	held, terminating time.Duration
}

func newNarrator(start time.Time) *narrator {
	return &narrator{start: start, pods: map[string]*podStory{}}
}

// tell turns facts, which come in the order in which they happened, into rows. Of a pod that is gone with the same
// facts in which its end began there is one row.
func (n *narrator) tell(facts []fact) []row {
	var rows []row
	begun := map[string]int{} // the index of the row in which a pod's end began
	for _, f := range facts {
		r := row{at: f.at.Sub(n.start)}
		switch f.kind {
		case announced, read:
			r.who, r.text, r.emphasis = "EC2", f.text, strong
		case said:
			r.who, r.text = "nth", f.text
		case cordoned:
			n.cordonedAt = r.at
			r.who, r.emphasis = "node", strong
			r.text = fmt.Sprintf("cordoned, %d ms after the notice", r.at.Milliseconds())
		case held:
			r = n.held(r, f)
		case terminating:
			begun[f.pod] = len(rows)
			r = n.terminating(r, f)
		case gone:
			if i, ok := begun[f.pod]; ok {
				rows[i].text += ", " + n.end(r.at, f.pod)
				continue
			}
			r.who, r.subject, r.text = "pod", f.pod, n.end(r.at, f.pod)
		}
		rows = append(rows, r)
	}
	return rows
}

func (n *narrator) held(r row, f fact) row {
	story := n.story(f.pod)
	if story.budget == "" {
		story.budget, story.held = f.text, r.at
	}
	r.who, r.subject, r.emphasis = "budget", f.text, caution
	r.text = "holds " + f.pod + " back"
	return r
}

func (n *narrator) terminating(r row, f fact) row {
	story := n.story(f.pod)
	story.terminating = r.at
	r.who, r.subject, r.text = "pod", f.pod, "evicted"
	if story.budget != "" {
		r.text += fmt.Sprintf(", budget %s held it for %s", story.budget, seconds(r.at-story.held))
	}
	return r
}

// end says how a pod went, and counts it.
func (n *narrator) end(at time.Duration, pod string) string {
	n.gone++
	n.lastGone = max(n.lastGone, at)
	// A finished pod has no grace, and nothing between its eviction and its end.
	if began := n.story(pod).terminating; began != 0 {
		return fmt.Sprintf("gone %s later", seconds(at-began))
	}
	return "removed, it had finished"
}

func (n *narrator) story(pod string) *podStory {
	if n.pods[pod] == nil {
		n.pods[pod] = &podStory{}
	}
	return n.pods[pod]
}

// budgets says what was held back, in one part for each budget.
func (n *narrator) budgets() string {
	count, longest := map[string]int{}, map[string]time.Duration{}
	for _, story := range n.pods {
		if story.budget == "" || story.terminating == 0 {
			continue
		}
		count[story.budget]++
		longest[story.budget] = max(longest[story.budget], story.terminating-story.held)
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(count)) {
		part := fmt.Sprintf("%s held %s for %s", name, pods(count[name]), seconds(longest[name]))
		if count[name] > 1 {
			part = fmt.Sprintf("%s held %s for up to %s", name, pods(count[name]), seconds(longest[name]))
		}
		parts = append(parts, part)
	}
	if len(parts) == 0 {
		return "held nothing back"
	}
	return strings.Join(parts, "; ")
}

func pods(n int) string {
	if n == 1 {
		return "1 pod"
	}
	return fmt.Sprintf("%d pods", n)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.3f s", d.Seconds()) }
