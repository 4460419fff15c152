package demo

import (
	"bytes"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
)

// A Witness feeds the demo's timeline as the play does.
type Witness struct{ line *timeline }

func NewWitness() Witness { return Witness{newTimeline()} }

// EC2, Cluster and Journal take what the three witnesses tell.
func (w Witness) EC2(at time.Time, text string) {
	w.line.add(fact{at: at, kind: announced, text: text})
}
func (w Witness) Cluster(m lab.Moment) { w.line.add(factOf(m)) }

// Journal tells whether the message becomes part of the timeline.
func (w Witness) Journal(e daemon.Entry) bool {
	f, ok := factFrom(e)
	if ok {
		w.line.add(f)
	}
	return ok
}

func (w Witness) AllGone(pods ...string) bool { return w.line.allGone(pods) }

// Story is a narrator with a page.
type Story struct {
	n   *narrator
	p   *page
	out *bytes.Buffer
}

func NewStory(start time.Time, podColumns int) Story {
	out := new(bytes.Buffer)
	p := newPage(out, func(string) string { return "xterm" })
	p.pods = podColumns
	return Story{newNarrator(start), p, out}
}

// Print prints what happened before that time.
func (s Story) Print(w Witness, until time.Time) {
	for _, r := range s.n.tell(w.line.until(until)) {
		s.p.row(r)
	}
}

func (s Story) Text() string    { return s.out.String() }
func (s Story) Budgets() string { return s.n.budgets() }

func Verdict(node *corev1.Node, pods []corev1.Pod, left time.Duration) error {
	return verdict(node, pods, left)
}

// Page writes a preparation, an outsider's word in its midst, and a list.
func Page(write func(step func(string), done, outside func(string), item func(string, string))) string {
	out := new(bytes.Buffer)
	p := newPage(out, func(string) string { return "" })
	write(p.step, func(text string) { p.done("%s", text) },
		func(text string) { _, _ = writerTo(p).Write([]byte(text)) }, p.item)
	return out.String()
}

const Width = width
