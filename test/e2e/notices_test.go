package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/nth-project/nth/test/internal/lab"
)

// condition returns one of the node's conditions, or nil.
func condition(node *corev1.Node, kind corev1.NodeConditionType) *corev1.NodeCondition {
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == kind })
	if i < 0 {
		return nil
	}
	return &node.Status.Conditions[i]
}

// pending is the condition that is nth's.
const pending = "InterruptionPending"

// waitCondition waits until the condition has that status and reason, and returns it.
func (s *stage) waitCondition(t *testing.T, status corev1.ConditionStatus, reason string) (found corev1.NodeCondition) {
	t.Helper()
	s.node.WaitFor(t, fmt.Sprintf("its condition %s is %s, for %s", pending, status, reason), func(node *corev1.Node) bool {
		c := condition(node, pending)
		if c == nil || c.Status != status || c.Reason != reason {
			return false
		}
		found = *c
		return true
	})
	return found
}

// eventsOf returns the Events about an object, as "kubectl describe" looks for them.
func (s *stage) eventsOf(t *testing.T, namespace string, involved fields.Set) []corev1.Event {
	t.Helper()
	list, err := s.cp.Admin.CoreV1().Events(namespace).List(t.Context(), metav1.ListOptions{FieldSelector: fields.SelectorFromSet(involved).String()})
	if err != nil {
		t.Fatalf("listing Events: %v", err)
	}
	return list.Items
}

func TestNotices_OfADrainAreInTheCluster(t *testing.T) {
	s := play(t, withdrawnSoon)
	pods := s.node.Pods(t)
	s.imds.SetSpot("terminate", twoMinutes())
	s.waitCondition(t, corev1.ConditionTrue, "SpotInterruption")
	s.waitDrained(t)
	s.imds.ClearSpot()
	s.waitCondition(t, corev1.ConditionFalse, "NothingPending")

	for _, reason := range []string{"SpotInterruption", "Draining", "CordonAndDrain", "Uncordon"} {
		about := fields.Set{"involvedObject.kind": "Node", "involvedObject.uid": s.node.Name, "reason": reason}
		lab.Await(t, "there is an Event "+reason, func() bool { return len(s.eventsOf(t, "default", about)) > 0 })
		e := s.eventsOf(t, "default", about)[0]
		if e.Annotations["node"] != s.node.Name || e.Type != corev1.EventTypeNormal || e.Source.Host != s.node.Name {
			t.Errorf("the Event %s is %+v", reason, e)
		}
	}
	if described := s.cp.Kubectl(t, "", "describe", "node", s.node.Name); !strings.Contains(described, "CordonAndDrain") {
		t.Errorf("kubectl describe node does not show the Events:\n%s", described)
	}
	for _, pod := range pods {
		evicted := s.eventsOf(t, pod.Namespace, fields.Set{"involvedObject.uid": string(pod.UID), "reason": "PodEviction"})
		if len(evicted) != 1 || evicted[0].Annotations["node"] != s.node.Name {
			t.Errorf("the Events about pod %s are %+v, want one PodEviction", pod.Name, evicted)
		}
	}
	s.nth.Stop(t)
}

// The kubelet writes its conditions with the same credential while nth does.
func TestCondition_LeavesThoseOfOthers(t *testing.T) {
	s := prepare(t, "[kubernetes]\nlabels = true\n")
	before := len(s.node.Object(t).Status.Conditions)
	s.watch(t)
	s.imds.SetSpot("terminate", twoMinutes())
	for i := range 50 {
		c := corev1.NodeCondition{Type: "KubeletLike", Status: corev1.ConditionTrue, Reason: fmt.Sprintf("Round%d", i), LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}
		patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{c}}})
		if err == nil {
			_, err = s.node.Client.CoreV1().Nodes().Patch(t.Context(), s.node.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{FieldManager: "kubelet"}, "status")
		}
		if err != nil {
			t.Fatalf("writing a condition: %v", err)
		}
	}
	s.waitDrained(t)
	s.waitCondition(t, corev1.ConditionTrue, "SpotInterruption")
	s.nth.Stop(t)
	node := s.node.Object(t)
	if c := condition(node, "KubeletLike"); c == nil || c.Reason != "Round49" {
		t.Errorf("what was written last beside nth is %+v", c)
	}
	if c := condition(node, corev1.NodeReady); c == nil || c.Status != corev1.ConditionTrue {
		t.Errorf("the kubelet's condition is %+v", c)
	}
	if n := len(node.Status.Conditions); n != before+2 {
		t.Errorf("the node has %d conditions, want %d: %+v", n, before+2, node.Status.Conditions)
	}
}

