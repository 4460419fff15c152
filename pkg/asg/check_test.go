package asg_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/asg/asgtest"
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
			{asg.Settings{}, false, "after the drain, the lifecycle hook drain", true},
			{asg.Settings{Hooks: []string{"other"}}, false, "none of the lifecycle hooks", false},
			{asg.Settings{}, true, "", false},
		} {
			found, ours, err := r.client(row.settings).Explain(r.t.Context(), group, row.launch)
			if !strings.HasPrefix(found, row.want) || (found == "") != (row.want == "") || ours != row.ours || err != nil {
				t.Errorf("with %+v it is ours: %t, as %q (%v)", row.settings, ours, found, err)
			}
		}
		client := r.client(asg.Settings{})
		for _, retain := range []bool{false, true} {
			r.aws.Retain(group, retain)
			if found, keeps, err := client.ExplainAbandon(r.t.Context(), group); keeps != retain || found == "" || err != nil {
				t.Errorf("the group keeps it: %t, as %q (%v); want %t", keeps, found, err, retain)
			}
		}
		r.aws.Deny()
		if _, _, err := client.Explain(r.t.Context(), group, false); err == nil {
			t.Error("without permission, no error")
		}
		if _, _, err := client.ExplainAbandon(r.t.Context(), group); err == nil {
			t.Error("without permission, no error")
		}
	})
}

func TestCheckPermission_TriesEachWithoutEffect(t *testing.T) {
	t.Parallel()
	everything := asg.Permissions(asg.Settings{Complete: true, Abandon: true})
	bubble(t, one(hook), func(r *rig) {
		r.aws.Terminate(instance)
		client := r.client(asg.Settings{Complete: true})
		for _, denied := range everything {
			r.aws.Allow()
			r.aws.Deny(strings.TrimPrefix(denied.Name, "autoscaling:"))
			for _, group := range []string{"", group} {
				for _, permission := range everything {
					allowed, err := client.CheckPermission(r.t.Context(), permission, group)
					if want := permission != denied; allowed != want || err != nil {
						t.Errorf("without %s, %s is allowed for %q: %t (%v), want %t", denied.Name, permission.Name, group, allowed, err, want)
					}
				}
			}
		}
		if a := r.aws.Actions(instance)[0]; len(a.Heartbeats) > 0 || a.Result != "" {
			t.Errorf("the action that waits is %+v", a)
		}
		r.aws.Allow()
		r.aws.Fail(asgtest.Fault{Status: 503, Code: "ServiceUnavailable"})
		for _, permission := range everything {
			if allowed, err := client.CheckPermission(r.t.Context(), permission, ""); allowed || err == nil {
				t.Errorf("%s is allowed: %t (%v), want an error", permission.Name, allowed, err)
			}
		}
	})
}

func TestPermissions_MatchTheDocumentedPolicy(t *testing.T) {
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
	for _, p := range asg.Permissions(asg.Settings{Complete: true}) {
		needed = append(needed, p.Name)
	}
	slices.Sort(documented)
	slices.Sort(needed)
	if !slices.Equal(documented, needed) {
		t.Errorf("the page has %v, want %v", documented, needed)
	}
}
