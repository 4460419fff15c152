package asg_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/asg/asgtest"
)

// checkable is an Auto Scaling that has a group with the hook, and what a check needs to ask it.
func checkable(t *testing.T) (*asgtest.Server, asg.Options) {
	t.Helper()
	server := asgtest.NewServer()
	t.Cleanup(server.Close)
	server.AddGroup(group, hook)
	r := &rig{t: t, metadata: role("ASIAREHEARSALONLY000")}
	return server, asg.Options{Metadata: r.document, Endpoint: server.URL}
}

func TestCheck_ChangesNothing(t *testing.T) {
	t.Parallel()
	server, opts := checkable(t)
	if c := asg.Check(t.Context(), opts, asg.Settings{}); c != (asg.Checkup{}) {
		t.Errorf("in no group: %+v", c)
	}
	server.AddInstance(group, instance)
	server.Terminate(instance)
	if c := asg.Check(t.Context(), opts, asg.Settings{}); !c.Ours || c.Found == "" || c.Err != nil || c.Missing != nil {
		t.Errorf("in a group: %+v", c)
	}
	if c := asg.Check(t.Context(), opts, asg.Settings{Hooks: []string{"other"}}); c.Ours || c.Found == "" || c.Err != nil {
		t.Errorf("where another hook is named: %+v", c)
	}
	if a := server.Actions(instance)[0]; len(a.Heartbeats) > 0 || a.Result != "" {
		t.Errorf("the hook is %+v", a)
	}
	server.Deny("DescribeAutoScalingInstances")
	if c := asg.Check(t.Context(), opts, asg.Settings{}); c.Err == nil {
		t.Errorf("without a permission: %+v", c)
	}
}

func TestCheck_NamesMissingPermissions(t *testing.T) {
	t.Parallel()
	server, opts := checkable(t)
	server.AddInstance(group, instance)
	server.Deny("RecordLifecycleActionHeartbeat", "CompleteLifecycleAction")
	const want = "the instance's role does not allow autoscaling:RecordLifecycleActionHeartbeat; the machine is held for one timeout of the hook only\n" +
		"the instance's role does not allow autoscaling:CompleteLifecycleAction; the hook is left to its timeout"
	if c := asg.Check(t.Context(), opts, asg.Settings{}); !c.Ours || c.Missing == nil || c.Missing.Error() != want {
		t.Errorf("without permissions: %+v", c)
	}
	if c := asg.Check(t.Context(), opts, asg.Settings{Hooks: []string{"other"}}); c.Missing != nil {
		t.Errorf("where no hook is ours: %+v", c)
	}
	server.Allow("RecordLifecycleActionHeartbeat")
	server.Fail(asgtest.Throttled("CompleteLifecycleAction", 0))
	if c := asg.Check(t.Context(), opts, asg.Settings{}); c.Missing == nil || !strings.Contains(c.Missing.Error(), "CompleteLifecycleAction: Throttling") {
		t.Errorf("where it cannot be tried: %+v", c)
	}
}

func TestCheck_SaysWhatAbandoningComesTo(t *testing.T) {
	t.Parallel()
	server, opts := checkable(t)
	server.AddInstance(group, instance)
	check := func() asg.Checkup { return asg.Check(t.Context(), opts, asg.Settings{Abandon: true}) }
	if c := check(); c.Kept || c.Keeps == "" || c.Missing != nil {
		t.Errorf("of a group without a policy: %+v", c)
	}
	server.Retain(group, true)
	if c := check(); !c.Kept || c.Keeps == "" || c.Missing != nil {
		t.Errorf("of a group that keeps it: %+v", c)
	}
	server.Deny("DescribeAutoScalingGroups")
	if c := check(); c.Kept || c.Keeps != "" || c.Missing == nil {
		t.Errorf("without the permission: %+v", c)
	}
	if c := asg.Check(t.Context(), opts, asg.Settings{}); c.Keeps != "" || c.Missing != nil {
		t.Errorf("where nobody asks for it: %+v", c)
	}
}

// waiting returns an Auto Scaling where an instance waits at the hook "drain" of the group "workers", and a client for it.
func waiting(t *testing.T) (*asgtest.Server, *asg.HookClient) {
	t.Helper()
	server := asgtest.NewServer()
	t.Cleanup(server.Close)
	server.AddGroup(group, hook)
	server.AddInstance(group, instance)
	server.Terminate(instance)
	return server, asg.NewHookClient(asg.HookClientOptions{
		AWS:  aws.Config{Region: "eu-central-1", BaseEndpoint: &server.URL, Credentials: keys},
		Tell: func(asg.HookReport) {},
	}, asg.Settings{Complete: true})
}

func TestMay_TriesEachPermissionWithoutEffect(t *testing.T) {
	t.Parallel()
	everything := asg.HookClientPermissions(asg.Settings{Complete: true, Abandon: true, AfterDrain: asg.Terminate})
	everything = append(everything, asg.HookClientPermissions(asg.Settings{AfterDrain: asg.Detach})[4:]...)
	for _, denied := range everything {
		server, client := waiting(t)
		server.Deny(strings.TrimPrefix(denied.Name, "autoscaling:"))
		for _, group := range []string{"", "workers"} {
			for _, permission := range everything {
				allowed, err := client.CheckPermission(t.Context(), permission, group)
				if want := permission != denied; allowed != want || err != nil {
					t.Errorf("without %s, %s is allowed for %q: %t (%v), want %t", denied.Name, permission.Name, group, allowed, err, want)
				}
			}
		}
		if a := server.Actions(instance)[0]; len(a.Heartbeats) > 0 || a.Result != "" {
			t.Errorf("the action that waits is %+v", a)
		}
	}
}

func TestMay_FailsWhereItCannotTry(t *testing.T) {
	t.Parallel()
	server, client := waiting(t)
	server.Fail(asgtest.Fault{Status: 503, Code: "ServiceUnavailable"})
	for _, permission := range asg.HookClientPermissions(asg.Settings{Complete: true, Abandon: true}) {
		if allowed, err := client.CheckPermission(t.Context(), permission, ""); allowed || err == nil {
			t.Errorf("%s is allowed: %t (%v), want an error", permission.Name, allowed, err)
		}
	}
}

func TestPermissions_MatchTheDocumentedPolicy(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/lifecycle.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(text), "```json\n")
	document, _, closed := strings.Cut(after, "```")
	if !found || !closed {
		t.Fatal("there is no policy on the page")
	}
	var policy struct {
		Version   string
		Statement []struct {
			Effect   string
			Action   []string
			Resource string
		}
	}
	decoder := json.NewDecoder(strings.NewReader(document))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&policy); err != nil {
		t.Fatalf("reading the policy: %v", err)
	}
	var allowed []string
	for _, s := range policy.Statement {
		if s.Effect != "Allow" || s.Resource == "" {
			t.Errorf("the statement %+v does not allow anything", s)
		}
		allowed = append(allowed, s.Action...)
		looks := strings.HasPrefix(s.Action[0], "autoscaling:Describe")
		if everything := s.Resource == "*"; everything != looks {
			t.Errorf("the resource of %v is %q", s.Action, s.Resource)
		}
	}
	needed := asg.Permissions()
	slices.Sort(allowed)
	slices.Sort(needed)
	if policy.Version != "2012-10-17" || !slices.Equal(allowed, needed) {
		t.Errorf("version %s allows %v, want %v", policy.Version, allowed, needed)
	}
}
