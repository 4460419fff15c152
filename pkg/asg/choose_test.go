package asg_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/asg/asgtest"
	"github.com/nth-project/nth/pkg/event"
)

func TestOnlyHooksAreCompletedThatAreOurs(t *testing.T) {
	t.Parallel()
	logs := asgtest.Hook{Name: "logs", HeartbeatTimeout: time.Hour}
	for _, row := range []struct {
		name  string
		hooks []asgtest.Hook
		named []string
		want  []string // what becomes of each hook in a minute
		news  []string
	}{
		{
			name: "there is none", news: []string{"found: the Auto Scaling group workers has no lifecycle hook for terminations"},
		},
		{
			name: "there is only one for launches", hooks: one(asgtest.Hook{Name: "greet", Transition: asgtest.Launching}),
			news: []string{"found: the Auto Scaling group workers has no lifecycle hook for terminations"},
		},
		{
			name: "there are several and none is named", hooks: []asgtest.Hook{hook, logs},
			want: []string{"drain beaten at ", "logs beaten at "},
			news: []string{"found: the Auto Scaling group workers has several lifecycle hooks for terminations: drain, logs; none is completed"},
		},
		{
			name: "one of several is named", hooks: []asgtest.Hook{logs, hook}, named: []string{"drain", "elsewhere"},
			want: []string{"logs beaten at ", "drain beaten at 0s, CONTINUE at 1m0s"}, news: []string{found, completed},
		},
		{
			name: "all are named", hooks: []asgtest.Hook{logs, hook}, named: []string{"drain", "logs"},
			want: []string{"logs beaten at 0s, CONTINUE at 1m0s", "drain beaten at 0s, CONTINUE at 1m0s"},
			news: []string{
				"found: after the drain, the lifecycle hook logs, drain of", "completed: completed the lifecycle hook logs", completed,
			},
		},
		{
			name: "others are named", hooks: one(hook), named: []string{"elsewhere"}, want: []string{"drain beaten at "},
			news: []string{"found: none of the lifecycle hooks of the Auto Scaling group workers is named in the settings: drain"},
		},
		{
			name: "the only one is that of EKS", hooks: one(asgtest.Hook{Name: "Terminate-LC-Hook"}), want: []string{"Terminate-LC-Hook beaten at "},
			news: []string{"found: the lifecycle hook Terminate-LC-Hook of the Auto Scaling group workers is that of an EKS managed node group"},
		},
		{
			name: "the only one notifies somebody", hooks: one(asgtest.Hook{Name: "drain", NotificationTarget: "arn:aws:sqs:eu-central-1:123456789012:q"}),
			want: []string{"drain beaten at "}, news: []string{"found: the lifecycle hook drain of the Auto Scaling group workers notifies arn:aws:sqs"},
		},
		{
			name: "it notifies somebody and is named", hooks: one(asgtest.Hook{Name: "drain", NotificationTarget: "arn:aws:sqs:eu-central-1:123456789012:q"}),
			named: []string{"drain"}, want: []string{"drain beaten at 0s, CONTINUE at 1m0s"}, news: []string{found, completed},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			bubble(t, row.hooks, func(r *rig) {
				r.settings.Hooks = row.named
				r.terminate()
				r.pass(time.Minute)
				r.keeper.Settled(ending, event.Drained)
				r.pass(time.Minute)
				r.wantActions(row.want...)
				r.wantNews(row.news...)
			})
		})
	}
}

func TestSettingsThatLeaveHooksAloneAskNothing(t *testing.T) {
	t.Parallel()
	bubble(t, one(hook), func(r *rig) {
		r.settings.Complete = false
		r.terminate()
		r.keeper.Settled(ending, event.Drained)
		r.pass(time.Minute)
		r.wantCalls("", 0)

		r.settings.Complete = true
		r.keeper.Use(r.settings)
		r.pass(time.Minute)
		r.wantActions("drain beaten at 1m0s")
		r.settings.Complete = false
		r.keeper.Use(r.settings)
		r.keeper.Settled(ending, event.Drained)
		r.pass(3 * time.Minute)
		r.wantActions("drain beaten at 1m0s")
	})
}
