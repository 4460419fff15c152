package asg_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/asg/asgtest"
	"github.com/nth-project/nth/pkg/event"
)

const ownQueue = "arn:aws:sqs:eu-central-1:123456789012:interruptions"

// A queue brings what happens at all hooks of a region. Which of them are ours is the same rule as on the machine itself.
func TestOfTheHooksThatMessagesTellOfOnlyOursAreHeldAndCompleted(t *testing.T) {
	t.Parallel()
	logs := asgtest.Hook{Name: "logs", HeartbeatTimeout: 5 * time.Minute, DefaultResult: "CONTINUE"}
	bake := asgtest.Hook{Name: "bake", Transition: asgtest.Launching, HeartbeatTimeout: 5 * time.Minute}
	notifying := func(h asgtest.Hook, arn string) asgtest.Hook { h.NotificationTarget = arn; return h }
	for name, row := range map[string]struct {
		hooks  []asgtest.Hook
		named  []string
		off    bool
		launch bool
		ours   []string
		news   string
	}{
		"the only one":  {hooks: one(hook), ours: []string{"drain"}, news: "after the drain, the lifecycle hook drain of"},
		"a launch hook": {hooks: []asgtest.Hook{hook, bake}, launch: true, ours: []string{"bake"}, news: "once the node is Ready, the lifecycle hook bake of"},
		"several":       {hooks: []asgtest.Hook{hook, logs}, news: "several lifecycle hooks for terminations: drain, logs; none is completed unless events.asg-termination.hooks"},
		"several launch hooks": {
			hooks: []asgtest.Hook{bake, {Name: "warm", Transition: asgtest.Launching, HeartbeatTimeout: 5 * time.Minute}}, launch: true,
			news: "several lifecycle hooks for launches: bake, warm; none is completed unless fleet.launch_hooks",
		},
		"one of several is named":        {hooks: []asgtest.Hook{hook, logs}, named: []string{"drain", "elsewhere"}, ours: []string{"drain"}},
		"one launch hook is named":       {hooks: []asgtest.Hook{bake, {Name: "warm", Transition: asgtest.Launching, HeartbeatTimeout: 5 * time.Minute}}, launch: true, named: []string{"warm"}, ours: []string{"warm"}},
		"others are named":               {hooks: one(hook), named: []string{"elsewhere"}},
		"that of EKS":                    {hooks: one(asgtest.Hook{Name: "Terminate-LC-Hook"}), news: "is that of an EKS managed node group"},
		"that of EKS for launches":       {hooks: one(asgtest.Hook{Name: "Launch-LC-Hook", Transition: asgtest.Launching, HeartbeatTimeout: 5 * time.Minute}), launch: true, news: "is that of an EKS managed node group"},
		"it notifies somebody":           {hooks: one(notifying(hook, "arn:aws:sns:eu-central-1:123456789012:topic")), news: "notifies arn:aws:sns"},
		"it notifies another queue":      {hooks: one(notifying(hook, "arn:aws:sqs:eu-central-1:123456789012:my-interruptions")), news: "notifies arn:aws:sqs"},
		"it notifies the queue":          {hooks: one(notifying(hook, ownQueue)), ours: []string{"drain"}},
		"one of several notifies it":     {hooks: []asgtest.Hook{notifying(hook, ownQueue), logs}, ours: []string{"drain"}},
		"hooks are left alone":           {hooks: one(hook), off: true},
		"hooks for ends are left alone":  {hooks: []asgtest.Hook{hook, bake}, off: true, launch: true, ours: []string{"bake"}},
		"a hook for the other direction": {hooks: one(bake), launch: false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, row.hooks, func(r *rig) {
				told := r.told(asg.Settings{Complete: !row.off, Hooks: row.named, LaunchHooks: row.named})
				if row.launch {
					r.aws.SetState(instance, "Pending:Wait")
				} else {
					r.aws.Terminate(instance)
				}
				ctx, release := context.WithCancel(r.t.Context())
				var actions []asg.Action
				for _, a := range r.aws.Actions(instance) {
					actions = append(actions, asg.Action{
						Group: group, Hook: a.Hook, Instance: instance, Token: a.Token, Launch: row.launch, Since: time.Now(),
					})
				}
				for _, a := range actions {
					go told.Hold(ctx, a)
				}
				time.Sleep(4 * time.Minute)
				release()
				synctest.Wait()
				for _, a := range actions {
					if err := told.Complete(r.t.Context(), a, event.Drained); err != nil {
						r.t.Error(err)
					}
				}
				r.wantOurs(row.ours)
				r.wantFound(row.news)
			})
		})
	}
}

// wantOurs fails unless the instance's hooks of those names were held and completed, and no others.
func (r *rig) wantOurs(names []string) {
	r.t.Helper()
	ours := map[string]bool{}
	for _, name := range names {
		ours[name] = true
	}
	for _, a := range r.aws.Actions(instance) {
		if completed := a.Result == "CONTINUE" && !a.TimedOut; completed != ours[a.Hook] || len(a.Heartbeats) > 0 != ours[a.Hook] {
			r.t.Errorf("the hook %s has %d heartbeats and came to %q; it is ours: %t", a.Hook, len(a.Heartbeats), a.Result, ours[a.Hook])
		}
	}
}

// wantFound fails unless what was found has those words, and was told once.
func (r *rig) wantFound(words string) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	times := map[string]int{}
	for _, n := range r.news {
		times[n.Text]++
		if n.What == asg.Found && words != "" && !strings.Contains(n.Text, words) {
			r.t.Errorf("found: %s", n.Text)
		}
	}
	for text, n := range times {
		if n > 1 {
			r.t.Errorf("told %d times: %s", n, text)
		}
	}
}

