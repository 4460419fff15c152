package notify_test

import (
	"context"
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/state"
)

var update = flag.Bool("update", false, "write docs/notices.txt")

const examples = "../../docs/notices.txt"

// docs/notices.txt has what the templates of the packages make of a drain that deletes a pod against its budget.
func TestExamples_AreWhatTheTemplatesGive(t *testing.T) {
	var all strings.Builder
	for _, file := range []string{"slack.tmpl", "teams.tmpl", "pagerduty.tmpl", "json.tmpl"} {
		all.WriteString("# " + file + "\n")
		for _, message := range messagesOfADrain(t, file) {
			all.WriteString("\n" + strings.TrimSpace(message) + "\n")
		}
		all.WriteString("\n")
	}
	want := strings.TrimSuffix(all.String(), "\n")
	if *update {
		if err := os.WriteFile(examples, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if shown, err := os.ReadFile(examples); err != nil || string(shown) != want {
		t.Errorf("docs/notices.txt differs from what the templates give (%v); run: go test ./pkg/notify -run Examples -update", err)
	}
}

// messagesOfADrain returns what a template of the packages makes of an announcement, a drain that is complete, and one that is not.
func messagesOfADrain(t *testing.T, file string) (messages []string) {
	t.Helper()
	template, err := os.ReadFile("../../packaging/webhook/" + file)
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
	return messages
}
