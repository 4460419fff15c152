package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/tools"
)

// beatsOften has a heartbeat every second, about. Only whole seconds are written.
const beatsOften = "[kubernetes]\nheartbeat = \"1s\"\n"

// waitYounger waits until the heartbeat has been renewed so many times.
func (s *stage) waitYounger(t *testing.T, times int) {
	t.Helper()
	var last time.Time
	s.node.WaitFor(t, "its heartbeat goes on", func(node *corev1.Node) bool {
		if c := condition(node); c != nil && c.LastHeartbeatTime.After(last) {
			last = c.LastHeartbeatTime.Time
			times--
		}
		return times < 0
	})
}

// lost are the nodes that the page on the rollout finds to be without a live nth, if a heartbeat may be that old.
func lost(t *testing.T, limit string) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/rollout.md")
	if err != nil {
		t.Fatal(err)
	}
	_, command, found := strings.Cut(string(page), "```sh\nkubectl get nodes -o json | jq -r --argjson limit 900 '")
	command, _, ended := strings.Cut(command, "'\n```")
	if !found || !ended {
		t.Fatal("docs/rollout.md asks for nodes without a live nth in other words")
	}
	kubectl, err := tools.Path("kubectl")
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := exec.CommandContext(t.Context(), kubectl, "--kubeconfig="+lab.Shared(t).Kubeconfig, "get", "nodes", "-o", "json").Output()
	if err != nil {
		t.Fatalf("kubectl: %v", err)
	}
	jq := exec.CommandContext(t.Context(), "jq", "-r", "--argjson", "limit", limit, command)
	jq.Stdin = bytes.NewReader(nodes)
	out, err := jq.CombinedOutput()
	if err != nil {
		t.Fatalf("jq: %v\n%s", err, out)
	}
	return string(out)
}

func TestHeartbeat_FindsNodesWithoutALiveNth(t *testing.T) {
	s := prepare(t, beatsOften)
	if all := lost(t, "900"); !strings.Contains(all, s.node.Name+"\tnever\n") {
		t.Errorf("before nth runs there the node is not among those without a live nth:\n%s", all)
	}
	s.start(t)
	if c := s.waitCondition(t, corev1.ConditionFalse); c.Reason != "NothingPending" {
		t.Errorf("the condition is %+v", c)
	}
	s.waitYounger(t, 3)
	if all := lost(t, "900"); strings.Contains(all, s.node.Name+"\t") {
		t.Errorf("while nth watches the node is among those without a live nth:\n%s", all)
	}
	s.nth.Stop(t)
	since := condition(s.node.Object(t)).LastHeartbeatTime.UTC().Format(time.RFC3339)
	if all := lost(t, "-1"); !strings.Contains(all, s.node.Name+"\t"+since+"\n") {
		t.Errorf("the node's last heartbeat was at %s, and those found are:\n%s", since, all)
	}
	s.mustBeUntouched(t)
}
