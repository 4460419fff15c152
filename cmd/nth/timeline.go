package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/systemd"
)

// timeline writes what nth says as lines with the time since the notice and the time that is left, in plain characters, which any
// terminal shows:
//
//	 time      left
//	0.5 s   119.4 s    cordoned the node after 4ms
//	0.5 s   119.4 s  ! disruption budget web blocks the eviction of default/web-2; retrying
//
// It is a logrus.Formatter and an agent.Listener, and safe for concurrent use.
type timeline struct {
	out io.Writer
	dry bool

	mu           sync.Mutex
	notice, ends time.Time
	over         bool
	pods         map[string]*podTimes
	order        []string
	result       *record.Result
	took         time.Duration
}

// podTimes are when a pod was asked to end and was gone, since the notice; zero if it was not.
type podTimes struct {
	asked, gone time.Duration
	deleted     bool
	heldBy      string
	held        time.Duration // since when
}

func newTimeline(out io.Writer, dry bool) *timeline {
	return &timeline{out: out, dry: dry, pods: map[string]*podTimes{}}
}

// begin is when the notice is given, of an interruption at a time.
func (t *timeline) begin(ends time.Time) {
	t.mu.Lock()
	t.notice, t.ends = time.Now(), ends
	t.mu.Unlock()
	fmt.Fprintf(t.out, "\n%7s  %8s\n", "time", "left")
	t.say(fmt.Sprintf("EC2 gives notice that it takes the machine in %.0f s", time.Until(ends).Seconds()))
}

// say writes a line.
func (t *timeline) say(text string) {
	line, _ := t.Format(&logrus.Entry{Message: text}) // It cannot fail.
	_, _ = t.out.Write(line)                          // Nobody may be reading any more.
}

// end keeps all from being told that is said from now on.
func (t *timeline) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
}

// troubles are the messages that deserve a mark.
var troubles = map[any]bool{
	systemd.PodHeld: true, systemd.PodDeleted: true, systemd.DrainIncomplete: true, systemd.DrainLeft: true,
	systemd.SourceTrouble: true, systemd.IdentityWaiting: true, systemd.StateTrouble: true,
}

// Format implements logrus.Formatter.
func (t *timeline) Format(entry *logrus.Entry) ([]byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return nil, nil
	}
	mark, text := " ", strings.TrimSpace(entry.Message)
	if troubles[entry.Data[systemd.FieldMessageID]] {
		mark = "!"
	}
	if err, found := entry.Data[logrus.ErrorKey]; found {
		text += fmt.Sprintf(": %s", err)
	}
	if t.notice.IsZero() {
		return fmt.Appendf(nil, "%7s  %8s  %s %s\n", "", "", mark, text), nil
	}
	left := max(time.Until(t.ends), 0)
	return fmt.Appendf(nil, "%5.1f s  %6.1f s  %s %s\n", time.Since(t.notice).Seconds(), left.Seconds(), mark, text), nil
}

// Hear implements agent.Listener.
func (t *timeline) Hear(h record.Happening) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if h.Entry.Result != nil {
		t.result, t.took = h.Entry.Result, time.Since(t.notice)
	}
	if h.Pod == "" {
		return
	}
	p, known := t.pods[h.Pod]
	if !known {
		p = &podTimes{}
		t.pods[h.Pod], t.order = p, append(t.order, h.Pod)
	}
	switch now := time.Since(t.notice); h.What { //nolint:exhaustive // these are what happens to a pod
	case record.PodEvicted, record.PodDeleted:
		p.asked, p.deleted = now, h.What == record.PodDeleted
	case record.PodGone:
		p.gone = now
	case record.PodHeld:
		if p.heldBy == "" {
			p.heldBy, p.held = h.Detail, now
		}
	}
}

// conclude says what came of it, and returns what the program ends with.
func (t *timeline) conclude(outcome event.Outcome, rules policy.Settings) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprint(t.out, "\n", t.table())
	switch outcome {
	case event.Drained:
		if t.dry {
			fmt.Fprintln(t.out, "The node would be drained.")
			return nil
		}
		fmt.Fprintf(t.out, "The node is drained after %.1f s, %.0f s before EC2 takes the machine.\n", t.took.Seconds(), max(time.Until(t.ends), 0).Seconds())
	case event.NoDrain:
		fmt.Fprintf(t.out, "The node is not drained, since the settings do not ask for it: events.%s.action is %q.\n",
			event.SpotInterruption, rules[event.SpotInterruption].Action)
	case event.LeftAlone:
		fmt.Fprintln(t.out, "The node is left alone, as people ask for on the Node.")
	case event.OutOfTime:
		fmt.Fprintln(t.out, "The node is NOT drained in time. What is left would end with the machine.")
		return program.ErrTold
	}
	return nil
}

// table is a line for each pod that had to go.
func (t *timeline) table() string {
	if t.dry || len(t.order) == 0 {
		return ""
	}
	width := 0
	for _, name := range t.order {
		width = max(width, len(name))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%-*s  %8s  %8s\n", width, "pod", "asked at", "gone at")
	for _, name := range t.order {
		p := t.pods[name]
		line := fmt.Sprintf("%-*s  %8s  %8s  %s", width, name, moment(p.asked), moment(p.gone), p.note())
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String() + "\n"
}

// note says what deserves a look about a pod.
func (p *podTimes) note() string {
	var notes []string
	by := p.heldBy
	if !strings.Contains(by, " ") { // It is a name, and not why the API server refuses it.
		by = "the disruption budget " + by
	}
	switch held := p.asked - p.held; {
	case p.heldBy == "":
	case p.asked == 0:
		notes = append(notes, "held to the end by "+by)
	case held >= time.Second/10:
		notes = append(notes, fmt.Sprintf("held for %.1f s by %s", held.Seconds(), by))
	}
	if p.deleted {
		notes = append(notes, "deleted, as no time was left")
	}
	return strings.Join(notes, "; ")
}

// moment is a time since the notice; "-" if there was none.
func moment(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
