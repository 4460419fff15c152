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

// watch handles one termination: it finds the group and the hooks, waits until the hooks wait, holds them, and
// completes them when the work is done.
type watch struct {
	opts  Options
	dial  dialer
	named []string
	*termination
	reporter

	service *service
	group   string
	actions []*action // the hooks that are ours; nil before they are known
	// since is the latest time at which the hooks did not wait yet, as far as is known.
	since    time.Time
	state    string // of the instance while the hooks wait; empty before
	mode     mode
	asked    int    // how many times in a row it could not be found out whether the group keeps the machine
	foreseen bool   // whether the group would keep it is known
	looks    int    // at the instance's state
	trouble  string // the error that was told last; empty once a request has succeeded
}

// mode is what is done about hooks that wait.
type mode int

const (
	beating mode = iota // they are held by heartbeats
	pausing             // they are left to their timeouts
	completing
)

func (w *watch) setMode(m mode) {
	if w.mode == m {
		return
	}
	w.mode = m
	for _, a := range w.actions {
		switch now := time.Now(); {
		case m == completing:
			a.release(now)
		case m == beating && !a.refused:
			a.next = now
		default:
			a.next = time.Time{}
		}
	}
}

// run goes on until nothing is left to be done, or ctx ends.
func (w *watch) run(ctx context.Context) {
	for {
		next := w.step(ctx)
		if ctx.Err() != nil || next.IsZero() {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(next)):
		case <-w.changed:
		}
	}
}

// step does what is due and returns when the next step is due; zero if nothing is left to be done.
func (w *watch) step(ctx context.Context) time.Time {
	next, err := w.advance(ctx)
	next, err = w.foresee(ctx, next, err)
	if ctx.Err() != nil {
		return time.Time{}
	}
	w.reportError(err)
	if limit := w.nearest(time.Now()); !limit.IsZero() { // Hooks that are over leave it as it was.
		w.setLimit(limit)
	}
	return next
}

