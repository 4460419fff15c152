package asg_test

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/asg/asgtest"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/internal/querytest"
)

// client is a HookClient on the rig's network and clock.
func (r *rig) client(settings asg.Settings) *asg.HookClient {
	account, _ := r.account(r.t.Context()) // It has no error.
	return asg.NewHookClient(asg.HookClientOptions{AWS: account, Queue: ":sqs:eu-central-1:123456789012:interruptions", Report: r.tell}, settings)
}

// holding runs f while a HookClient holds actions, which begin now.
func (r *rig) holding(f func(), actions ...asg.Action) {
	ctx, release := context.WithCancel(r.t.Context())
	client := r.client(r.settings)
	for _, a := range actions {
		go client.Hold(ctx, a)
	}
	f()
	release()
	synctest.Wait()
}

// A queue brings what happens at all hooks of a region. Which of them are ours is the same rule as on the machine itself.
func TestHookClient_HoldsAndCompletesOnlyOurHooks(t *testing.T) {
	const ownQueue = "arn:aws:sqs:eu-central-1:123456789012:interruptions"
	logs := asgtest.Hook{Name: "logs", HeartbeatTimeout: 5 * time.Minute, DefaultResult: "CONTINUE"}
	bake := asgtest.Hook{Name: "bake", Transition: asgtest.Launching, HeartbeatTimeout: 5 * time.Minute}
	notifying := func(h asgtest.Hook, arn string) asgtest.Hook { h.NotificationTarget = arn; return h }
	type row struct {
		hooks   []asgtest.Hook
		named   []string
		off     bool
		launch  bool
		ours    []string
		reports string
	}
	each(t, map[string]row{
		"the only one":  {hooks: one(hook), ours: []string{"drain"}, reports: "has the lifecycle hook \"drain\" for"},
		"a launch hook": {hooks: []asgtest.Hook{hook, bake}, launch: true, ours: []string{"bake"}, reports: "has the lifecycle hook \"bake\" for"},
		"several":       {hooks: []asgtest.Hook{hook, logs}, reports: "name it in events.asg-termination.hooks"},
		"several launch hooks": {
			hooks: []asgtest.Hook{bake, {Name: "warm", Transition: asgtest.Launching, HeartbeatTimeout: 5 * time.Minute}}, launch: true,
			reports: "name it in fleet.launch_hooks",
		},
		"one of several is named":        {hooks: []asgtest.Hook{hook, logs}, named: []string{"drain", "elsewhere"}, ours: []string{"drain"}},
		"one launch hook is named":       {hooks: []asgtest.Hook{bake, {Name: "warm", Transition: asgtest.Launching, HeartbeatTimeout: 5 * time.Minute}}, launch: true, named: []string{"warm"}, ours: []string{"warm"}},
		"others are named":               {hooks: one(hook), named: []string{"elsewhere"}},
		"that of EKS":                    {hooks: one(asgtest.Hook{Name: "Terminate-LC-Hook"}), reports: "another program may complete it"},
		"that of EKS for launches":       {hooks: one(asgtest.Hook{Name: "Launch-LC-Hook", Transition: asgtest.Launching, HeartbeatTimeout: 5 * time.Minute}), launch: true, reports: "another program may complete it"},
		"it notifies somebody":           {hooks: one(notifying(hook, "arn:aws:sns:eu-central-1:123456789012:topic")), reports: "another program may complete it"},
		"it notifies another queue":      {hooks: one(notifying(hook, "arn:aws:sqs:eu-central-1:123456789012:my-interruptions")), reports: "another program may complete it"},
		"it notifies the queue":          {hooks: one(notifying(hook, ownQueue)), ours: []string{"drain"}},
		"one of several notifies it":     {hooks: []asgtest.Hook{notifying(hook, ownQueue), logs}, ours: []string{"drain"}},
		"hooks are left alone":           {hooks: one(hook), off: true},
		"hooks for ends are left alone":  {hooks: []asgtest.Hook{hook, bake}, off: true, launch: true, ours: []string{"bake"}},
		"a hook for the other direction": {hooks: one(bake), launch: false},
	}, func(r *rig, row row) {
		r.aws.AddGroup(group, row.hooks...)
		client := r.client(asg.Settings{Complete: !row.off, Hooks: row.named, LaunchHooks: row.named})
		if row.launch {
			r.aws.SetState(instance, "Pending:Wait")
		} else {
			r.aws.Terminate(instance)
		}
		ctx, release := context.WithCancel(r.t.Context())
		var actions []asg.Action
		for _, a := range r.aws.Actions(instance) {
			actions = append(actions, asg.Action{
				Group: group, Hook: a.Hook, Instance: instance, Token: a.Token, Launch: row.launch,
			})
		}
		for _, a := range actions {
			go client.Hold(ctx, a)
		}
		time.Sleep(4 * time.Minute)
		release()
		synctest.Wait()
		for _, a := range actions {
			if err := client.Complete(r.t.Context(), a, event.Drained); err != nil {
				r.t.Error(err)
			}
		}
		r.wantOurs(row.ours)
		r.wantFound(row.reports)
	})
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

// wantFound fails unless what was found has those words, and was reported once.
func (r *rig) wantFound(words string) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	times := map[string]int{}
	for _, n := range r.reports {
		times[n.Text]++
		if n.Outcome == asg.Found && words != "" && !strings.Contains(n.Text, words) {
			r.t.Errorf("found: %s", n.Text)
		}
	}
	for text, n := range times {
		if n > 1 {
			r.t.Errorf("reported %d times: %s", n, text)
		}
	}
}

