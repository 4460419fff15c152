package queue

import (
	"regexp"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/asg/asgtest"
	"github.com/nth-project/nth/pkg/ec2/ec2test"
	"github.com/nth-project/nth/test/internal/lab"
)

func TestCheckAndStatusTellHowThingsStand(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	_, _ = addInstance(t, lab.Shared(t))
	consumer := q.start(t, "")
	for command, want := range map[string][]string{
		"check":  {"ok    queue       0 messages wait", "ok    right       create pods/eviction", "nodes"},
		"status": {"reading the queue for ", "nth-queue "},
	} {
		said, err := consumer.Ask(command)
		if err != nil {
			t.Errorf("nth-queue %s: %v\n%s", command, err, said)
		}
		for _, part := range want {
			if !strings.Contains(said, part) {
				t.Errorf("nth-queue %s does not say %q:\n%s", command, part, said)
			}
		}
	}
	consumer.Stop(t)
	if said, err := consumer.Ask("status"); err == nil || !strings.Contains(said, "nth-queue is not running: stopped at") {
		t.Errorf("after the stop: %v\n%s", err, said)
	}
}

func TestCheckTriesHooksForAGroupThatTheNodesAreIn(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	_, instance := addInstance(t, lab.Shared(t))
	q.ec2.Add(ec2test.Instance{ID: instance, State: "running", Tags: map[string]string{"aws:autoscaling:groupName": "workers"}})
	q.groups.AddGroup("workers", asgtest.Hook{Name: "drain"})
	q.groups.AddInstance("workers", instance)
	q.groups.Terminate(instance)
	consumer := q.start(t, "")
	consumer.Stop(t)

	mustSay(t, ask(t, consumer.Ask),
		`ok    identity    lab-admin, by the client certificate .* in /.*, for https://.*`,
		`ok    right       autoscaling:RecordLifecycleActionHeartbeat for the Auto Scaling group workers`,
		`ok    right       autoscaling:CompleteLifecycleAction for the Auto Scaling group workers`)
	q.groups.Deny("CompleteLifecycleAction")
	mustSay(t, ask(t, consumer.Ask),
		`warn  right       autoscaling:CompleteLifecycleAction: refused for the Auto Scaling group workers; hooks are left to their timeouts`)
	if a := q.groups.Actions(instance)[0]; len(a.Heartbeats) > 0 || a.Result != "" {
		t.Errorf("the hook that waits is %+v", a)
	}
}

// ask runs "nth-queue check", which must not fail.
func ask(t *testing.T, of func(command string) (string, error)) string {
	t.Helper()
	said, err := of("check")
	if err != nil {
		t.Errorf("nth-queue check: %v\n%s", err, said)
	}
	return said
}

// mustSay fails the test unless each pattern matches a whole line.
func mustSay(t *testing.T, said string, patterns ...string) {
	t.Helper()
	for _, pattern := range patterns {
		if !regexp.MustCompile(`(?m)^` + pattern + `$`).MatchString(said) {
			t.Errorf("there is no line %q in\n%s", pattern, said)
		}
	}
}
