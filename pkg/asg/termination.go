package asg

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/role"
)

// termination is one announced end of the instance, handled by one set of settings. The source, the agent and run share it.
type termination struct {
	event     event.Event
	firstSeen time.Time // with a monotonic reading
	settings  Settings
	opts      Options
	reporter

	client   *HookClient // nil before the instance is known
	instance string
	group    string
	ours     []hook // that are not done; nil before they are known
	// since is the latest time at which the hooks did not wait yet, as far as is known.
	since time.Time

	mu       sync.Mutex
	ctx      context.Context // ends when nothing is to be done for it any more
	cancel   context.CancelFunc
	outcome  event.Outcome
	phase    context.Context // ends when the outcome changes
	endPhase context.CancelFunc
	limits   map[string]time.Time // when Auto Scaling stops waiting for each hook, with a monotonic reading
	lost     bool                 // once it is out of time, the machine is lost, although the settings ask to keep it
}

// start prepares run.
func (t *termination) start(ctx context.Context) {
	t.since = t.firstSeen
	t.ctx, t.cancel = context.WithCancel(ctx)
	t.phase, t.endPhase = context.WithCancel(t.ctx)
}

// again returns a termination of the same event with what is known of it, to be handled by other settings.
func (t *termination) again() *termination {
	t.mu.Lock()
	defer t.mu.Unlock()
	return &termination{event: t.event, firstSeen: t.firstSeen, outcome: t.outcome, limits: maps.Clone(t.limits), lost: t.lost}
}

// settle sets what has come of the event so far.
func (t *termination) settle(outcome event.Outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.outcome != outcome {
		t.outcome = outcome
		t.endPhase()
		t.phase, t.endPhase = context.WithCancel(t.ctx)
	}
}

// now returns what has come of the event so far, and a context that ends when that changes.
func (t *termination) now() (context.Context, event.Outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.phase, t.outcome
}

// setLimit sets when Auto Scaling stops waiting for a hook.
func (t *termination) setLimit(hook string, limit time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.limits == nil {
		t.limits = map[string]time.Time{}
	}
	t.limits[hook] = limit
}

// setLost sets whether the machine is lost once it is out of time, although the settings ask to keep it.
func (t *termination) setLost(lost bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lost = lost
}

// deadline is the event's deadline, with a reading of the monotonic clock: when Auto Scaling takes the machine, if that is before the end
// of the budget, or the end of the budget if the machine is lost then although the settings ask to keep it; zero otherwise.
func (t *termination) deadline() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	end := t.firstSeen.Add(t.settings.Budget)
	nearest := end
	for _, limit := range t.limits {
		if limit.Before(nearest) {
			nearest = limit
		}
	}
	if nearest.Before(end) || t.settings.Abandon && t.lost {
		return nearest
	}
	return time.Time{}
}

// longestLook is the longest time between two looks at the instance's state: while the group takes the instance out of
// its load balancers, which can take minutes, nothing else happens.
const longestLook = 15 * time.Second

// run looks where the instance is and what hooks its group has, until they wait. Then it holds and completes those that are ours. It
// returns when nothing is left to be done, or the context ends.
func (t *termination) run() {
	var asking sync.WaitGroup
	defer asking.Wait()
	ctx, stop := context.WithCancel(t.ctx)
	defer stop()
	trouble := ""
	for looks := 1; ; looks++ {
		asked := time.Now()
		state, found, err := t.look(ctx)
		if ctx.Err() != nil {
			return
		}
		if found {
			first := t.action(t.ours[0].name)
			asking.Go(func() { t.foresee(ctx, first) })
		}
		trouble = t.failed("looking for lifecycle hooks", err, trouble)
		wait := role.Pause(looks, firstPause, longestLook)
		switch {
		case unpermitted(err):
			t.setLost(true)
			wait = role.Spread(longestPause)
		case err != nil:
		case state == "":
			t.once(Found, "the instance is in no Auto Scaling group: there is no lifecycle hook to complete")
			t.setLost(true)
		case len(t.ours) == 0:
			t.setLost(true)
			return
		case gone(state, t.event.Code):
			t.once(Found, "the Auto Scaling group %s does not wait for its lifecycle hooks any more: the instance is in state %s", t.group, state)
			stop()
			asking.Wait()
			t.setLost(!strings.HasSuffix(state, "Terminating:Retained"))
			return
		case waits(state, t.event.Code):
			if t.serveAll(ctx) {
				return
			}
		default:
			t.since = asked
		}
		if !role.Sleep(ctx, wait) {
			return
		}
	}
}

// look asks for the state of the instance, empty if it is in no group, and for its group's hooks until they are found.
func (t *termination) look(ctx context.Context) (state string, found bool, err error) {
	if t.client == nil {
		if t.client, t.instance, err = ownClient(ctx, t.opts, t.settings, t.report); err != nil {
			return "", false, err
		}
	}
	group, state, err := t.client.place(ctx, t.instance)
	if err != nil || group == "" || t.ours != nil {
		return state, false, err
	}
	hooks, err := t.client.describeHooks(ctx, group)
	if err != nil {
		return "", false, err
	}
	ours, why := choose(group, hooks, t.client.rule(false))
	t.once(Found, "%s", why)
	t.group, t.ours = group, append([]hook{}, ours...)
	t.mu.Lock()
	defer t.mu.Unlock()
	for name := range t.limits { // Those of hooks that are not ours any more do not count.
		if len(only(ours, func(h hook) bool { return h.name == name })) == 0 {
			delete(t.limits, name)
		}
	}
	return state, len(ours) > 0, nil
}

