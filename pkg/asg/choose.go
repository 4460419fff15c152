package asg

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// hook is a lifecycle hook, as its group has it.
type hook struct {
	name, transition string
	// timeout is how long Auto Scaling waits for the hook without a heartbeat, and global how long at the very most.
	timeout, global time.Duration
	// notifies is the ARN of the queue or topic that is notified; empty if there is none.
	notifies string
}

// interval is the time between two heartbeats: two may get lost without harm.
func (h hook) interval() time.Duration { return h.timeout / 3 }

// The hooks that EKS puts on the groups of its managed node groups. EKS completes them when it has drained the node itself, or the
// node has joined.
const (
	eksHook       = "Terminate-LC-Hook"
	eksLaunchHook = "Launch-LC-Hook"
)

// rule says by what choose chooses hooks for one transition.
type rule struct {
	transition string
	// named are the hooks that the settings name. If they name none, choose decides.
	named []string
	// queue is the queue that nth-queue reads, in the form of HookClientOptions.Queue; empty for nth.
	queue string
}

// words are the parts of messages that differ by the transition.
type words struct {
	kind         string // what the hooks are for
	setting      string // the setting that names hooks
	until        string // for what a hook holds the machine
	willComplete string // a format, for the names of the hooks and their group
}

var wordsFor = map[string]words{
	terminating: {
		"terminations", "events.asg-termination.hooks", "for the drain",
		"after the drain, the lifecycle hook %s of the Auto Scaling group %s will be completed; heartbeats hold the machine until then",
	},
	launching: {
		"launches", "fleet.launch_hooks", "until its node is Ready",
		"once the node is Ready, the lifecycle hook %s of the Auto Scaling group %s will be completed",
	},
}

// choose returns those of a group's hooks that nth is to complete. why says in words what follows, also if it chooses none.
//
// Another program may wait for a hook. If nth completed that hook, the machine would end during the program's work, or go into service too
// early. So choose takes the first of these rules that applies:
//   - The settings name hooks: only those are chosen.
//   - Hooks notify nth-queue's own queue: those are chosen.
//   - The group has one hook, which notifies nothing and is not that of EKS: it is chosen.
func choose(group string, all []hook, r rule) (chosen []hook, why string) {
	say := wordsFor[r.transition]
	hooks := only(all, func(h hook) bool { return h.transition == r.transition })
	if len(hooks) == 0 {
		return nil, fmt.Sprintf("the Auto Scaling group %s has no lifecycle hook for %s: nothing holds the machine %s", group, say.kind, say.until)
	}
	if len(r.named) > 0 {
		chosen = only(hooks, func(h hook) bool { return slices.Contains(r.named, h.name) })
		if len(chosen) == 0 {
			return nil, fmt.Sprintf("none of the lifecycle hooks of the Auto Scaling group %s is named in the settings: %s", group, names(hooks))
		}
		return chosen, fmt.Sprintf(say.willComplete, names(chosen), group)
	}
	chosen = only(hooks, func(h hook) bool { return r.queue != "" && strings.HasSuffix(h.notifies, r.queue) })
	if len(chosen) > 0 {
		return chosen, fmt.Sprintf(say.willComplete, names(chosen), group)
	}
	unlessNamed := fmt.Sprintf("it is left alone unless %s names it", say.setting)
	switch first := hooks[0]; {
	case len(hooks) > 1:
		return nil, fmt.Sprintf("the Auto Scaling group %s has several lifecycle hooks for %s: %s; none is completed unless %s names it",
			group, say.kind, names(hooks), say.setting)
	case first.name == eksHook, first.name == eksLaunchHook:
		return nil, fmt.Sprintf("the lifecycle hook %s of the Auto Scaling group %s is that of an EKS managed node group; %s", first.name, group, unlessNamed)
	case first.notifies != "":
		return nil, fmt.Sprintf("the lifecycle hook %s of the Auto Scaling group %s notifies %s, which may be waiting to complete it; %s",
			first.name, group, first.notifies, unlessNamed)
	}
	return hooks, fmt.Sprintf(say.willComplete, names(hooks), group)
}

// only returns the hooks that keep accepts.
func only(hooks []hook, keep func(hook) bool) []hook {
	return slices.DeleteFunc(slices.Clone(hooks), func(h hook) bool { return !keep(h) })
}

// names returns the names of hooks for a message.
func names(hooks []hook) string {
	list := make([]string, len(hooks))
	for i, h := range hooks {
		list[i] = h.name
	}
	return strings.Join(list, ", ")
}
