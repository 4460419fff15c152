package notify_test

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/state"
)

var update = flag.Bool("update", false, "write docs/notices.svg")

const picture = "../../docs/notices.svg"

// The picture in docs/notices.md has what the templates of the packages make of a drain that deletes a pod against its budget.
func TestPicture_ShowsWhatTheTemplatesGive(t *testing.T) {
	var d drawing
	d.height = 8
	for _, form := range []struct{ file, title string }{
		{"slack", "Slack"}, {"teams", "Microsoft Teams"}, {"pagerduty", "PagerDuty"}, {"json", "json.tmpl, shortened"},
	} {
		d.height += 12
		d.write(12, ` class="head"`, form.title)
		for _, message := range messagesOfADrain(t, form.file) {
			d.draw(t, message)
		}
	}
	want := fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 %d" role="img" aria-label="one drain as Slack, Teams, PagerDuty and JSON show it">
<style>text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre;fill:#1f2328}.head{font-weight:bold;font-size:14px}</style>
<rect width="760" height="%d" fill="#ffffff"/>
%s</svg>
`, d.height+12, d.height+12, d.text.String())
	if *update {
		if err := os.WriteFile(picture, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if shown, err := os.ReadFile(picture); err != nil || string(shown) != want {
		t.Errorf("docs/notices.svg differs from what the templates give (%v); run: go test ./pkg/notify -run Picture -update", err)
	}
	if page, err := os.ReadFile("../../docs/notices.md"); err != nil || !strings.Contains(string(page), "](notices.svg)") {
		t.Errorf("docs/notices.md does not show the picture (%v)", err)
	}
}

// messagesOfADrain returns what a template of the packages makes of an announcement, a drain that is complete, and one that is not.
func messagesOfADrain(t *testing.T, file string) (messages []string) {
	t.Helper()
	template, err := os.ReadFile("../../packaging/webhook/" + file + ".tmpl")
	if err != nil {
		t.Fatal(err)
	}
	hooked(t, func(r *hookRig) {
		r.opts.Cluster = "production"
		r.about.Machine = func(context.Context) notify.Machine {
			return notify.Machine{ID: "i-1234567890abcdef0", Type: "m5.large", Zone: "eu-central-1a", Region: "eu-central-1"}
		}
		r.useTemplate(string(template))
		at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		hear := func(kind state.TransitionKind, after time.Duration, change func(*state.Transition)) {
			r.hear(kind, "spot-1", drain(state.Draining), func(h *state.Transition) {
				h.At, h.Entry.FirstSeen, h.Entry.Event.Deadline, h.Took = at.Add(after), at, at.Add(2*time.Minute), after
				change(h)
			})
		}
		hear(state.Announced, 0, func(h *state.Transition) {
			h.Plan = "EC2 will terminate this spot instance at 12:02:00 UTC on 1 Mar 2026; drain now"
		})
		hear(state.NodeCordoned, 0, func(*state.Transition) {})
		hear(state.PodHeld, time.Minute, func(h *state.Transition) { h.Pod, h.Detail = "shop/db-0", "shop/db" })
		hear(state.PodDeleted, time.Minute, func(h *state.Transition) { h.Pod = "shop/db-0" })
		hear(state.Done, 95*time.Second, func(h *state.Transition) { h.Entry.Result = &state.Result{Evicted: 11, Deleted: 1, Skipped: 2} })
		hear(state.RanOut, 2*time.Minute, func(h *state.Transition) {
			h.Entry.Result = &state.Result{Evicted: 11, Deleted: 1, Skipped: 2, Left: []string{"shop/cart-7"}, HeldBy: map[string]string{"shop/cart-7": "shop/cart"}}
		})
		r.pass(time.Second)
		for _, p := range r.posted() {
			messages = append(messages, p.text)
		}
	})
	if file == "json" {
		messages = messages[len(messages)-1:]
	}
	return messages
}

// drawing is the inside of an SVG that grows downwards.
type drawing struct {
	text   strings.Builder
	height int
}

func (d *drawing) write(x int, class, line string) {
	var escaped bytes.Buffer
	_ = xml.EscapeText(&escaped, []byte(line)) // Buffers take all.
	d.height += 16
	fmt.Fprintf(&d.text, "<text x=\"%d\" y=\"%d\"%s>%s</text>\n", x, d.height, class, escaped.String())
}

// bar draws lines, broken at blanks, beside a bar of a colour.
func (d *drawing) bar(colour string, lines ...string) {
	d.height += 6
	top := d.height
	for _, line := range lines {
		for len(line) > 98 {
			at := strings.LastIndex(line[:98], " ")
			d.write(26, "", line[:at])
			line = line[at+1:]
		}
		d.write(26, "", line)
	}
	d.height += 4
	fmt.Fprintf(&d.text, "<rect x=\"14\" y=\"%d\" width=\"4\" height=\"%d\" fill=\"%s\"/>\n", top+2, d.height-top, colour)
}

type fact struct{ Title, Value string }

// shown is what a service shows of a message.
type shown struct {
	Text        string
	Attachments []struct {
		Color   string
		Fields  []fact
		Content struct {
			Body []struct {
				Color, Text string
				Facts       []fact
			}
		}
	}
	EventAction string `json:"event_action"`
	DedupKey    string `json:"dedup_key"`
	Payload     struct{ Summary, Severity string }
}

var colours = map[string]string{
	"Default": "#888888", "Good": "#2eb886", "Warning": "#daa038", "Attention": "#a30200", "warning": "#daa038", "critical": "#a30200",
}

// draw draws a message as its service shows it, or its lines without what is empty, and without some that the others show.
func (d *drawing) draw(t *testing.T, message string) {
	var m shown
	if err := json.Unmarshal([]byte(message), &m); err != nil {
		t.Fatal(err)
	}
	switch {
	case m.EventAction != "":
		d.bar(colours[m.Payload.Severity], m.EventAction+" "+m.Payload.Severity+" "+m.DedupKey, m.Payload.Summary)
	case m.Attachments == nil:
		lines := strings.Split(strings.TrimSpace(message), "\n")
		d.bar("#d0d7de", slices.DeleteFunc(lines, func(line string) bool {
			return slices.ContainsFunc([]string{`""`, "false", "{}", "null", `"text"`, `"plan"`}, func(part string) bool { return strings.Contains(line, part) })
		})...)
	case m.Text != "":
		d.bar(m.Attachments[0].Color, m.Text, inOneLine(m.Attachments[0].Fields))
	default:
		body := m.Attachments[0].Content.Body
		d.bar(colours[body[0].Color], body[0].Text, inOneLine(body[1].Facts))
	}
}

// inOneLine joins facts.
func inOneLine(facts []fact) string {
	var all []string
	for _, f := range facts {
		all = append(all, f.Title+": "+f.Value)
	}
	return strings.Join(all, " · ")
}