func TestHookClient_CompletesAsTheOutcomeCallsFor(t *testing.T) {
	type row struct {
		outcome       event.Outcome
		abandon, back bool
		want          string
	}
	each(t, map[string]row{
		"drained":                            {outcome: event.Drained, want: "CONTINUE"},
		"drained, and abandoned otherwise":   {outcome: event.Drained, abandon: true, want: "CONTINUE"},
		"out of time":                        {outcome: event.OutOfTime, want: "CONTINUE"},
		"out of time, and abandoned":         {outcome: event.OutOfTime, abandon: true, want: "ABANDON"},
		"out of time, back to the warm pool": {outcome: event.OutOfTime, abandon: true, back: true, want: "CONTINUE"},
		"left alone":                         {outcome: event.LeftAlone},
		"not to be drained":                  {outcome: event.NoDrain},
	}, func(r *rig, row row) {
		client := r.client(asg.Settings{Complete: true, Abandon: row.abandon})
		r.aws.Terminate(instance)
		action := asg.Action{Group: group, Hook: hook.Name, Instance: instance, Back: row.back}
		if err := client.Complete(r.t.Context(), action, row.outcome); err != nil {
			r.t.Error(err)
		}
		if a := r.aws.Actions(instance)[0]; a.Result != row.want {
			r.t.Errorf("the hook is %+v", a)
		}
	})
}

// The instance came back from its warm pool, and is terminated again when a message of the first time comes late.
func TestHookClient_CompletesNoLaterActionOfTheInstance(t *testing.T) {
	t.Parallel()
	bubble(t, one(hook), func(r *rig) {
		client := r.client(asg.Settings{Complete: true})
		r.aws.Terminate(instance)
		first := asg.Action{Group: group, Hook: hook.Name, Instance: instance, Token: r.aws.Actions(instance)[0].Token}
		if err := client.Complete(r.t.Context(), first, event.Drained); err != nil {
			r.t.Fatal(err)
		}
		r.aws.SetState(instance, "InService")
		r.aws.Terminate(instance)
		if err := client.Complete(r.t.Context(), first, event.Drained); err != nil {
			r.t.Fatal(err)
		}
		if a := r.aws.Actions(instance)[1]; a.Result != "" {
			r.t.Errorf("the second action is %+v", a)
		}
	})
}

