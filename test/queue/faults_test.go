package queue_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/asg/asgtest"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/eks"
	"github.com/nth-project/nth/test/internal/faultproxy"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/region"
)

// These tests are about the services that nth-queue needs beside the queue.

func TestAnAPIServerThatIsAwayFromTheStartIsWaitedFor(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	way := s.brokenWay(t)
	node, id := s.add(t)
	node.AddPods(t, "pod", 2)
	way.Fault(faultproxy.Fault{Kind: faultproxy.Refuse})
	consumer := s.open(t, "")
	s.Send(t, region.Spot(id))
	consumer.WaitStatus(t, "waiting for the list of Nodes")

	way.Lift()

	node.WaitCordoned(t)
	node.WaitEmpty(t)
	s.WaitEmpty(t)
	s.early.mustHaveJudged(t, 1)
	consumer.Stop(t)
}

func TestAnAPIServerThatIsAwayInTheMidstOfDrainsIsWaitedFor(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]faultproxy.Fault{
		"refusing": {Kind: faultproxy.Refuse},
		"broken":   {Kind: faultproxy.Reset},
		"silent":   {Kind: faultproxy.BlackHole},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			way := s.brokenWay(t)
			nodes := s.storm(t, 5, 2, 5*time.Second)
			consumer := s.start(t, "")
			seen := nodes.Watch(t)
			s.Send(t, nodes.Messages()...)
			awaitEviction(t, s, []*daemon.Daemon{consumer})

			way.Fault(fault)
			second, id := s.add(t) // What comes now has to wait, and does not get lost.
			second.AddPods(t, "pod", 2)
			s.Send(t, region.Spot(id))
			s.Await(t, "the message is held", func() bool { visible, _ := s.Count(t); return visible == 0 })
			way.Lift()

			seen.Wait(t)
			second.WaitCordoned(t)
			second.WaitEmpty(t)
			s.WaitEmpty(t)
			s.early.mustHaveJudged(t, 6)
			s.mustBeSettled(t, nodes)
			consumer.Stop(t)
		})
	}
}

// brokenWay leads what is started from now on through a proxy that can break.
func (s *scene) brokenWay(t *testing.T) *faultproxy.Proxy {
	t.Helper()
	way := faultproxy.New(t, s.kubeconfig)
	s.kubeconfig = way.Kubeconfig
	return way
}

func TestTheRoleOfAServiceAccountIsEnoughAlsoWhereSTSThrottles(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	node, id := s.hooked(t, asgtest.Hook{HeartbeatTimeout: 5 * time.Minute})
	s.STS.Throttle(2)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("the-token-of-a-service-account"), 0o600); err != nil {
		t.Fatal(err)
	}
	consumer := daemon.StartQueue(t, daemon.QueueOptions{
		Kubeconfig: s.kubeconfig, URL: s.QueueURL, Endpoint: s.URL, Env: []string{
			"AWS_ACCESS_KEY_ID=", "AWS_SECRET_ACCESS_KEY=", "AWS_SESSION_TOKEN=", "AWS_ENDPOINT_URL_STS=" + s.URL,
			"AWS_ROLE_ARN=arn:aws:iam::123456789012:role/nth-queue", "AWS_WEB_IDENTITY_TOKEN_FILE=" + token,
		},
	})

	s.terminate(t, id)

	node.WaitCordoned(t)
	node.WaitEmpty(t)
	s.WaitEmpty(t)
	mustBeCompleted(t, s, id)
	given := s.STS.Given()
	if shown := s.STS.Shown(); len(shown) < 3 || shown[0] != "the-token-of-a-service-account" || len(given) == 0 {
		t.Fatalf("STS was shown %q and gave %q", shown, given)
	}
	for _, call := range s.Groups.Calls("") {
		if !slices.Contains(given, call.Credential) {
			t.Errorf("%s was signed with %q, want one of %q", call.Action, call.Credential, given)
		}
	}
	consumer.Stop(t)
}

// The credentials are those by which nth-queue asks SQS.
func TestATokenForEKSNeedsNoPlugin(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	cluster := eks.Open(t, lab.Credential{Kubeconfig: s.kubeconfig}, "AKIDEXAMPLE0000001", "secret")
	text, err := cluster.Kubeconfig("/nowhere/aws")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	node, id := s.add(t)
	node.AddPod(t, "pod")
	consumer := s.start(t, fmt.Sprintf("[kubernetes]\nkubeconfig = %q\ntoken = \"eks\"\n", kubeconfig))

	s.Send(t, region.Spot(id))

	consumer.WaitLog(t, systemd.Drained)
	if err := cluster.Refused(); err != nil || cluster.Accepted() == 0 {
		t.Errorf("%d requests were let in, and others were not: %v", cluster.Accepted(), err)
	}
	consumer.Stop(t)
}
