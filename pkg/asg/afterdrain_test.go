package asg_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/asg/asgtest"
)

func TestADrainedInstanceIsReplacedAsPeopleWant(t *testing.T) {
	t.Parallel()
	const gone = "gone"
	for name, row := range map[string]struct {
		how   asg.AfterDrain
		state string // that it is in; in service without one
		spoil func(*asgtest.Service)
		want  string
		fails bool
	}{
		"it stays":                    {how: asg.Keep, want: "InService"},
		"nobody has said":             {want: "InService"},
		"it is terminated":            {how: asg.Terminate, want: "Terminating:Wait"},
		"it is let go":                {how: asg.Detach, want: gone},
		"it is leaving already":       {how: asg.Detach, state: "Terminating:Wait", want: "Terminating:Wait"},
		"it is being prepared":        {how: asg.Terminate, state: "Warmed:Stopped", want: "Warmed:Stopped"},
		"Auto Scaling throttles":      {how: asg.Terminate, spoil: func(s *asgtest.Service) { s.Fail(asgtest.Throttled("", 4)) }, want: "Terminating:Wait"},
		"Auto Scaling only throttles": {how: asg.Terminate, spoil: func(s *asgtest.Service) { s.Fail(asgtest.Throttled("", 0)) }, want: "InService", fails: true},
		"it may not be terminated": {
			how: asg.Terminate, spoil: func(s *asgtest.Service) { s.Deny("TerminateInstanceInAutoScalingGroup") }, want: "InService", fails: true,
		},
		"it is in no group": {how: asg.Detach, spoil: func(s *asgtest.Service) { s.Detach(instance) }, want: gone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, one(hook), func(r *rig) {
				if row.state != "" {
					r.aws.SetState(instance, row.state)
				}
				if row.spoil != nil {
					row.spoil(r.aws)
				}
				err := r.told(asg.Settings{AfterDrain: row.how}).Replace(r.t.Context(), instance)
				if failed := err != nil; failed != row.fails || time.Since(r.start) > 6*time.Minute {
					r.t.Errorf("after %s: %v", time.Since(r.start), err)
				}
				if row.want == gone {
					defer func() {
						if recover() == nil {
							r.t.Error("the instance is in its group still")
						}
					}()
				}
				if state := r.aws.State(instance); state != row.want {
					r.t.Errorf("the instance is %s, want %s", state, row.want)
				}
			})
		})
	}
}
