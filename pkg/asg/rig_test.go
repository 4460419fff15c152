package asg_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/asg/asgtest"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/internal/querytest"
	"github.com/nth-project/nth/pkg/role"
)

const (
	instance = "i-0a1b2c3d4e5f60718"
	group    = "workers"
)

// rig is a Keeper and Auto Scaling behind it, without a network and on a clock of their own: hours take no
// time, and a time measured is exact.
type rig struct {
	t        *testing.T
	aws      *asgtest.Service
	opts     asg.Options
	settings asg.Settings
	metadata querytest.Metadata

	start  time.Time
	keeper *asg.Keeper
	stop   func()

	mu      sync.Mutex
	reports []asg.HookReport
}

// hook is the group's in most tests.
var hook = asgtest.Hook{Name: "drain", HeartbeatTimeout: 5 * time.Minute}

// bubble runs f with a rig that is not running yet, for an instance in a group with the hooks.
func bubble(t *testing.T, hooks []asgtest.Hook, f func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{
			t: t, aws: asgtest.New(), start: time.Now(), settings: asg.Settings{Complete: true},
			metadata: querytest.MetadataOf(instance, "eu-central-1"),
		}
		r.opts = asg.Options{Metadata: r.metadata.Document, AWS: r.account, Report: r.tell}
		r.aws.AddGroup(group, hooks...)
		r.aws.AddInstance(group, instance)
		defer func() {
			if r.stop != nil {
				r.end()
			}
			time.Sleep(time.Minute) // A request for the hooks of a group ends by itself.
		}()
		f(r)
	})
}

// each runs f with such a rig for each row, all at the same time, for an instance in a group with the usual hook.
func each[R any](t *testing.T, rows map[string]R, f func(r *rig, row R)) {
	t.Helper()
	t.Parallel()
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, one(hook), func(r *rig) { f(r, row) })
		})
	}
}

// account is the instance's role in its region.
func (r *rig) account(context.Context) (aws.Config, error) {
	return aws.Config{Region: "eu-central-1", HTTPClient: querytest.Client{Handler: r.aws}, Credentials: role.Credentials(r.metadata.Document)}, nil
}

func (r *rig) tell(n asg.HookReport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reports = append(r.reports, n)
}

// run starts a Keeper.
func (r *rig) run() {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	r.keeper = asg.New(r.opts, r.settings)
	var running sync.WaitGroup
	running.Go(func() { r.keeper.Run(ctx, nil) })
	r.stop = func() {
		cancel()
		running.Wait()
	}
}

// end stops the Keeper, which must not take time.
func (r *rig) end() {
	r.t.Helper()
	before := time.Now()
	r.stop()
	r.stop = nil
	if took := time.Since(before); took > 0 {
		r.t.Errorf("Run took %s to end", took)
	}
}

// pass lets time pass, and what happens at its end.
func (r *rig) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// ending is the termination that is announced.
var ending = event.Event{ID: "asg-termination-1", Kind: event.ASGTermination, Code: "Terminated", State: event.Pending}

// settle passes on the outcome so far of the drain for a termination, as the agent does: again and again.
func (r *rig) settle(ev event.Event, outcome event.Outcome) {
	for range 2 {
		r.keeper.Settled(event.Event{ID: "spot-1", Kind: event.SpotInterruption}, event.Drained)
		r.keeper.Settled(ev, outcome)
	}
	synctest.Wait()
}

// terminate starts a Keeper, and has the group terminate the instance, which waits at its hooks.
func (r *rig) terminate() {
	r.t.Helper()
	r.run()
	r.aws.Terminate(instance)
	r.settle(ending, "")
}

// wantActions compares what became of the instance's hooks with a text for each: "drain beaten at 0s 100s, CONTINUE at 2m".
// A time such as 1m~7s is that of the last of several pauses which are up to so long together, and at least half as long.
func (r *rig) wantActions(want ...string) {
	r.t.Helper()
	var got []string
	for _, a := range r.aws.Actions(instance) {
		var beats []string
		for _, at := range a.Heartbeats {
			beats = append(beats, at.Sub(r.start).String())
		}
		text := fmt.Sprintf("%s beaten at %s", a.Hook, strings.Join(beats, " "))
		if a.Result != "" {
			text += fmt.Sprintf(", %s at %s", a.Result, a.Ended.Sub(r.start))
		}
		if a.TimedOut {
			text += ", timed out"
		}
		got = append(got, text)
	}
	if !slices.EqualFunc(got, want, alike) {
		r.t.Errorf("the hooks were\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// alike compares what was done with what was wanted, word by word.
func alike(got, want string) bool {
	return slices.EqualFunc(strings.Fields(got), strings.Fields(want), func(got, want string) bool {
		begin, pauses, around := strings.Cut(strings.TrimSuffix(want, ","), "~")
		if !around {
			return got == want
		}
		at, err := time.ParseDuration(strings.TrimSuffix(got, ","))
		from, fault := time.ParseDuration(begin)
		most, wrong := time.ParseDuration(pauses)
		return errors.Join(err, fault, wrong) == nil && at >= from+most/2 && at <= from+most
	})
}

// wantCalls fails unless so many requests were made for an action.
func (r *rig) wantCalls(action string, want int) {
	r.t.Helper()
	if calls := r.aws.Calls(action); len(calls) != want {
		r.t.Errorf("%d requests for %s, want %d: %v", len(calls), action, want, calls)
	}
}

// wantReports compares what was reported since the last time: each line begins with the kind and has all words of the text's.
func (r *rig) wantReports(want ...string) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	var got []string
	for _, n := range r.reports {
		got = append(got, fmt.Sprintf("%s: %s", n.Outcome, n.Text))
		if n.Event.ID != ending.ID {
			r.t.Errorf("%q was reported of event %q", n.Text, n.Event.ID)
		}
	}
	r.reports = nil
	if !slices.EqualFunc(got, want, strings.Contains) {
		r.t.Errorf("the reports are\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}