// ownClient asks the metadata service for the instance's ID and region. It sends nothing to Auto Scaling.
func ownClient(ctx context.Context, opts Options, settings Settings, report func(HookReport)) (*HookClient, string, error) {
	instance, err := opts.Metadata.Line(ctx, "instance-id")
	if err != nil {
		return nil, "", fmt.Errorf("asking the metadata service for the instance's ID: %w", err)
	}
	cfg, err := opts.AWS(ctx)
	if err != nil {
		return nil, "", err
	}
	return NewHookClient(HookClientOptions{AWS: cfg, Report: report, Requested: opts.Requested}, settings), instance, nil
}

func (t *termination) action(hook string) Action {
	return Action{Group: t.group, Hook: hook, Instance: t.instance, Back: !ends(t.event.Code)}
}

// foresee finds out whether the group would keep the machine when time is over with pods left: then no pod has to be deleted before that.
func (t *termination) foresee(ctx context.Context, a Action) {
	if lost, err := t.client.Loses(ctx, a); err == nil {
		t.setLost(lost)
	}
}

// serveAll holds and completes all hooks that wait, and forgets those that are done. It reports whether nothing is left to be done: false
// if Auto Scaling says that one does not wait.
func (t *termination) serveAll(ctx context.Context) bool {
	var serving sync.WaitGroup
	var done sync.Map
	for _, h := range t.ours {
		serving.Go(func() { done.Store(h.name, t.serve(ctx, h)) })
	}
	serving.Wait()
	t.ours = slices.DeleteFunc(t.ours, func(h hook) bool {
		is, _ := done.Load(h.name)
		return is == true
	})
	return len(t.ours) == 0
}

// serve holds one hook, and completes it when the outcome calls for that.
func (t *termination) serve(ctx context.Context, h hook) (done bool) {
	a := t.action(h.name)
	find := func(context.Context, Action) (hook, bool, error) { return h, true, nil }
	last, end := t.since, t.since.Add(h.global)
	t.setLimit(h.name, end)
	sent := func(_ hook, err error) {
		now, limit := time.Now(), end
		switch until := last.Add(h.timeout); {
		case err == nil:
			last = now
		case until.Before(now): // It still waits: an earlier process has sent a heartbeat.
		case until.Before(end) && (unpermitted(err) || now.Sub(last) > 2*h.interval()):
			limit = until
		}
		t.setLimit(h.name, limit)
	}
	for {
		phase, outcome := t.now()
		switch {
		case outcome != event.Drained && outcome != event.OutOfTime:
			t.hold(phase, a, outcome, find, sent)
		case t.opts.DryRun:
			t.say(Completed, "dry run: not completing %s", a)
			return true
		case t.client.finish(phase, a, outcome, find):
			return true
		}
		if ctx.Err() != nil || phase.Err() == nil {
			return false
		}
	}
}

// hold holds a hook until the phase ends or nothing waits any more; where the node is opted out, for the budget of the termination.
func (t *termination) hold(phase context.Context, a Action, outcome event.Outcome, find finder, sent func(hook, error)) {
	ctx := phase
	if outcome == event.LeftAlone {
		t.once(Found, "the node is opted out: %s, is held for the budget of the termination, and then left to its own timeout", a)
		if t.settings.Budget > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(phase, t.firstSeen.Add(t.settings.Budget))
			defer cancel()
		}
	}
	if !t.opts.DryRun {
		t.client.hold(ctx, a, find, sent)
	}
	if t.opts.DryRun || ctx.Err() != nil {
		<-phase.Done()
	}
}

// ends reports whether a target state is the end of the instance.
func ends(target string) bool { return target == "Terminated" || target == "Warmed:Terminated" }

// waits reports whether the hooks for terminations of an instance in that state, with that target, wait. On its way back to a warm pool it
// is in the same state as on its way into one, where it waits for the hooks of launches.
func waits(state, target string) bool {
	switch state {
	case "Terminating:Wait", "Warmed:Terminating:Wait", "ReplacingRootVolume:Wait":
		return true
	case "Warmed:Pending:Wait":
		return !ends(target)
	}
	return false
}

// gone reports whether an instance in that state, with that target, is past its hooks.
func gone(state, target string) bool {
	switch state {
	case "Terminating:Proceed", "Terminating:Retained", "Terminated",
		"Warmed:Terminating:Proceed", "Warmed:Terminating:Retained", "Warmed:Terminated",
		"ReplacingRootVolume:Proceed", "RootVolumeReplaced":
		return true
	case "Warmed:Pending:Proceed", "Warmed:Pending:Retained", "Warmed:Hibernated", "Warmed:Running", "Warmed:Stopped":
		return !ends(target)
	}
	return false
}
