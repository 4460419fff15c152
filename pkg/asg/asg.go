// Package asg handles the lifecycle hooks of an Auto Scaling group. Heartbeats hold the instance while its node is drained. Then the hook is
// completed, so that the group need not wait for the hook's timeout.
//
// A HookClient (client.go) holds and completes lifecycle actions of any instance, for nth-queue. Newcomers begin with its methods Hold and
// Complete. A Keeper (keeper.go) does so for nth, on the machine itself: when a termination is announced, it finds the hooks of its own
// instance, and calls these methods.
//
// nth handles only the hooks that choose.go chooses, by the settings and by what other program may wait for the hook. All requests to Auto
// Scaling are in api.go.
//
// Auto Scaling waits at a hook before it terminates an instance, returns it to a warm pool, or replaces its root volume. All three are handled
// alike, and are called terminations here. It also waits before it puts a launched instance into service: nth-queue completes that hook once the node
// is Ready. A lifecycle action is pending until somebody completes it or its timeout ends.
//
// Nothing is remembered on disk: Auto Scaling knows whether an action is pending, and says so in its answer to a heartbeat or a completion. A
// missing permission is reported once an hour, and the drain continues without it.
package asg

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/role"
)

// Settings say what is done about hooks.
type Settings struct {
	// Complete says to hold and complete the hooks for terminations. Without it a Keeper never asks Auto Scaling anything.
	Complete bool
	// Hooks names the hooks for terminations to complete, and LaunchHooks those for launches, which only a HookClient completes. Without
	// names, choose decides.
	Hooks, LaunchHooks []string
	// Abandon says to complete hooks with the result ABANDON if the time for the drain ends while pods are left.
	Abandon bool
}

// Outcome is the kind of a HookReport.
type Outcome string

// The kinds of reports.
const (
	// Found: nth knows which hooks the group has, and which of them nth completes.
	Found Outcome = "found"
	// Trouble: a request to Auto Scaling or the metadata service failed. nth tries again.
	Trouble Outcome = "trouble"
	// Refused: the instance's role lacks a permission, or the instance has no role.
	Refused Outcome = "refused"
	// Completed: nth has completed a hook, or the hook does not wait any more.
	Completed Outcome = "completed"
)

// HookReport is one line for the log. Event is the termination that the line is about; the reports of nth-queue's HookClient have no Event.
type HookReport struct {
	Outcome Outcome
	Event   event.Event
	Text    string
}

const (
	// mostReported is how many texts a reporter remembers: many name an instance, and nth-queue sees thousands.
	mostReported = 256
	// reportAgain is how long a text is remembered.
	reportAgain = time.Hour
)

// reporter reports findings and failures. It reports the same text once an hour at most: many requests fail for the same reason.
type reporter struct {
	report   func(HookReport)
	mu       sync.Mutex            // so that several goroutines do not report the same
	reported *cache.LRUExpireCache // the texts that were reported
}

func newReporter(report func(HookReport)) *reporter {
	return &reporter{report: report, reported: cache.NewLRUExpireCache(mostReported)}
}

// say reports a text, unless the same text was reported within the last hour.
func (r *reporter) say(what Outcome, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	if _, repeated := r.reported.Get(text); repeated {
		return
	}
	r.reported.Add(text, true, reportAgain)
	r.report(HookReport{Outcome: what, Text: text})
}

// sayFailed reports an error: as Refused if a permission is missing, and otherwise as Trouble. doing says what has failed, such as "complete …".
func (r *reporter) sayFailed(doing string, err error) {
	if !unpermitted(err) {
		r.say(Trouble, "cannot %s: %s; retrying the request", doing, err)
		return
	}
	refused, _ := errors.AsType[role.RefusedError](err) // Without a role, it is zero: no action is named.
	r.say(Refused, "cannot %s: %s; %s (docs/lifecycle.md has the policy)", doing, err, without(refused.Action))
}