// Auto Scaling waits for a hook for two days at the very most.
func TestHookClient_CompletesUntilTheHookIsOver(t *testing.T) {
	const asks, completes = "DescribeLifecycleHooks", "CompleteLifecycleAction"
	fails := func(action string) func(*asgtest.Service) {
		return func(s *asgtest.Service) { s.Fail(querytest.Throttled(action, 0)) }
	}
	denies := func(action string) func(*asgtest.Service) { return func(s *asgtest.Service) { s.Deny(action) } }
	type row struct {
		spoil func(*asgtest.Service)
		mends bool // after half an hour
		want  string
		most  int // hours
	}
	each(t, map[string]row{
		"refused":                              {spoil: denies(completes)},
		"throttled for a while":                {spoil: fails(completes), mends: true, want: "CONTINUE", most: 1},
		"its group cannot be asked for hooks":  {spoil: fails(asks), most: 49},
		"its group may not be asked for hooks": {spoil: denies(asks)},
	}, func(r *rig, row row) {
		r.aws.AddGroup(group, asgtest.Hook{Name: "drain", HeartbeatTimeout: time.Hour, GlobalTimeout: 2 * time.Hour})
		row.spoil(r.aws)
		r.aws.Terminate(instance)
		settings := asg.Settings{Complete: true}
		if row.mends {
			time.AfterFunc(30*time.Minute, r.aws.Lift)
		}
		action := asg.Action{Group: group, Hook: "drain", Instance: instance}
		if err := r.client(settings).Complete(r.t.Context(), action, event.Drained); err != nil {
			r.t.Error(err)
		}
		if took := time.Since(r.start); took > time.Duration(row.most)*time.Hour {
			r.t.Errorf("it was given up after %s, want %d hours at most", took, row.most)
		}
		if a := r.aws.Actions(instance)[0]; row.want != "" && (a.Result != row.want || a.TimedOut) {
			r.t.Errorf("the hook is %+v", a)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.reports) == 0 || len(r.reports) > 2+2*row.most { // Each is repeated once an hour.
			r.t.Errorf("%d findings were reported", len(r.reports))
		}
	})
}

// What is not known yet is asked for often enough; what is known, or may not be asked for, is not. A hook of half a minute is gone after
// the first request that fails, if its timeout is taken for a longer one.
func TestHookClient_HoldsAHookWhileItsTimeoutIsUnknown(t *testing.T) {
	const asks = "DescribeLifecycleHooks"
	fails := func(f asgtest.Fault) func(*asgtest.Service) { return func(s *asgtest.Service) { s.Fail(f) } }
	type row struct {
		timeout, held time.Duration
		spoil         func(*asgtest.Service)
		least, most   int // heartbeats
	}
	each(t, map[string]row{
		"throttled always":      {30 * time.Second, 10 * time.Minute, fails(querytest.Throttled(asks, 0)), 25, 65},
		"silent always":         {30 * time.Second, 10 * time.Minute, fails(asgtest.Fault{Action: asks}), 25, 65},
		"throttled for a while": {30 * time.Minute, 2 * time.Hour, fails(querytest.Throttled(asks, 5)), 12, 20},
	}, func(r *rig, row row) {
		r.aws.AddGroup(group, asgtest.Hook{Name: "drain", HeartbeatTimeout: row.timeout})
		row.spoil(r.aws)
		r.aws.Terminate(instance)
		r.holding(func() { time.Sleep(row.held) }, asg.Action{Group: group, Hook: "drain", Instance: instance})
		if a := r.aws.Actions(instance)[0]; a.TimedOut || len(a.Heartbeats) < row.least || len(a.Heartbeats) > row.most {
			r.t.Errorf("the hook has %d heartbeats, want %d to %d, and timed out: %t", len(a.Heartbeats), row.least, row.most, a.TimedOut)
		}
		if n := len(r.aws.Calls(asks)); n > 65 {
			r.t.Errorf("asked for the hooks %d times", n)
		}
	})
}

// A hundred instances of a group are terminated at once, and its hooks cannot be asked for. That is tried again for all of them.
func TestHookClient_AsksOnceForAllInstancesOfAGroup(t *testing.T) {
	t.Parallel()
	bubble(t, one(short), func(r *rig) {
		var actions []asg.Action
		for i := range 100 {
			id := "i-" + strconv.Itoa(i)
			r.aws.AddInstance(group, id)
			r.aws.Terminate(id)
			actions = append(actions, asg.Action{Group: group, Hook: short.Name, Instance: id})
		}
		r.aws.Fail(querytest.Throttled("DescribeLifecycleHooks", 4))
		r.holding(func() { time.Sleep(2 * time.Minute) }, actions...)
		r.wantCalls("DescribeLifecycleHooks", 5)
		for _, a := range actions {
			if held := r.aws.Actions(a.Instance)[0]; held.TimedOut {
				t.Errorf("the hook of %s is %+v", a.Instance, held)
			}
		}
	})
}

