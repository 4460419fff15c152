package asg

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/role"
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

// watch sees one termination through: it finds the group and the hooks, waits until the hooks wait, holds them, and
// completes them when the work is done.
type watch struct {
	opts  Options
	dial  dialer
	named []string
	*termination

	service *service
	group   string
	actions []*action // the hooks that are ours; nil before they are known
	// since is the latest time at which the hooks did not wait yet, as far as is known.
	since   time.Time
	waiting bool
	state   string // of the instance in which the hooks wait
	doing   doing
	asked   int // in a row, in vain, whether the group keeps the machine
	// foreseen tells that it is known whether it would.
	foreseen bool
	looks    int // at the instance's state
	trouble  string
	said     map[string]bool
}

// doing is what is done about hooks that wait.
type doing int

const (
	beating doing = iota
	pausing       // they are left to their timeouts
	completing
)

// goOn makes something what is done about the hooks from now on.
func (w *watch) goOn(d doing) {
	if w.doing == d {
		return
	}
	w.doing = d
	for _, a := range w.actions {
		switch now := time.Now(); {
		case d == completing:
			a.release(now)
		case d == beating && !a.refused:
			a.next = now
		default:
			a.next = time.Time{}
		}
	}
}

// run goes on until nothing is left to be done, or ctx ends.
func (w *watch) run(ctx context.Context) {
	w.since, w.said = w.firstSeen, map[string]bool{}
	for {
		next := w.step(ctx)
		if ctx.Err() != nil || next.IsZero() {
			return
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-w.changed:
		}
		timer.Stop()
	}
}

// step does what is due and returns when to come back; zero if nothing is left to be done.
func (w *watch) step(ctx context.Context) time.Time {
	next, err := w.advance(ctx)
	next, err = w.foresee(ctx, next, err)
	if ctx.Err() != nil {
		return time.Time{}
	}
	w.judge(err)
	if limit := w.nearest(time.Now()); !limit.IsZero() { // What is over does not move it any more.
		w.limited(limit)
	}
	return next
}

// advance does what comes next: look where the instance is and what hooks there are, until they wait; then hold or
// complete them.
func (w *watch) advance(ctx context.Context) (time.Time, error) {
	if !w.waiting {
		over, err := w.look(ctx)
		if over {
			return time.Time{}, err
		}
		if !w.waiting {
			w.looks++
			return w.again(err), err
		}
	}
	switch outcome, settings := w.now(); outcome {
	case event.Drained, event.OutOfTime:
		result, err := w.result(ctx, outcome, settings)
		if result == "" {
			next, _ := w.hold(ctx, time.Time{})
			if again := time.Now().Add(pause(w.asked)); next.After(again) {
				next = again
			}
			return next, err
		}
		return w.completeAll(ctx, outcome, result)
	case event.LeftAlone:
		var until time.Time
		if settings.Budget > 0 {
			until = w.firstSeen.Add(settings.Budget)
		}
		w.once("people want the node left alone: the lifecycle hook %s of the Auto Scaling group %s is held for the budget of the termination, "+
			"and then left to its own timeout", w.names(), w.group)
		return w.hold(ctx, until)
	default:
		return w.hold(ctx, time.Time{})
	}
}

func (w *watch) names() string {
	hooks := make([]hook, len(w.actions))
	for i, a := range w.actions {
		hooks[i] = a.hook
	}
	return names(hooks)
}

// longestLook is the longest time between two looks at the instance's state: while the group takes the instance out of
// its load balancers, which can take minutes, nothing else happens.
const longestLook = 15 * time.Second

// again is when to look again: soon at first, ever more seldom later. A permission comes from people.
func (w *watch) again(err error) time.Time {
	if unpermitted(err) {
		return time.Now().Add(role.Spread(longestPause))
	}
	return time.Now().Add(role.Pause(w.looks, firstPause, longestLook))
}

// unpermitted tells whether a request failed as the instance may not make it.
func unpermitted(err error) bool {
	_, refused := errors.AsType[refusedError](err)
	return refused || errors.Is(err, role.ErrNoRole)
}

// look finds out what is not known yet. over tells that nothing is left to be done.
func (w *watch) look(ctx context.Context) (over bool, err error) {
	if w.service == nil {
		if w.service, err = newService(ctx, w.opts, w.dial); err != nil {
			return false, err
		}
	}
	asked := time.Now()
	group, state, err := w.service.place(ctx)
	if err != nil {
		return false, err
	}
	if group == "" {
		w.once("the instance is in no Auto Scaling group: there is no lifecycle hook to complete")
		return false, nil
	}
	if w.actions == nil {
		if done, err := w.find(ctx, group); done || err != nil {
			return done, err
		}
	}
	switch {
	case gone(state, w.event.Code):
		w.once("the Auto Scaling group %s does not wait for its lifecycle hooks any more: the instance is in state %s", group, state)
		w.lose(!strings.HasSuffix(state, "Terminating:Retained"))
		return true, nil
	case waits(state, w.event.Code):
		w.waiting, w.state = true, state
		for _, a := range w.actions {
			a.begin(w.since, time.Now())
		}
	default:
		w.since = asked
	}
	return false, nil
}

