package asg

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// hook is a lifecycle hook, as its group has it.
type hook struct {
	name, transition string
	// timeout is how long Auto Scaling waits for the hook without a heartbeat.
	timeout time.Duration
	// notifies is the ARN of the queue or topic that the hook notifies; empty if it notifies nothing.
	notifies string
}

// eksHooks are the hooks that EKS adds to the Auto Scaling groups of its managed node groups. EKS completes them itself: one when it has drained
// the node, the other when the node has joined.
var eksHooks = []string{"Terminate-LC-Hook", "Launch-LC-Hook"}

// rule has what choose needs for the hooks of one transition.
type rule struct {
	transition string   // terminating or launching
	kind       string   // what the hooks are for, in messages
	until      string   // when the hooks are completed, in messages
	setting    string   // the key of the setting that names hooks
	named      []string // the hooks that the setting names
}

// choose returns those of a group's hooks (all) that nth is to complete. why is a sentence for the log that says which, or why none. queue is
// HookClientOptions.Queue.
//
// Another program may wait for a hook. If nth completed that hook, the machine would end during the program's work, or go into service too
// early. So choose takes the first of these rules that applies:
//   - The settings name hooks: only those are chosen.
//   - Hooks notify nth-queue's own queue: those are chosen.
//   - The group has one hook, which notifies nothing and is not that of EKS: it is chosen.
func choose(group string, all []hook, r rule, queue string) (chosen []hook, why string) {
	noneNamed := len(r.named) == 0
	var hooks []hook // of the rule's transition
	for _, h := range all {
		if h.transition == r.transition {
			hooks = append(hooks, h)
		}
	}
	for _, h := range hooks {
		named := slices.Contains(r.named, h.name)
		notifiesQueue := queue != "" && strings.HasSuffix(h.notifies, queue)
		if named || noneNamed && notifiesQueue {
			chosen = append(chosen, h)
		}
	}
	if noneNamed && len(chosen) == 0 && len(hooks) == 1 {
		usedByOthers := hooks[0].notifies != "" || slices.Contains(eksHooks, hooks[0].name)
		if !usedByOthers {
			chosen = hooks
		}
	}
	switch {
	case len(hooks) == 0:
		return nil, fmt.Sprintf("the Auto Scaling group %q has no lifecycle hook for %s, and so does not wait until %s", group, r.kind, r.until)
	case len(chosen) == 0:
		return nil, fmt.Sprintf("the lifecycle hook %s for %s of the Auto Scaling group %q is left alone, because another program may complete it; to change that, name it in %s",
			names(hooks), r.kind, group, r.setting)
	}
	return chosen, fmt.Sprintf("the Auto Scaling group %q has the lifecycle hook %s for %s: heartbeats will extend the hook until %s, then it will be completed", group, names(chosen), r.kind, r.until)
}

// names returns the names of hooks for a message.
func names(hooks []hook) string {
	list := make([]string, len(hooks))
	for i, h := range hooks {
		list[i] = strconv.Quote(h.name)
	}
	return strings.Join(list, ", ")
}