// advance does what comes next: look where the instance is and what hooks there are, until they wait; then hold or
// complete them.
func (w *watch) advance(ctx context.Context) (time.Time, error) {
	if w.state == "" {
		over, err := w.look(ctx)
		if over {
			return time.Time{}, err
		}
		if w.state == "" {
			w.looks++
			return w.nextLook(err), err
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
		w.once(Found, "people want the node left alone: the lifecycle hook %s of the Auto Scaling group %s is held for the budget of the termination, "+
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

// nextLook is when to look again: soon at first, less often later, and seldom if people have to grant a permission first.
func (w *watch) nextLook(err error) time.Time {
	if unpermitted(err) {
		return time.Now().Add(role.Spread(longestPause))
	}
	return time.Now().Add(role.Pause(w.looks, firstPause, longestLook))
}

// unpermitted reports whether a request failed because the instance may not make it.
func unpermitted(err error) bool {
	_, refused := errors.AsType[refusedError](err)
	return refused || errors.Is(err, role.ErrNoRole)
}

// look asks for the group, its hooks and the state of the instance. over means that nothing is left to be done.
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
		w.once(Found, "the instance is in no Auto Scaling group: there is no lifecycle hook to complete")
		return false, nil
	}
	if w.actions == nil {
		if done, err := w.find(ctx, group); done || err != nil {
			return done, err
		}
	}
	switch {
	case gone(state, w.event.Code):
		w.once(Found, "the Auto Scaling group %s does not wait for its lifecycle hooks any more: the instance is in state %s", group, state)
		w.setLost(!strings.HasSuffix(state, "Terminating:Retained"))
		return true, nil
	case waits(state, w.event.Code):
		w.state = state
		for _, a := range w.actions {
			a.begin(w.since, time.Now())
		}
	default:
		w.since = asked
	}
	return false, nil
}

// find chooses the hooks that are ours.
func (w *watch) find(ctx context.Context, group string) (none bool, err error) {
	hooks, err := w.service.hooks(ctx, group)
	if err != nil {
		return false, err
	}
	ours, why := choose(group, hooks, rule{transition: terminating, named: w.named})
	w.once(Found, "%s", why)
	for _, h := range ours {
		w.actions = append(w.actions, &action{hook: h})
	}
	w.group = group
	if len(ours) == 0 {
		w.setLimit(time.Time{})
		w.setLost(true)
	}
	return len(ours) == 0, nil
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

// hold sends the heartbeats that are due, and none from until on, unless that is zero.
func (w *watch) hold(ctx context.Context, until time.Time) (next time.Time, err error) {
	if until.IsZero() || time.Now().Before(until) {
		w.setMode(beating)
	} else {
		w.setMode(pausing)
	}
	for _, a := range w.actions {
		if w.opts.DryRun {
			a.next = time.Time{}
		}
		if a.over || a.next.IsZero() || a.next.After(time.Now()) {
			continue
		}
		beat := w.service.heartbeat(ctx, w.group, a.name)
		a.heartbeatSent(time.Now(), beat)
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

// completeAll completes the hooks that still wait with the result that an outcome calls for. It stops where the outcome or the settings
// have changed while the result was found out, or another hook was completed.
func (w *watch) completeAll(ctx context.Context, outcome event.Outcome, result string) (next time.Time, err error) {
	w.setMode(completing)
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
		a.completionSent(time.Now(), done)
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

// idle is the longest time between two steps.
const idle = time.Hour

// due is when the next request is due; zero if all hooks are over.
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

// nearest is when the first hook stops holding the machine; zero if that is unknown.
func (w *watch) nearest(now time.Time) time.Time {
	var nearest time.Time
	for _, a := range w.actions {
		if limit := a.limit(now); !limit.IsZero() && (nearest.IsZero() || limit.Before(nearest)) {
			nearest = limit
		}
	}
	return nearest
}

// reportError reports an error once, for as long as it stays the same.
func (w *watch) reportError(err error) {
	if err == nil {
		w.trouble = ""
		return
	}
	if unpermitted(err) {
		w.once(Refused, "%s; %s (docs/lifecycle.md has the policy that is needed)", err, without(err))
		return
	}
	if text := err.Error(); text != w.trouble {
		w.trouble = text
		w.tell(Trouble, "%s; Auto Scaling is asked again", text)
	}
}

// without says what a missing permission means.
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

// reporter tells people what is found out and what goes wrong.
type reporter struct {
	report func(HookReport)
	about  event.Event // zero for what messages told of

	mu   sync.Mutex
	said map[string]bool
}

func (r *reporter) tell(what What, format string, args ...any) {
	r.report(HookReport{What: what, Event: r.about, Text: fmt.Sprintf(format, args...)})
}

// once tells what was not told before.
func (r *reporter) once(what What, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.mu.Lock()
	if r.said == nil {
		r.said = map[string]bool{}
	}
	said := r.said[text]
	r.said[text] = true
	r.mu.Unlock()
	if !said {
		r.tell(what, "%s", text)
	}
}

// termination is one announced end of the instance. The source, the agent and the watch share it.
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
}

// settle sets what has come of the event so far.
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

// now returns what has come of the event so far, and the settings.
func (t *termination) now() (event.Outcome, Settings) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.outcome, t.settings
}

// setLimit sets when Auto Scaling takes the machine; zero if that is unknown.
func (t *termination) setLimit(limit time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.limit = limit
}

// setLost sets whether the machine is lost once it is out of time, although people want it kept.
func (t *termination) setLost(lost bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lost = lost
}

// again returns a termination of the same event with what is known of it, to be begun with other settings.
func (t *termination) again() *termination {
	t.mu.Lock()
	defer t.mu.Unlock()
	return &termination{event: t.event, firstSeen: t.firstSeen, outcome: t.outcome, limit: t.limit, lost: t.lost}
}

// deadline is the event's deadline, with a reading of the monotonic clock: when Auto Scaling takes the machine, if that is before the end
// of the budget, or the end of the budget if the machine is lost then although people want it kept; zero otherwise.
func (t *termination) deadline(budget time.Duration) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	end := t.firstSeen.Add(budget)
	switch {
	case !t.limit.IsZero() && t.limit.Before(end):
		return t.limit
	case t.settings.Abandon && t.lost:
		return end
	}
	return time.Time{}
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

// count counts a request that ended with err, unless it was canceled.
func (s *service) count(ctx context.Context, what Request, err error) {
	if s.requested == nil || ctx.Err() != nil {
		return
	}
	answer := Failed
	switch {
	case err == nil:
		answer = OK
	case errors.Is(err, errNothingWaits):
		answer = Nothing
	case unpermitted(err):
		answer = NotAllowed
	case role.Throttled(err):
		answer = Throttled
	}
	s.requested(what, answer)
}