// find settles which hooks are ours.
func (w *watch) find(ctx context.Context, group string) (none bool, err error) {
	hooks, err := w.service.hooks(ctx, group)
	if err != nil {
		return false, err
	}
	ours, why := choose(group, hooks, rule{transition: terminating, named: w.named})
	w.once("%s", why)
	for _, h := range ours {
		w.actions = append(w.actions, &action{hook: h})
	}
	w.group = group
	if len(ours) == 0 {
		w.limited(time.Time{})
		w.lose(true)
	}
	return len(ours) == 0, nil
}

// ends tells whether a target state is the end of the instance.
func ends(target string) bool { return target == "Terminated" || target == "Warmed:Terminated" }

// waits tells whether the hooks for terminations of an instance in that state, with that target, wait. On its way back to a warm pool it
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

// gone tells whether an instance in that state, with that target, is past its hooks.
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

// hold sends the heartbeats that are due, if there is an until only before that.
func (w *watch) hold(ctx context.Context, until time.Time) (next time.Time, err error) {
	if until.IsZero() || time.Now().Before(until) {
		w.goOn(beating)
	} else {
		w.goOn(pausing)
	}
	for _, a := range w.actions {
		if w.opts.DryRun {
			a.next = time.Time{}
		}
		if a.over || a.next.IsZero() || a.next.After(time.Now()) {
			continue
		}
		beat := w.service.heartbeat(ctx, w.group, a.name)
		a.beaten(time.Now(), beat)
		if a.over {
			w.tell(Completed, "the lifecycle hook %s of the Auto Scaling group %s is over before the drain: somebody has completed it, or its time is up",
				a.name, w.group)
		}
		if beat != nil && !errors.Is(beat, errNothingWaits) {
			err = fmt.Errorf("holding the machine by the lifecycle hook %s: %w", a.name, beat)
		}
	}
	return w.due(), err
}

// completeAll completes what still waits with the result that an outcome calls for, for as long as it does: what is said may have changed
// while the result was found out, or another hook completed.
func (w *watch) completeAll(ctx context.Context, outcome event.Outcome, result string) (next time.Time, err error) {
	w.goOn(completing)
	for _, a := range w.actions {
		if a.over || a.next.After(time.Now()) {
			continue
		}
		if w.opts.DryRun {
			a.over = true
			w.tell(Completed, "dry run: not completing the lifecycle hook %s of the Auto Scaling group %s", a.name, w.group)
			continue
		}
		if now, settings := w.now(); now != outcome || result == abandon && !settings.Abandon {
			return time.Now(), err
		}
		done := w.service.complete(ctx, w.group, a.name, result)
		a.completed(time.Now(), done)
		switch {
		case done == nil && result == abandon:
			w.tell(Completed, "abandoned the lifecycle hook %s of the Auto Scaling group %s: pods are left, and the group keeps the machine", a.name, w.group)
		case done == nil:
			w.tell(Completed, "completed the lifecycle hook %s of the Auto Scaling group %s: the machine may go", a.name, w.group)
		case a.over:
			w.tell(Completed, "the lifecycle hook %s of the Auto Scaling group %s is completed already", a.name, w.group)
		case !errors.Is(done, errNothingWaits):
			err = fmt.Errorf("completing the lifecycle hook %s: %w", a.name, done)
		}
	}
	return w.due(), err
}

// idle is how often a watch comes back that has nothing to do but wait for the drain.
const idle = time.Hour

// due is when the next request is; zero if all hooks are done with.
func (w *watch) due() time.Time {
	next, left := time.Now().Add(idle), false
	for _, a := range w.actions {
		if !a.over {
			left = true
			if !a.next.IsZero() && a.next.Before(next) {
				next = a.next
			}
		}
	}
	if !left {
		return time.Time{}
	}
	return next
}

// nearest is when Auto Scaling takes the machine by the first of its hooks; zero if that is unknown.
func (w *watch) nearest(now time.Time) time.Time {
	var nearest time.Time
	for _, a := range w.actions {
		if limit := a.limit(now); !limit.IsZero() && (nearest.IsZero() || limit.Before(nearest)) {
			nearest = limit
		}
	}
	return nearest
}

// judge tells of an error, each once until it is over.
func (w *watch) judge(err error) {
	if err == nil {
		w.trouble = ""
		return
	}
	if unpermitted(err) {
		if text := err.Error(); !w.said[text] {
			w.said[text] = true
			w.tell(Refused, "%s; %s (docs/lifecycle.md has the policy that is needed)", text, without(err))
		}
		return
	}
	if text := err.Error(); text != w.trouble {
		w.trouble = text
		w.tell(Trouble, "%s; Auto Scaling is asked again", text)
	}
}

// without says what goes on without a permission.
func without(err error) string {
	refused, _ := errors.AsType[refusedError](err)
	switch refused.Action {
	case describeGroups:
		return "whether the group keeps a machine whose hook is abandoned is not known, and the hook is completed with CONTINUE"
	case heartbeat:
		return "the machine is held for one timeout of the hook only"
	case complete:
		return "the hook is left to its timeout"
	default:
		return "the drain goes on within its budget, and lifecycle hooks are left to their timeouts"
	}
}