func TestAnActionThatAMessageToldOfEndsAsItsOutcomeCallsFor(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		outcome       event.Outcome
		abandon, keep bool
		back, denied  bool
		want          string
	}{
		"drained":                              {outcome: event.Drained, want: "CONTINUE"},
		"drained, and kept otherwise":          {outcome: event.Drained, abandon: true, keep: true, want: "CONTINUE"},
		"out of time":                          {outcome: event.OutOfTime, keep: true, want: "CONTINUE"},
		"out of time, and kept":                {outcome: event.OutOfTime, abandon: true, keep: true, want: "ABANDON"},
		"out of time, and the group keeps not": {outcome: event.OutOfTime, abandon: true, want: "CONTINUE"},
		"out of time, and nobody may ask":      {outcome: event.OutOfTime, abandon: true, keep: true, denied: true, want: "CONTINUE"},
		"out of time, back to the warm pool":   {outcome: event.OutOfTime, abandon: true, keep: true, back: true, want: "CONTINUE"},
		"left alone":                           {outcome: event.LeftAlone},
		"not to be drained":                    {outcome: event.NoDrain},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, one(hook), func(r *rig) {
				told := r.told(asg.Settings{Complete: true, Abandon: row.abandon})
				r.aws.Retain(group, row.keep)
				if row.denied {
					r.aws.Deny("DescribeAutoScalingGroups")
				}
				r.aws.Terminate(instance)
				action := asg.Action{Group: group, Hook: hook.Name, Instance: instance, Back: row.back, Since: time.Now()}
				loses, err := told.Loses(r.t.Context(), action)
				if want := row.abandon && (!row.keep || row.back || row.denied); loses != want || err != nil {
					r.t.Errorf("it loses the machine: %t (%v), want %t", loses, err, want)
				}
				if err := told.Complete(r.t.Context(), action, row.outcome); err != nil {
					r.t.Error(err)
				}
				if a := r.aws.Actions(instance)[0]; a.Result != row.want {
					r.t.Errorf("the hook is %+v", a)
				}
			})
		})
	}
}

// The instance came back from its warm pool, and is terminated again when a message of the first time comes late.
func TestAMessageOfAnEarlierActionCompletesNoLaterOne(t *testing.T) {
	t.Parallel()
	bubble(t, one(hook), func(r *rig) {
		told := r.told(asg.Settings{Complete: true})
		r.aws.Terminate(instance)
		first := asg.Action{Group: group, Hook: hook.Name, Instance: instance, Token: r.aws.Actions(instance)[0].Token}
		if err := told.Complete(r.t.Context(), first, event.Drained); err != nil {
			r.t.Fatal(err)
		}
		r.aws.SetState(instance, "InService")
		r.aws.Terminate(instance)
		if err := told.Complete(r.t.Context(), first, event.Drained); err != nil {
			r.t.Fatal(err)
		}
		if a := r.aws.Actions(instance)[1]; a.Result != "" {
			r.t.Errorf("the second action is %+v", a)
		}
	})
}

func TestACompletionIsGivenUpWhenItsHookIsOver(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		spoil func(*asgtest.Service)
		most  time.Duration
	}{
		"refused":   {spoil: func(s *asgtest.Service) { s.Deny("CompleteLifecycleAction") }, most: 7 * time.Minute},
		"throttled": {spoil: func(s *asgtest.Service) { s.Fail(asgtest.Throttled("CompleteLifecycleAction", 0)) }, most: 7 * time.Minute},
		"the group cannot be asked for its hooks": {
			spoil: func(s *asgtest.Service) { s.Fail(asgtest.Throttled("DescribeLifecycleHooks", 0)) }, most: 3 * time.Hour,
		},
		"it may not be asked for its hooks": {spoil: func(s *asgtest.Service) { s.Deny("DescribeLifecycleHooks") }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, one(hook), func(r *rig) {
				row.spoil(r.aws)
				r.aws.Terminate(instance)
				action := asg.Action{Group: group, Hook: hook.Name, Instance: instance, Since: time.Now()}
				if err := r.told(asg.Settings{Complete: true}).Complete(r.t.Context(), action, event.Drained); err != nil {
					r.t.Error(err)
				}
				if took := time.Since(r.start); took > row.most {
					r.t.Errorf("it was given up after %s, want %s at most", took, row.most)
				}
				r.mu.Lock()
				defer r.mu.Unlock()
				if len(r.news) == 0 || len(r.news) > 3 {
					r.t.Errorf("%d things were told: %v", len(r.news), r.news)
				}
			})
		})
	}
}

// People who name their hooks have no need for the permission to look for others'.
func TestAHookThatIsNamedIsCompletedThoughItsGroupMayNotBeAsked(t *testing.T) {
	t.Parallel()
	bubble(t, one(hook), func(r *rig) {
		r.aws.Deny("DescribeLifecycleHooks")
		r.aws.Terminate(instance)
		action := asg.Action{Group: group, Hook: hook.Name, Instance: instance, Since: time.Now()}
		if err := r.told(asg.Settings{Complete: true, Hooks: []string{hook.Name}}).Complete(r.t.Context(), action, event.OutOfTime); err != nil {
			r.t.Error(err)
		}
		if a := r.aws.Actions(instance)[0]; a.Result != "CONTINUE" {
			r.t.Errorf("the hook is %+v", a)
		}
	})
}