// short is a hook for which Auto Scaling waits 50 minutes at the very most.
var short = asgtest.Hook{Name: "drain", HeartbeatTimeout: 30 * time.Second}

func TestOwnGroup_IsTheOneOfThisInstance(t *testing.T) {
	t.Parallel()
	bubble(t, one(hook), func(r *rig) {
		for name, want := range map[string]string{instance: group, "i-0ffffffffffffffff": ""} {
			r.metadata["instance-id"] = name
			if client, got, err := asg.OwnGroup(r.t.Context(), r.opts, r.settings); got != want || client == nil || err != nil {
				t.Errorf("%s is in %q: %v", name, got, err)
			}
		}
		r.aws.Deny("DescribeAutoScalingInstances")
		if _, got, err := asg.OwnGroup(r.t.Context(), r.opts, r.settings); err == nil {
			t.Errorf("without the permission, it is in %q", got)
		}
	})
}

func TestExplain_SaysWhetherTheGroupsHookIsOurs(t *testing.T) {
	t.Parallel()
	bubble(t, one(hook), func(r *rig) {
		for _, row := range []struct {
			settings asg.Settings
			launch   bool
			want     string
			ours     bool
		}{
			{asg.Settings{}, false, "the Auto Scaling group \"workers\" has the lifecycle hook \"drain\"", true},
			{asg.Settings{Hooks: []string{"other"}}, false, "the lifecycle hook \"drain\" for terminations of the Auto Scaling group \"workers\" is left alone", false},
			{asg.Settings{}, true, "the Auto Scaling group \"workers\" has no lifecycle hook for launches", false},
		} {
			found, ours, err := r.client(row.settings).Explain(r.t.Context(), group, row.launch)
			if !strings.HasPrefix(found, row.want) || (found == "") != (row.want == "") || ours != row.ours || err != nil {
				t.Errorf("with %+v it is ours: %t, as %q (%v)", row.settings, ours, found, err)
			}
		}
		r.aws.Deny()
		if _, _, err := r.client(asg.Settings{}).Explain(r.t.Context(), group, false); err == nil {
			t.Error("without permission, no error")
		}
	})
}

func TestRights_AreTriedWithoutEffect(t *testing.T) {
	t.Parallel()
	bubble(t, one(hook), func(r *rig) {
		r.aws.Terminate(instance)
		rights := r.client(asg.Settings{Complete: true}).Rights(group)
		for _, denied := range rights {
			r.aws.Allow()
			r.aws.Deny(strings.TrimPrefix(denied.Name, "autoscaling:"))
			for _, right := range rights {
				if allowed, err := right.Allowed(r.t.Context()); allowed != (right.Name != denied.Name) || err != nil {
					t.Errorf("without %s, %s is allowed: %t (%v)", denied.Name, right.Name, allowed, err)
				}
			}
		}
		if a := r.aws.Actions(instance)[0]; len(a.Heartbeats) > 0 || a.Result != "" {
			t.Errorf("the action that waits is %+v", a)
		}
	})
}

func TestRights_MatchTheDocumentedPolicy(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/lifecycle.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "```json\n")
	policy, _, _ := strings.Cut(after, "```")
	var documented []string
	for line := range strings.Lines(policy) {
		if name := strings.Trim(line, " \",\n"); strings.HasPrefix(name, "autoscaling:") {
			documented = append(documented, name)
		}
	}
	needed := []string{"autoscaling:DescribeAutoScalingInstances"} // by a Keeper, to find the group
	for _, right := range asg.NewHookClient(asg.HookClientOptions{}, asg.Settings{Complete: true}).Rights(group) {
		needed = append(needed, right.Name)
	}
	slices.Sort(documented)
	slices.Sort(needed)
	if !slices.Equal(documented, needed) {
		t.Errorf("the page has %v, want %v", documented, needed)
	}
}
