package asg_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/asg"
)

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
			{asg.Settings{}, false, "nth holds and completes the lifecycle hook drain", true},
			{asg.Settings{Hooks: []string{"other"}}, false, "the Auto Scaling group workers has lifecycle hooks", false},
			{asg.Settings{}, true, "the Auto Scaling group workers has no lifecycle hook for launches", false},
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
