package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/tools"
)

// condition returns the node's condition InterruptionPending, or nil.
func condition(node *corev1.Node) *corev1.NodeCondition {
	return conditionOf(node, "InterruptionPending")
}

func conditionOf(node *corev1.Node, kind corev1.NodeConditionType) *corev1.NodeCondition {
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == kind })
	if i < 0 {
		return nil
	}
	return &node.Status.Conditions[i]
}

// waitCondition waits until the condition has that status, and returns it.
func (s *stage) waitCondition(t *testing.T, status corev1.ConditionStatus) corev1.NodeCondition {
	t.Helper()
	var found corev1.NodeCondition
	s.node.WaitFor(t, fmt.Sprintf("its condition InterruptionPending is %s", status), func(node *corev1.Node) bool {
		c := condition(node)
		if c == nil || c.Status != status {
			return false
		}
		found = *c
		return true
	})
	return found
}

// eventsOf returns the Events about an object of that kind and name, as "kubectl describe" looks for them.
func (s *stage) eventsOf(t *testing.T, namespace string, involved fields.Set) []corev1.Event {
	t.Helper()
	list, err := lab.Shared(t).Admin.CoreV1().Events(namespace).List(t.Context(),
		metav1.ListOptions{FieldSelector: fields.SelectorFromSet(involved).String()})
	if err != nil {
		t.Fatalf("listing Events: %v", err)
	}
	return list.Items
}

// aboutNode are the Events about the node.
func (s *stage) aboutNode(t *testing.T) []corev1.Event {
	t.Helper()
	return s.eventsOf(t, "default", fields.Set{"involvedObject.kind": "Node", "involvedObject.uid": s.node.Name})
}

// waitEvent waits until there is an Event about the node with that reason.
func (s *stage) waitEvent(t *testing.T, reason string) corev1.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		events := s.aboutNode(t)
		if i := slices.IndexFunc(events, func(e corev1.Event) bool { return e.Reason == reason }); i >= 0 {
			return events[i]
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waiting for an Event with the reason %s: there are %v", reason, reasonsOf(events))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func reasonsOf(events []corev1.Event) []string {
	reasons := make([]string, len(events))
	for i, e := range events {
		reasons[i] = e.Reason
	}
	return reasons
}

// The original asks for the reason and the text of the Event at a drain's end, and in its number 3 for the annotations
// of all Events.
func TestPeer15EventsAreEmitted(t *testing.T) {
	s := play(t, "")
	pods := s.node.Pods(t)
	s.imds.SetSpot("terminate", twoMinutes())
	s.waitDrained(t)
	s.waitEvent(t, "CordonAndDrain")
	s.nth.Stop(t)

	told := s.aboutNode(t)
	for _, reason := range []string{"SpotInterruption", "Draining", "CordonAndDrain"} {
		i := slices.IndexFunc(told, func(e corev1.Event) bool { return e.Reason == reason })
		if i < 0 {
			t.Errorf("there is no Event %s, but %v", reason, reasonsOf(told))
			continue
		}
		for key, want := range map[string]string{
			"account-id": "", "availability-zone": "", "instance-id": "", "instance-life-cycle": "", "instance-type": "",
			"local-hostname": "", "local-ipv4": "", "public-hostname": "", "public-ipv4": "",
			"region": "",
		} {
			if got, ok := told[i].Annotations[key]; !ok || want != "" && got != want {
				t.Errorf("the Event %s has the annotation %s=%q (%v), want %q", reason, key, got, ok, want)
			}
		}
		if told[i].Annotations["instance-id"] == "" || told[i].Type != corev1.EventTypeNormal || told[i].Source.Host != s.node.Name {
			t.Errorf("the Event %s is %+v", reason, told[i])
		}
	}
	if described := s.describe(t); !strings.Contains(described, "CordonAndDrain") {
		t.Errorf("kubectl describe node does not show the Events:\n%s", described)
	}
	for _, pod := range pods {
		evicted := s.eventsOf(t, pod.Namespace, fields.Set{"involvedObject.uid": string(pod.UID), "reason": "PodEviction"})
		if len(evicted) != 1 || evicted[0].Annotations["node"] != s.node.Name || evicted[0].Annotations["app"] != pod.Labels["app"] {
			t.Errorf("the Events about pod %s are %+v, want one PodEviction", pod.Name, evicted)
		}
	}
}

// describe is what "kubectl describe node" says.
func (s *stage) describe(t *testing.T) string {
	t.Helper()
	path, err := tools.Path("kubectl")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), path, "--kubeconfig="+lab.Shared(t).Kubeconfig, "describe", "node", s.node.Name).CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl: %v\n%s", err, out)
	}
	return string(out)
}

func TestTheConditionComesWithAnEventAndGoesWithIt(t *testing.T) {
	s := play(t, "[imds]\nwithdrawn_after = \"1s\"\n")
	if c := condition(s.node.Object(t)); c != nil && c.Status != corev1.ConditionFalse {
		t.Errorf("the node bears %+v before anything was announced", c)
	}
	s.imds.SetSpot("terminate", twoMinutes())
	c := s.waitCondition(t, corev1.ConditionTrue)
	if !s.node.Object(t).Spec.Unschedulable {
		t.Errorf("the condition was there before the cordon")
	}
	if c.Reason != "SpotInterruption" || !strings.Contains(c.Message, "terminate this spot instance at") {
		t.Errorf("the condition is %+v", c)
	}
	s.imds.ClearSpot()
	if c := s.waitCondition(t, corev1.ConditionFalse); c.Reason != "NothingPending" {
		t.Errorf("the condition is %+v", c)
	}
	s.waitEvent(t, "Uncordon")
}

// patchStatus writes a condition with the kubelet's credential, as the program of that name does.
func (s *stage) patchStatus(t *testing.T, manager string, c corev1.NodeCondition) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", s.node.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	c.LastHeartbeatTime, c.LastTransitionTime = metav1.Now(), metav1.Now()
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{c}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Nodes().Patch(t.Context(), s.node.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{FieldManager: manager}, "status"); err != nil {
		t.Fatalf("writing the condition %s: %v", c.Type, err)
	}
}

func TestConditionsThatAreWrittenAtTheSameTimeAllStay(t *testing.T) {
	s := play(t, "")
	node := s.node.Object(t)
	before := len(node.Status.Conditions)
	if condition(node) != nil {
		before-- // nth has written its own already.
	}
	s.imds.SetSpot("terminate", twoMinutes())
	for i := range 50 {
		s.patchStatus(t, "kubelet", corev1.NodeCondition{Type: "KubeletLike", Status: corev1.ConditionTrue, Reason: fmt.Sprintf("Round%d", i)})
	}
	s.waitDrained(t)
	s.waitCondition(t, corev1.ConditionTrue)
	s.nth.Stop(t)
	node = s.node.Object(t)
	if c := conditionOf(node, "KubeletLike"); c == nil || c.Reason != "Round49" {
		t.Errorf("what was written last beside nth is %+v", c)
	}
	if c := conditionOf(node, corev1.NodeReady); c == nil || c.Status != corev1.ConditionTrue {
		t.Errorf("the kubelet's condition is %+v", c)
	}
	if n := len(node.Status.Conditions); n != before+2 {
		t.Errorf("the node has %d conditions, want %d: %+v", n, before+2, node.Status.Conditions)
	}
}