// once tells what was found, if it was not told before.
func (w *watch) once(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !w.said[text] {
		w.said[text] = true
		w.tell(Found, "%s", text)
	}
}

func (w *watch) tell(what What, format string, args ...any) {
	w.opts.Tell(HookReport{What: what, Event: w.event, Text: fmt.Sprintf(format, args...)})
}

// termination is one announced end of the instance: what the source, the agent and the watch tell each other about it.
type termination struct {
	event     event.Event
	firstSeen time.Time // with a monotonic reading
	cancel    context.CancelFunc
	changed   chan struct{} // has an element when the outcome or the settings have changed

	mu       sync.Mutex
	settings Settings
	outcome  event.Outcome
	limit    time.Time // when Auto Scaling takes the machine, whatever is done; with a monotonic reading, zero if unknown
	lost     bool      // once it is out of time, the machine is, although people want it kept
	told     time.Time // the limit as it was last told, in wall time
}

func newTermination(ev event.Event, firstSeen time.Time, cancel context.CancelFunc, settings Settings) *termination {
	return &termination{event: ev, firstSeen: firstSeen, cancel: cancel, settings: settings, changed: make(chan struct{}, 1)}
}

// settle takes in what has come of the event so far. The last word counts.
func (t *termination) settle(outcome event.Outcome) {
	t.change(func() bool {
		other := t.outcome != outcome
		t.outcome = outcome
		return other
	})
}

// use replaces the settings.
func (t *termination) use(s Settings) {
	t.change(func() bool { t.settings = s; return true })
}

// change changes something, and wakes the watch if that matters.
func (t *termination) change(do func() (matters bool)) {
	t.mu.Lock()
	matters := do()
	t.mu.Unlock()
	if !matters {
		return
	}
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// now is what has come of the event so far, and what the settings are.
func (t *termination) now() (event.Outcome, Settings) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.outcome, t.settings
}

// limited takes in when Auto Scaling takes the machine; zero if that is unknown.
func (t *termination) limited(limit time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.limit = limit
}

// lose takes in whether the machine is lost once it is out of time, although people want it kept.
func (t *termination) lose(lost bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lost = lost
}

// inherit takes over what was known of the same event under other settings, until it has been found out anew.
func (t *termination) inherit(before *termination) {
	before.mu.Lock()
	defer before.mu.Unlock()
	t.outcome, t.limit, t.lost, t.told = before.outcome, before.limit, before.lost, before.told
}

// steady is how far a deadline must move to be told anew: a change begins the drain anew, and clocks are nudged all the
// time.
const steady = 2 * time.Second

// deadline is the limit by the wall clock, which says now; zero if there is none before the budget's end. That end is one where the
// machine is lost then although people want it kept.
func (t *termination) deadline(budget time.Duration, now time.Time) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	limit, end := t.limit, t.firstSeen.Add(budget)
	if limit.IsZero() || !limit.Before(end) {
		if !t.settings.Abandon || !t.lost {
			t.told = time.Time{}
			return t.told
		}
		limit = end
	}
	wall := now.Round(0).Add(time.Until(limit))
	if t.told.IsZero() || wall.Sub(t.told).Abs() > steady {
		t.told = wall
	}
	return t.told
}

// Request is what is asked of Auto Scaling about a hook that waits. Its text never changes: people meet it in metrics.
type Request string

// The requests.
const (
	// Heartbeat: wait for another timeout. Continue and Abandon end the waiting, each with its result.
	Heartbeat Request = "heartbeat"
	Continue  Request = "continue"
	Abandon   Request = "abandon"
)

// Requests lists all requests.
func Requests() []Request { return []Request{Heartbeat, Continue, Abandon} }

// Answer is what came of a Request. Its text never changes, either.
type Answer string

// The answers.
const (
	OK Answer = "ok"
	// Nothing: the hook is over already, or is not there.
	Nothing Answer = "nothing-waits"
	// NotAllowed: the role does not allow it, or there is none.
	NotAllowed Answer = "refused"
	Throttled  Answer = "throttled"
	// Failed: Auto Scaling does not answer, or not as it should.
	Failed Answer = "failed"
)

// Answers lists all answers.
func Answers() []Answer { return []Answer{OK, Nothing, NotAllowed, Throttled, Failed} }

// came tells what came of a request that ended with err, for which a permission is needed, and returns why it failed in plain
// words. What ended since ctx did came to nothing.
func (s *service) came(ctx context.Context, what Request, permission string, err error) error {
	explained := explain(permission, err)
	if s.requested != nil && ctx.Err() == nil {
		s.requested(what, answerOf(err, explained))
	}
	return explained
}

func answerOf(err, explained error) Answer {
	switch {
	case err == nil:
		return OK
	case errors.Is(explained, errNothingWaits):
		return Nothing
	case unpermitted(explained):
		return NotAllowed
	case role.Throttled(err):
		return Throttled
	}
	return Failed
}
