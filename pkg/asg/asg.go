// Package asg handles the lifecycle hooks of an Auto Scaling group: heartbeats hold the instance while its node is drained, and then the
// hook is completed, so that the group need not wait for the hook's timeout.
//
// A HookClient (client.go) holds and completes lifecycle actions of any instance: nth-queue hears of them from its queue. A Keeper
// (keeper.go) stands before the source of events on the machine itself (pkg/imds), and passes everything on. When a termination is
// announced, it has a HookClient hold and complete the hooks of its own instance.
//
// A hook is chosen if nth is to complete it: choose.go decides that, by the settings and what else may wait for the hook. All requests to
// Auto Scaling are in api.go.
//
// Hooks wait for an instance that is terminated, that returns to a warm pool, or whose root volume is replaced. All three are held and
// completed alike, and are called terminations here.
//
// Nothing is remembered on disk: Auto Scaling knows whether a hook waits, and says so in its answer to a heartbeat or a completion. A
// missing permission is reported once, and the drain continues without it.
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
	// Complete enables the hooks of terminations. Without it a Keeper never asks Auto Scaling anything.
	Complete bool
	// Hooks names the hooks for terminations to complete, and LaunchHooks those for launches, which only a HookClient completes. Without
	// names, choose decides.
	Hooks, LaunchHooks []string
	// Abandon says to abandon the hooks of a termination whose time is over with pods left.
	Abandon bool
}

// Outcome is the kind of a HookReport.
type Outcome string

// The kinds of reports.
const (
	// Found: it is known which hooks the group has, and which of them nth completes.
	Found Outcome = "found"
	// Trouble: Auto Scaling does not answer, or not as it should. It is asked again.
	Trouble Outcome = "trouble"
	// Refused: a permission is missing.
	Refused Outcome = "refused"
	// Completed: a hook was completed, or does not wait any more.
	Completed Outcome = "completed"
)

// HookReport is one finding for the log, in words. Event is the termination that it is about; the reports of nth-queue's HookClient have none.
type HookReport struct {
	Outcome Outcome
	Event   event.Event
	Text    string
}

const (
	// mostSaid is how many texts a reporter remembers: many name an instance, and nth-queue sees thousands.
	mostSaid = 256
	// sayAgain is how long a text is remembered.
	sayAgain = time.Hour
)

// reporter reports what is found out and what fails. It reports the same text once an hour: many requests fail for the same reason.
type reporter struct {
	report func(HookReport)
	mu     sync.Mutex            // so that several goroutines do not report the same
	said   *cache.LRUExpireCache // the texts that were reported
}

func newReporter(report func(HookReport)) *reporter {
	return &reporter{report: report, said: cache.NewLRUExpireCache(mostSaid)}
}

// say reports a finding.
func (r *reporter) say(what Outcome, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	if _, said := r.said.Get(text); !said {
		r.said.Add(text, true, sayAgain)
		r.report(HookReport{Outcome: what, Text: text})
	}
}

// failed reports an error: as Refused if a permission is missing, and otherwise as Trouble. doing says, in words, what nth was doing.
func (r *reporter) failed(doing string, err error) {
	if !unpermitted(err) {
		r.say(Trouble, "%s: %s; Auto Scaling is asked again", doing, err)
		return
	}
	refused, _ := errors.AsType[role.RefusedError](err) // If there is no role, no action is named.
	r.say(Refused, "%s: %s; %s (docs/lifecycle.md has the policy)", doing, err, without(refused.Action))
}
