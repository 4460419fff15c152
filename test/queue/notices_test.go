package queue

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/lab"
)

// webhook is somebody who wants to be told.
type webhook struct {
	*httptest.Server

	mu    sync.Mutex
	posts []string
}

func newWebhook(t *testing.T) *webhook {
	w := &webhook{}
	w.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body) // a part of a post is none that is waited for
		w.mu.Lock()
		defer w.mu.Unlock()
		w.posts = append(w.posts, string(text))
	}))
	t.Cleanup(w.Close)
	return w
}

// has tells whether a post was made with that text.
func (w *webhook) has(text string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(w.posts, text)
}

func TestWhatHappensToManyNodesIsToldOfEach(t *testing.T) {
	t.Parallel()
	q, hook := newQueue(t), newWebhook(t)
	cp := lab.Shared(t)
	first, one := addInstance(t, cp)
	second, other := addInstance(t, cp)
	first.AddPod(t, "pod")
	second.AddPod(t, "pod")
	consumer := q.start(t, fmt.Sprintf(
		"[kubernetes]\nlifecycle_conditions = true\n[webhook]\nurl = %q\ntemplate = '{{.Outcome}} {{.NodeName}} {{.InstanceID}}'\nheaders = { Content-Type = \"text/plain\" }\n", hook.URL))

	q.Send(spot(one), state(other, "stopping"))

	q.waitEmpty(t)
	for node, instance := range map[*lab.Node]string{first: one, second: other} {
		for _, outcome := range []string{"announced", "drained"} {
			text := fmt.Sprintf("%s %s %s", outcome, node.Name, instance)
			eventually(t, "it was posted that "+text, func() bool { return hook.has(text) })
		}
		node.WaitFor(t, "its condition is that it is drained", func(n *corev1.Node) bool {
			return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type == "InterruptionPending" && c.Status == corev1.ConditionTrue && strings.Contains(c.Message, "the node is drained")
			})
		})
		node.WaitFor(t, "its lifecycle conditions say so, too", func(n *corev1.Node) bool {
			holds := func(of corev1.NodeConditionType, status corev1.ConditionStatus) bool {
				return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
					return c.Type == of && c.Status == status && c.Reason == "DrainCompleted"
				})
			}
			return holds("Drained", corev1.ConditionTrue) && holds("DrainInProgress", corev1.ConditionFalse)
		})
	}
	waitEvents(t, cp, "default", fields.Set{"involvedObject.kind": "Node", "involvedObject.uid": first.Name},
		"SpotInterruption", "Draining", "CordonAndDrain")
	waitEvents(t, cp, "default", fields.Set{"involvedObject.kind": "Node", "involvedObject.uid": second.Name},
		"StateChange", "Draining", "CordonAndDrain")
	waitEvents(t, cp, first.Namespace, fields.Set{"involvedObject.kind": "Pod", "involvedObject.name": "pod"}, "PodEviction")
	consumer.Stop(t)
}

// waitEvents waits until there are Events about an object with all those reasons, of which nth-queue is the source.
func waitEvents(t *testing.T, cp *lab.ControlPlane, namespace string, about fields.Set, reasons ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%v has the Events %v", about, reasons), func() bool {
		list, err := cp.Admin.CoreV1().Events(namespace).List(t.Context(), metav1.ListOptions{FieldSelector: fields.SelectorFromSet(about).String()})
		if err != nil {
			t.Fatalf("listing Events: %v", err)
		}
		for _, reason := range reasons {
			if !slices.ContainsFunc(list.Items, func(e corev1.Event) bool { return e.Reason == reason && e.Source.Component == "nth-queue" }) {
				return false
			}
		}
		return true
	})
}

func TestMetricsTellOfTheQueueAndOfItsNodes(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	node, instance := addInstance(t, lab.Shared(t))
	node.AddPods(t, "pod", 2)
	port, release, err := lab.ReservePort()
	if err != nil {
		t.Fatal(err)
	}
	release()
	address := fmt.Sprintf("http://127.0.0.1:%d", port)
	file := filepath.Join(t.TempDir(), "nth-queue.prom")
	consumer := q.start(t, fmt.Sprintf("[metrics]\nlisten = \":%d\"\ntextfile = %q\n", port, file))
	q.Send(spot(instance), "what is this?")
	consumer.WaitLog(t, systemd.Drained)
	consumer.WaitLog(t, systemd.MessagePoisoned)

	for _, series := range []string{
		`nth_queue_up 1`, `nth_queue_messages_total{outcome="deleted"} 1`, `nth_queue_messages_total{outcome="poisoned"} 1`,
		`nth_queue_nodes{state="draining"} 0`, `nth_queue_messages_in_flight 0`, `nth_pods_evicted_total 2`,
		`nth_actions_total{action="drain",outcome="done"} 1`, `nth_events_total{kind="spot-interruption"} 1`, `nth_healthy 1`,
		`nth_api_requests_total{code="201",method="POST"} `,
	} {
		has := func(text string) bool { return strings.Contains("\n"+text, "\n"+series) }
		eventually(t, "there is "+series, func() bool { return has(page(t, address+"/metrics")) })
		eventually(t, "the file has "+series, func() bool {
			text, err := os.ReadFile(file)
			return err == nil && has(string(text))
		})
	}
	if said := page(t, address+"/healthz"); said != "ok\n" {
		t.Errorf("/healthz says %q", said)
	}
	consumer.Stop(t)
}

// page asks for a page; "" if nobody answers.
func page(t *testing.T, url string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return ""
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return ""
	}
	return string(text)
}

func TestReloadedSettingsHoldForTheNextMessage(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	node, instance := addInstance(t, lab.Shared(t))
	node.AddPod(t, "pod")
	consumer := q.start(t, "[events.spot-interruption]\naction = \"notify\"\n")

	consumer.Configure(t, "[events.spot-interruption]\naction = \"drian\"\n")
	consumer.Reload(t)
	consumer.Configure(t, "[events.spot-interruption]\naction = \"cordon\"\n[queue]\nreceivers = 1\n")
	consumer.Reload(t)
	q.Send(spot(instance))

	node.WaitCordoned(t)
	q.waitEmpty(t)
	consumer.Stop(t)
	if len(node.Pods(t)) != 1 {
		t.Error("the node was drained by a rule that nobody has set")
	}
	var said []string
	for _, e := range consumer.Logged(systemd.Reloaded) {
		said = append(said, e.Message)
	}
	want := []string{
		"configuration reloaded; changed: events.spot-interruption.action",
		"restart nth-queue to apply: queue.receivers",
	}
	if !slices.Equal(said, want) || len(consumer.Logged(systemd.ConfigInvalid)) == 0 {
		t.Errorf("it said %q, want %q and what is wrong", said, want)
	}
}
