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
	// notifies is the ARN of the queue or topic that is told; empty if there is none.
	notifies string
}

// The hooks that EKS puts on the groups of its managed node groups: EKS drains the node itself, or waits until it has joined, and
// completes them.
const (
	eksHook       = "Terminate-LC-Hook"
	eksLaunchHook = "Launch-LC-Hook"
)

// rule is what people say about the hooks for one transition.
type rule struct {
	transition string
	// named are the names of those to complete; with none it is the group's only one, if nobody else waits for it.
	named []string
	// queue is the queue by which we are told ourselves, as its ARN has it after the partition; empty if there is none.
	queue string
}

// words say which hooks the rule is for, and setting names the one that has its names.
func (r rule) words() (hooks, setting string) {
	if r.transition == launching {
		return "launches", "fleet.launch_hooks"
	}
	return "terminations", "events.asg-termination.hooks"
}

// choose returns those of a group's hooks that are ours to complete by a rule, and says in words how that comes. To complete
// somebody else's would take the machine from under their work, or put it to work before its time, so that a guess must be safe: it
// is the one that tells nobody but us or, without such a one, the group's only hook, and nobody else is told of it.
func choose(group string, all []hook, r rule) (ours []hook, why string) {
	kind, setting := r.words()
	hooks := slices.DeleteFunc(slices.Clone(all), func(h hook) bool { return h.transition != r.transition })
	if len(hooks) == 0 {
		return nil, fmt.Sprintf("the Auto Scaling group %s has no lifecycle hook for %s: nothing holds the machine%s", group, kind, r.until())
	}
	if len(r.named) > 0 {
		ours = only(hooks, func(h hook) bool { return slices.Contains(r.named, h.name) })
		if len(ours) == 0 {
			return nil, fmt.Sprintf("none of the lifecycle hooks of the Auto Scaling group %s is named in the settings: %s", group, names(hooks))
		}
		return ours, r.holding(group, ours)
	}
	if ours = only(hooks, func(h hook) bool { return r.queue != "" && strings.HasSuffix(h.notifies, r.queue) }); len(ours) > 0 {
		return ours, r.holding(group, ours)
	}
	unlessNamed := fmt.Sprintf("it is left alone unless %s names it", setting)
	switch first := hooks[0]; {
	case len(hooks) > 1:
		return nil, fmt.Sprintf("the Auto Scaling group %s has several lifecycle hooks for %s: %s; none is completed unless %s names it",
			group, kind, names(hooks), setting)
	case first.name == eksHook, first.name == eksLaunchHook:
		return nil, fmt.Sprintf("the lifecycle hook %s of the Auto Scaling group %s is that of an EKS managed node group; %s", first.name, group, unlessNamed)
	case first.notifies != "":
		return nil, fmt.Sprintf("the lifecycle hook %s of the Auto Scaling group %s notifies %s, which may be waiting to complete it; %s",
			first.name, group, first.notifies, unlessNamed)
	}
	return hooks, r.holding(group, hooks)
}

// until says what a hook would hold the machine for.
func (r rule) until() string {
	if r.transition == launching {
		return " until its node is Ready"
	}
	return " for the drain"
}

func (r rule) holding(group string, ours []hook) string {
	if r.transition == launching {
		return fmt.Sprintf("once the node is Ready, the lifecycle hook %s of the Auto Scaling group %s will be completed", names(ours), group)
	}
	return fmt.Sprintf("after the drain, the lifecycle hook %s of the Auto Scaling group %s will be completed; heartbeats hold the machine until then",
		names(ours), group)
}

// only returns those of the hooks that are as is says.
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
