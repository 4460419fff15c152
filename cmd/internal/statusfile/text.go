package statusfile

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/nth-project/nth/pkg/record"
)

// writeText writes a report for people: the sentence first, then a table of what lies behind it.
func writeText(w io.Writer, found report) error {
	if found.Why != "" {
		fmt.Fprintln(w, found.Why)
	}
	s := found.Status
	if s == nil {
		return nil
	}
	if found.Why != "" {
		fmt.Fprint(w, "last known: ")
	}
	fmt.Fprintf(w, "%s\n\n", s.Sentence)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	t := rows{table}
	t.row(found.name, fmt.Sprintf("%s, process %d, since %s", s.Program, s.PID, moment(s.Started)))
	t.identity(s)
	if s.Step != nil {
		t.step(s.Step, s.Updated)
	}
	t.events(s.Events)
	t.documents(s.Documents)
	if s.TargetState != "" {
		t.row("target state", s.TargetState+", as the Auto Scaling group wants it")
	}
	if s.Hook != "" {
		t.row("hook", s.Hook)
	}
	for i, fault := range s.Degraded {
		t.row(first(i, "degraded"), fault)
	}
	for i, off := range s.Off {
		t.row(first(i, "off"), fmt.Sprintf("%s: %s", off.What, off.Why))
	}
	return table.Flush()
}

// rows writes the lines of a table of two columns.
type rows struct{ w io.Writer }

func (t rows) row(name, text string) { fmt.Fprintf(t.w, "%s\t%s\n", name, text) }

// first is the name of a group of rows at its first row alone.
func first(i int, name string) string {
	if i > 0 {
		return ""
	}
	return name
}

func (t rows) identity(s *record.Status) {
	if s.Node != "" {
		t.row("node", s.Node)
	}
	if id := s.Identity; id.Server != "" {
		t.row("identity", fmt.Sprintf("%s in %s, for %s", id.Credential, id.Source, id.Server))
	}
	if s.Identity.Trouble != "" {
		t.row("waiting", s.Identity.Trouble)
	}
}

// step tells what was being done at a moment.
func (t rows) step(step *record.StepStatus, at time.Time) {
	text := fmt.Sprintf("%s for %s, since %s", step.Action, step.Kind, moment(step.Began))
	if !step.Deadline.IsZero() {
		text += fmt.Sprintf(", %.0f s left", max(step.Deadline.Sub(at), 0).Seconds())
	}
	t.row("doing", text)
	if step.PodsTotal > 0 {
		t.row("pods", fmt.Sprintf("%d of %d left", step.PodsLeft, step.PodsTotal))
	}
	for i, pod := range slices.Sorted(maps.Keys(step.HeldBy)) {
		t.row(first(i, "held"), fmt.Sprintf("%s by %s", pod, step.HeldBy[pod]))
	}
}

func (t rows) events(events []record.EventStatus) {
	for i, e := range events {
		text := fmt.Sprintf("%s, %s: %s", e.Kind, e.Phase, e.Plan)
		if e.Node != "" {
			text = fmt.Sprintf("%s: %s", e.Node, text)
		}
		if !e.Missing.IsZero() {
			text += fmt.Sprintf("; not announced since %s", moment(e.Missing))
		}
		if e.Error != "" {
			text += fmt.Sprintf("; %d attempts ended early: %s", max(e.Failures, 1), e.Error)
		}
		t.row(first(i, "event"), text)
	}
}

func (t rows) documents(documents []record.DocumentStatus) {
	for i, d := range documents {
		text := fmt.Sprintf("%s, last read %s", d.Kind, moment(d.LastGood))
		if d.Trouble != "" {
			text += fmt.Sprintf("; trouble since %s: %s", moment(d.Since), d.Trouble)
		}
		t.row(first(i, "polled"), text)
	}
}
