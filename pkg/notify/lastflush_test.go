package notify_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/state"
)

// What was known of the machine when its node had no name yet stays known for notices of that time.
func TestTheMachineStaysKnownWhenItsNodeGetsItsName(t *testing.T) {
	var deaf atomic.Bool
	hookedWith(t, func(o *notify.WebhookOptions) {
		o.Machine = func(context.Context, string) notify.Machine {
			if deaf.Load() {
				return notify.Machine{}
			}
			return notify.Machine{ID: "i-1"}
		}
	}, func(r *hookRig) {
		r.useTemplate(`{{ .EventID }} {{ .Outcome }} of {{ .InstanceID }}`)
		r.hear(state.Announced, "a", onNode(""))
		r.pass(2 * time.Second)
		r.want("a announced of i-1")
		r.hear(state.Announced, "b")
		r.pass(2 * time.Second)
		r.want("b announced of i-1")
		deaf.Store(true)
		r.hear(state.Announced, "c", onNode(""))
		r.pass(10 * time.Second)
		r.want("c announced of i-1")
	})
}

// At the end, what failed once is tried again within the two seconds if the other requests leave the time.
func TestAConditionThatFailsAtTheEndIsTriedAgain(t *testing.T) {
	play(t, bare, func(s *stage) {
		s.start()
		s.cluster.answers("", 503)
		s.tell(announced(entry("a", event.SpotInterruption, state.Seen)))
		s.pass(30 * time.Second) // its backoff has grown
		var tries atomic.Int32
		s.cluster.mu.Lock()
		s.cluster.answer = func(what string) int {
			switch {
			case what == "patch condition" && tries.Add(1) == 1:
				return 503
			case what != "patch condition" && what != "get node":
				time.Sleep(1200 * time.Millisecond)
			}
			return 0
		}
		s.cluster.mu.Unlock()
		s.end()
		if c := s.cluster.condition(); c == nil || c.Status != "True" {
			t.Errorf("the condition is %v after %d tries", c, tries.Load())
		}
	})
}