// affinity is what the page on the Node shows for a pod that needs a node without maintenance before a time.
func affinity(t *testing.T, before time.Time) *corev1.Affinity {
	t.Helper()
	page, err := os.ReadFile("../../docs/node-contract.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, found := strings.Cut(string(page), "```yaml\naffinity:")
	example, _, ended := strings.Cut(example, "```")
	var spec corev1.PodSpec
	text := strings.Replace("affinity:"+example, "1830297600", fmt.Sprint(before.Unix()), 1)
	if err := yaml.UnmarshalStrict([]byte(text), &spec); err != nil || !found || !ended {
		t.Fatalf("docs/node-contract.md shows no affinity: %v", err)
	}
	return spec.Affinity
}

// scheduled waits until the scheduler has judged a pod of that affinity, and returns whether there is a node for it.
func (s *stage) scheduled(t *testing.T, name string, affinity *corev1.Affinity) bool {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		Affinity: affinity, NodeSelector: s.node.Labels(), Containers: []corev1.Container{{Name: "main", Image: "none"}},
	}}
	pods := s.cp.Admin.CoreV1().Pods(s.node.Namespace)
	if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	status := corev1.ConditionUnknown
	lab.Await(t, "the scheduler has judged the pod "+name, func() bool {
		pod, err := pods.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled {
				status = c.Status
			}
		}
		return status != corev1.ConditionUnknown
	})
	return status == corev1.ConditionTrue
}

// NodeRestriction lets a node's credential set the labels, and the API server remembers for the next process whose they are.
func TestLabels_KeepPodsAwayUntilTheEventIsOver(t *testing.T) {
	s := play(t, "[kubernetes]\nlabels = true\n")
	ev := s.imds.AddMaintenance(reboot(45 * time.Minute))
	s.node.WaitFor(t, "it has the labels", func(node *corev1.Node) bool {
		return node.Labels["nth-project.github.io/maintenance-not-before"] == fmt.Sprint(ev.NotBefore.Unix()) &&
			node.Labels["nth-project.github.io/interruption"] == "scheduled-maintenance"
	})
	if !s.scheduled(t, "short", affinity(t, time.Now().Add(30*time.Minute))) || s.scheduled(t, "long", affinity(t, time.Now().Add(time.Hour))) {
		t.Error("the pod that is done before the maintenance has no node, or the one that is not has one")
	}

	s.nth.Kill()
	s.imds.WithdrawMaintenance(ev.EventId, false)
	s.start(t)
	s.node.WaitFor(t, "it has no label of nth's", func(node *corev1.Node) bool {
		for key := range node.Labels {
			if strings.HasPrefix(key, "nth-project.github.io/") {
				return false
			}
		}
		return true
	})
	if !s.scheduled(t, "late", affinity(t, time.Now().Add(time.Hour))) {
		t.Error("the maintenance is canceled, and there is no node for the pod")
	}
	s.nth.Stop(t)
	s.mustBeUntouched(t)
}

// A rule of another project's controller names the condition; its API is in docs/sources.md.
func TestCondition_HasARuleThatTaints(t *testing.T) {
	manifest, err := os.ReadFile("../../packaging/kubernetes/node-readiness-rule.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var rule struct {
		metav1.TypeMeta
		Metadata metav1.ObjectMeta
		Spec     struct {
			Conditions      []struct{ Type, RequiredStatus string }
			EnforcementMode string
			Taint           corev1.Taint
			NodeSelector    metav1.LabelSelector
		}
	}
	if err := yaml.UnmarshalStrict(manifest, &rule); err != nil {
		t.Fatal(err)
	}
	if c := rule.Spec.Conditions; len(c) != 1 || c[0].Type != pending || c[0].RequiredStatus != "False" || rule.Spec.EnforcementMode != "continuous" {
		t.Errorf("the rule is %+v", rule.Spec)
	}
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
	list, err := lab.Shared(t).Admin.CoreV1().RESTClient().Get().Resource("nodes").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	jq := exec.CommandContext(t.Context(), "jq", "-r", "--argjson", "limit", limit, command)
	jq.Stdin = bytes.NewReader(list)
	out, err := jq.CombinedOutput()
	if err != nil {
		t.Fatalf("jq: %v\n%s", err, out)
	}
	return string(out)
}

func TestHeartbeat_FindsNodesWithoutALiveNth(t *testing.T) {
	s := prepare(t, "[kubernetes]\nheartbeat = \"1s\"\n")
	if all := lost(t, "900"); !strings.Contains(all, s.node.Name+"\tnever\n") {
		t.Errorf("before nth runs there the node is not among those without a live nth:\n%s", all)
	}
	s.start(t)
	first := s.waitCondition(t, corev1.ConditionFalse, "NothingPending").LastHeartbeatTime
	s.node.WaitFor(t, "its heartbeat is renewed", func(node *corev1.Node) bool { return condition(node, pending).LastHeartbeatTime.After(first.Time) })
	if all := lost(t, "900"); strings.Contains(all, s.node.Name+"\t") {
		t.Errorf("while nth watches the node is among those without a live nth:\n%s", all)
	}
	s.nth.Stop(t)
	since := condition(s.node.Object(t), pending).LastHeartbeatTime.UTC().Format(time.RFC3339)
	if all := lost(t, "-1"); !strings.Contains(all, s.node.Name+"\t"+since+"\n") {
		t.Errorf("the node's last heartbeat was at %s, and those found are:\n%s", since, all)
	}
	s.mustBeUntouched(t)
}
