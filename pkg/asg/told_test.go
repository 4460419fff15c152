package asg_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/asg/asgtest"
	"github.com/nth-project/nth/pkg/event"
)

// toldOf returns an Auto Scaling where an instance waits at the hook "drain" of the group "workers", and who was told so.
func toldOf(t *testing.T, timeout time.Duration) (*asgtest.Server, *asg.HookClient, asg.Action) {
	t.Helper()
	return countedOf(t, timeout, nil)
}

// countedOf does that, with somebody who is told of the requests.
func countedOf(t *testing.T, timeout time.Duration, requested func(asg.Request, asg.Answer)) (*asgtest.Server, *asg.HookClient, asg.Action) {
	t.Helper()
	server := asgtest.NewServer()
	t.Cleanup(server.Close)
	server.AddGroup("workers", asgtest.Hook{Name: "drain", HeartbeatTimeout: timeout})
	server.AddInstance("workers", "i-1")
	server.Terminate("i-1")
	credentials := aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{AccessKeyID: "AKIDEXAMPLE0000001", SecretAccessKey: "secret", SessionToken: "token"}, nil
	})
	told := asg.NewHookClient(asg.HookClientOptions{
		AWS:  aws.Config{Region: "eu-central-1", BaseEndpoint: &server.URL, Credentials: credentials},
		Tell: func(asg.HookReport) {}, Requested: requested,
	}, asg.Settings{Complete: true})
	return server, told, asg.Action{Group: "workers", Hook: "drain", Instance: "i-1", Since: time.Now()}
}

func TestACompletionIsRepeatedUntilItHolds(t *testing.T) {
	t.Parallel()
	var c count
	server, told, action := countedOf(t, time.Minute, c.requested)
	server.Fail(asgtest.Fault{Action: "CompleteLifecycleAction", Status: 503, Code: "ServiceUnavailable", Times: 2})
	if err := told.Complete(t.Context(), action, event.Drained); err != nil {
		t.Fatal(err)
	}
	if a := server.Actions("i-1")[0]; a.Result != "CONTINUE" {
		t.Errorf("the action came to %+v", a)
	}
	c.want(t, map[string]int{"continue failed": 2, "continue ok": 1})
}

func TestWhereNothingWaitsAnyMoreNothingIsHeldOrCompleted(t *testing.T) {
	t.Parallel()
	server, told, action := toldOf(t, time.Second)
	server.Forget("i-1")
	told.Hold(t.Context(), action)
	if err := told.Complete(t.Context(), action, event.Drained); err != nil {
		t.Fatal(err)
	}
}

func TestEachPermissionOfWhoIsToldIsTriedWithoutEffect(t *testing.T) {
	t.Parallel()
	everything := asg.HookClientPermissions(asg.Settings{Complete: true, Abandon: true, AfterDrain: asg.Terminate})
	everything = append(everything, asg.HookClientPermissions(asg.Settings{AfterDrain: asg.Detach})[4:]...)
	for _, denied := range everything {
		server, told, _ := toldOf(t, time.Minute)
		server.Deny(strings.TrimPrefix(denied.Name, "autoscaling:"))
		for _, group := range []string{"", "workers"} {
			for _, permission := range everything {
				allowed, err := told.May(t.Context(), permission, group)
				if want := permission != denied; allowed != want || err != nil {
					t.Errorf("without %s, %s is allowed for %q: %t (%v), want %t", denied.Name, permission.Name, group, allowed, err, want)
				}
			}
		}
		if a := server.Actions("i-1")[0]; len(a.Heartbeats) > 0 || a.Result != "" {
			t.Errorf("the action that waits is %+v", a)
		}
	}
}

func TestAPermissionThatCannotBeTriedIsAnError(t *testing.T) {
	t.Parallel()
	server, told, _ := toldOf(t, time.Minute)
	server.Fail(asgtest.Fault{Status: 503, Code: "ServiceUnavailable"})
	for _, permission := range asg.HookClientPermissions(asg.Settings{Complete: true, Abandon: true}) {
		if allowed, err := told.May(t.Context(), permission, ""); allowed || err == nil {
			t.Errorf("%s is allowed: %t (%v), want an error", permission.Name, allowed, err)
		}
	}
}
