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

// rule says which hooks for one transition are ours.
type rule struct {
	transition string
	// named are the names of the hooks to complete; with none it is the group's only one, if nobody else waits for it.
	named []string
	// queue is the queue that we read ourselves, as in its ARN after the partition; empty if there is none.
	queue string
}

// words are what is said about the hooks for a transition.
type words struct {
	kind, setting string
	until         string // when a hook stops holding the machine
	chosen        string // takes the hooks and the group
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

// choose returns those of a group's hooks that are ours to complete by a rule, and says why in words. To complete
// somebody else's hook would take the machine from under their work, or put it to work too early. So without names in the settings it
// takes the hooks that notify our own queue or, without such a one, the group's only hook if that notifies nobody.
func choose(group string, all []hook, r rule) (ours []hook, why string) {
	say := wordsFor[r.transition]
	hooks := only(all, func(h hook) bool { return h.transition == r.transition })
	if len(hooks) == 0 {
		return nil, fmt.Sprintf("the Auto Scaling group %s has no lifecycle hook for %s: nothing holds the machine %s", group, say.kind, say.until)
	}
	if len(r.named) > 0 {
		ours = only(hooks, func(h hook) bool { return slices.Contains(r.named, h.name) })
		if len(ours) == 0 {
			return nil, fmt.Sprintf("none of the lifecycle hooks of the Auto Scaling group %s is named in the settings: %s", group, names(hooks))
		}
		return ours, fmt.Sprintf(say.chosen, names(ours), group)
	}
	if ours = only(hooks, func(h hook) bool { return r.queue != "" && strings.HasSuffix(h.notifies, r.queue) }); len(ours) > 0 {
		return ours, fmt.Sprintf(say.chosen, names(ours), group)
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
	return hooks, fmt.Sprintf(say.chosen, names(hooks), group)
}

func only(hooks []hook, is func(hook) bool) []hook {
	return slices.DeleteFunc(slices.Clone(hooks), func(h hook) bool { return !is(h) })
}

func names(hooks []hook) string {
	list := make([]string, len(hooks))
	for i, h := range hooks {
		list[i] = h.name
	}
	return strings.Join(list, ", ")
}
