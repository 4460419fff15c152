package asg_test

import (
	"context"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/asg/asgtest"
)

// told is who is told of actions by messages of a queue, on the rig's network and clock.
func (r *rig) told(settings asg.Settings) *asg.HookClient {
	return asg.NewHookClient(asg.HookClientOptions{AWS: aws.Config{
		Region: "eu-central-1", BaseEndpoint: &r.opts.Endpoint, HTTPClient: &http.Client{Transport: &http.Transport{DialContext: r.dial}},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "AKIDEXAMPLE0000001", SecretAccessKey: "secret", SessionToken: "token"}, nil
		}),
	}, Queue: ":sqs:eu-central-1:123456789012:interruptions", Tell: r.tell}, settings)
}

// holding runs f while a HookClient holds actions, which begin now.
func (r *rig) holding(f func(), actions ...asg.Action) {
	ctx, release := context.WithCancel(r.t.Context())
	told := r.told(r.settings)
	for _, a := range actions {
		a.Since = time.Now()
		go told.Hold(ctx, a)
	}
	f()
	release()
	synctest.Wait()
}

// A hook of half a minute is gone after the first request that fails, if its timeout is taken for a longer one.
func TestAShortHookIsHeldThoughItsTimeoutCannotBeAskedFor(t *testing.T) {
	t.Parallel()
	action := asg.Action{Group: group, Hook: short.Name, Instance: instance}
	for name, fault := range map[string]asgtest.Fault{
		"throttled once": asgtest.Throttled("DescribeLifecycleHooks", 1), "throttled for a while": asgtest.Throttled("DescribeLifecycleHooks", 5),
		"throttled all the time": asgtest.Throttled("DescribeLifecycleHooks", 0),
		"silent once":            {Action: "DescribeLifecycleHooks", Times: 1}, "silent all the time": {Action: "DescribeLifecycleHooks"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, one(short), func(r *rig) {
				r.aws.Fail(fault)
				r.aws.Terminate(instance)
				r.holding(func() { time.Sleep(10 * time.Minute) }, action)
				if a := r.aws.Actions(instance)[0]; a.TimedOut || len(a.Heartbeats) < 55 {
					t.Errorf("the hook is %+v", a)
				}
			})
		})
	}
}

// What is not known yet is asked for often enough; what is known is not.
func TestAHookIsHeldAtItsOwnPaceOnceItsTimeoutIsKnown(t *testing.T) {
	t.Parallel()
	bubble(t, one(asgtest.Hook{Name: "drain", HeartbeatTimeout: 30 * time.Minute}), func(r *rig) {
		r.aws.Fail(asgtest.Throttled("DescribeLifecycleHooks", 5))
		r.aws.Terminate(instance)
		r.holding(func() { time.Sleep(2 * time.Hour) }, asg.Action{Group: group, Hook: "drain", Instance: instance})
		if a := r.aws.Actions(instance)[0]; a.TimedOut || len(a.Heartbeats) > 16 {
			t.Errorf("the hook is %+v", a)
		}
		r.wantCalls("DescribeLifecycleHooks", 6)
	})
}

// Without the permission nothing is learned by asking often, and a hook that is not the shortest is held all the same.
func TestAHookWhoseTimeoutMayNotBeAskedForIsHeld(t *testing.T) {
	t.Parallel()
	bubble(t, one(asgtest.Hook{Name: "drain", HeartbeatTimeout: 5 * time.Minute}), func(r *rig) {
		r.aws.Deny("DescribeLifecycleHooks")
		r.aws.Terminate(instance)
		r.holding(func() {
			time.Sleep(10 * time.Minute)
			if n := len(r.aws.Calls("DescribeLifecycleHooks")); n < 5 || n > 15 {
				t.Errorf("asked %d times", n)
			}
			if a := r.aws.Actions(instance)[0]; a.TimedOut || len(a.Heartbeats) > 12 {
				t.Errorf("the hook is %+v", a)
			}
			r.aws.Allow("DescribeLifecycleHooks")
			time.Sleep(10 * time.Minute)
			if a := r.aws.Actions(instance)[0]; a.TimedOut || len(a.Heartbeats) > 20 {
				t.Errorf("the hook, which is known now, is %+v", a)
			}
		}, asg.Action{Group: group, Hook: "drain", Instance: instance})
	})
}

func TestAGroupThatDoesNotAnswerHoldsNoOtherUp(t *testing.T) {
	t.Parallel()
	bubble(t, one(short), func(r *rig) {
		const another, lone = "others", "i-0123456789abcdef1"
		r.aws.AddGroup(another, short)
		r.aws.AddInstance(another, lone)
		r.aws.Terminate(instance)
		r.aws.Terminate(lone)
		r.aws.Fail(asgtest.Fault{Action: "DescribeLifecycleHooks", Times: 1}) // It is silent for ten seconds.
		ctx, release := context.WithCancel(r.t.Context())
		told := r.told(r.settings)
		go told.Hold(ctx, asg.Action{Group: group, Hook: short.Name, Instance: instance, Since: time.Now()})
		time.Sleep(time.Second)
		asked := time.Now()
		go told.Hold(ctx, asg.Action{Group: another, Hook: short.Name, Instance: lone, Since: time.Now()})
		time.Sleep(time.Second)
		calls := r.aws.Calls("DescribeLifecycleHooks")
		if len(calls) == 0 || calls[0].Values.Get("AutoScalingGroupName") != another || calls[0].At.Sub(asked) > 0 {
			t.Errorf("while another group is asked for, the calls that were answered are %v", calls)
		}
		release()
		synctest.Wait()
	})
}

// A hundred instances of a group are terminated at once, and its hooks cannot be asked for. That is tried again for all of them.
func TestAllInstancesOfAGroupAskForItsHooksAsOne(t *testing.T) {
	t.Parallel()
	bubble(t, one(short), func(r *rig) {
		var actions []asg.Action
		for i := range 100 {
			id := "i-" + strconv.Itoa(i)
			r.aws.AddInstance(group, id)
			r.aws.Terminate(id)
			actions = append(actions, asg.Action{Group: group, Hook: short.Name, Instance: id})
		}
		r.aws.Fail(asgtest.Throttled("DescribeLifecycleHooks", 4))
		r.holding(func() { time.Sleep(2 * time.Minute) }, actions...)
		r.wantCalls("DescribeLifecycleHooks", 5)
		for _, a := range actions {
			if held := r.aws.Actions(a.Instance)[0]; held.TimedOut {
				t.Errorf("the hook of %s is %+v", a.Instance, held)
			}
		}
	})
}
