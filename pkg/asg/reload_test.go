package asg_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/event"
	rules "github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// outcome is what the rules make of the termination, for which the node is as the record says and was not drained.
func outcome(action rules.Action, phase state.Phase) event.Outcome {
	now := time.Now().Round(0)
	settings := rules.Settings{event.ASGTermination: {Action: action, Hard: true, Budget: 15 * time.Minute}}
	sit := rules.Situation{
		Now: now, BootID: "boot-1", Known: map[event.Kind][]event.Event{event.ASGTermination: {ending}},
		Past: []state.Entry{{Event: ending, Phase: phase, BootID: "boot-1", ListedIn: "boot-1", FirstSeen: now, Changed: now}},
	}
	return settings.Settled(sit, ending)
}

// The settings for hooks and the rules are replaced one after the other, and the rules judge once more, or for the first time, while the
// others are in force already.
func TestAReloadCompletesNoHookUndrainedInEitherDirectionAndOrder(t *testing.T) {
	t.Parallel()
	for _, weak := range []struct {
		action rules.Action
		phase  state.Phase
	}{{rules.Ignore, state.Seen}, {rules.Notify, state.Seen}, {rules.Cordon, state.Cordoned}} {
		t.Run(string(weak.action)+" to drain", func(t *testing.T) {
			t.Parallel()
			bubble(t, one(hook), func(r *rig) {
				drains := r.settings
				r.settings.Complete = false
				r.terminate()
				r.keeper.Settled(ending, outcome(weak.action, weak.phase))
				r.pass(time.Minute)
				r.keeper.Use(drains)
				r.pass(time.Second)
				r.keeper.Settled(ending, outcome(weak.action, weak.phase)) // The rules are still those of before.
				r.pass(time.Minute)
				r.wantCalls("CompleteLifecycleAction", 0)
				r.keeper.Settled(ending, outcome(rules.Drain, state.Draining))
				r.pass(time.Minute)
				r.wantCalls("CompleteLifecycleAction", 0)
				r.keeper.Settled(ending, event.Drained)
				r.pass(0)
				r.wantCalls("CompleteLifecycleAction", 1)
			})
		})
		t.Run("drain to "+string(weak.action), func(t *testing.T) {
			t.Parallel()
			bubble(t, one(hook), func(r *rig) {
				r.terminate()
				r.keeper.Settled(ending, outcome(rules.Drain, state.Draining))
				r.pass(time.Minute)
				r.keeper.Settled(ending, outcome(weak.action, weak.phase)) // The rules are new already.
				r.pass(time.Minute)
				r.keeper.Use(asg.Settings{})
				r.pass(time.Minute)
				r.wantCalls("CompleteLifecycleAction", 0)
			})
		})
	}
}

// What had come of the drain before hooks were left alone says nothing about the node as it is when they are looked after again.
func TestHooksThatAreLookedAfterAgainAreNotCompletedForADrainOfBefore(t *testing.T) {
	t.Parallel()
	bubble(t, one(hook), func(r *rig) {
		r.run()
		r.aws.SetState(instance, "Terminating")
		r.announce(ending)
		r.keeper.Settled(ending, event.Drained)
		other := r.settings
		other.Hooks = []string{"drain"}
		r.keeper.Use(other)
		r.keeper.Use(asg.Settings{})
		r.pass(time.Minute)
		r.aws.Terminate(instance)
		r.keeper.Use(r.settings)
		r.pass(time.Minute)
		r.wantCalls("CompleteLifecycleAction", 0)
	})
}
