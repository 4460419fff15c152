package lifecycle

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// hook is a lifecycle hook for terminations, as its group has it.
type hook struct {
	name string
	// timeout is how long Auto Scaling waits for the hook without a heartbeat, and global how long at the very most.
	timeout, global time.Duration
	// notifies is the ARN of the queue or topic that is told; empty if there is none.
	notifies string
}

// The hook that EKS puts on the groups of its managed node groups: EKS drains the node itself and completes it.
const eksHook = "Terminate-LC-Hook"

// choose returns the hooks that are nth's to complete, and says in words how that comes. To complete somebody else's
// would take the machine from under their work, so that a guess must be safe: it is the group's only hook, and nobody
// else is told of it.
func choose(group string, hooks []hook, named []string) (ours []hook, why string) {
	if len(hooks) == 0 {
		return nil, fmt.Sprintf("the Auto Scaling group %s has no lifecycle hook for terminations: nothing holds the machine for the drain", group)
	}
	if len(named) > 0 {
		ours = slices.DeleteFunc(slices.Clone(hooks), func(h hook) bool { return !slices.Contains(named, h.name) })
		if len(ours) == 0 {
			return nil, fmt.Sprintf("none of the lifecycle hooks of the Auto Scaling group %s is named in the settings: %s", group, names(hooks))
		}
		return ours, holding(group, ours)
	}
	const unlessNamed = "it is left alone unless events.asg-termination.hooks names it"
	switch only := hooks[0]; {
	case len(hooks) > 1:
		return nil, fmt.Sprintf("the Auto Scaling group %s has several lifecycle hooks for terminations: %s; none is completed unless "+
			"events.asg-termination.hooks names it", group, names(hooks))
	case only.name == eksHook:
		return nil, fmt.Sprintf("the lifecycle hook %s of the Auto Scaling group %s is that of an EKS managed node group; %s", only.name, group, unlessNamed)
	case only.notifies != "":
		return nil, fmt.Sprintf("the lifecycle hook %s of the Auto Scaling group %s notifies %s, which may be waiting to complete it; %s",
			only.name, group, only.notifies, unlessNamed)
	}
	return hooks, holding(group, hooks)
}

func holding(group string, ours []hook) string {
	return fmt.Sprintf("after the drain, the lifecycle hook %s of the Auto Scaling group %s will be completed; heartbeats hold the machine until then",
		names(ours), group)
}

func names(hooks []hook) string {
	list := make([]string, len(hooks))
	for i, h := range hooks {
		list[i] = h.name
	}
	return strings.Join(list, ", ")
}
