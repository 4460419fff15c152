package queue_test

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
	"github.com/nth-project/nth/test/internal/region"
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
	s, hook := newScene(t), newWebhook(t)
	first, one := s.add(t)
	second, other := s.add(t)
	first.AddPod(t, "pod")
	second.AddPod(t, "pod")
	consumer := s.start(t, fmt.Sprintf(
		"[webhook]\nurl = %q\ntemplate = '{{.Outcome}} {{.NodeName}} {{.InstanceID}}'\nheaders = { Content-Type = \"text/plain\" }\n", hook.URL))

	s.EC2.Enter(other, "stopping")
	s.Send(t, region.Spot(one), region.State(other, "stopping"))

	s.WaitEmpty(t)
	for node, instance := range map[*lab.Node]string{first: one, second: other} {
		for _, outcome := range []string{"announced", "drained"} {
			text := fmt.Sprintf("%s %s %s", outcome, node.Name, instance)
			s.Await(t, "it was posted that "+text, func() bool { return hook.has(text) })
		}
		node.WaitFor(t, "its condition is that it is drained", func(n *corev1.Node) bool {
			return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type == "InterruptionPending" && c.Status == corev1.ConditionTrue && strings.Contains(c.Message, "the node is drained")
			})
		})
	}
	s.waitEvents(t, fields.Set{"involvedObject.kind": "Node", "involvedObject.uid": first.Name},
		"SpotInterruption", "CordonAndDrain")
	s.waitEvents(t, fields.Set{"involvedObject.kind": "Node", "involvedObject.uid": second.Name},
		"StateChange", "CordonAndDrain")
	consumer.Stop(t)
}

// waitEvents waits until there are Events about an object with all those reasons, of which nth-queue is the source.
func (s *scene) waitEvents(t *testing.T, about fields.Set, reasons ...string) {
	t.Helper()
	s.Await(t, fmt.Sprintf("%v has the Events %v", about, reasons), func() bool {
		list, err := s.cp.Admin.CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{FieldSelector: fields.SelectorFromSet(about).String()})
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
	s := newScene(t)
	node, id := s.add(t)
	node.AddPods(t, "pod", 2)
	metrics, address := serving(t)
	file := filepath.Join(t.TempDir(), "nth-queue.prom")
	consumer := s.start(t, metrics+fmt.Sprintf("textfile = %q\n", file))

	s.Send(t, region.Spot(id), "what is this?")

	consumer.WaitLog(t, systemd.Drained)
	consumer.WaitLog(t, systemd.MessagePoisoned)
	for _, series := range []string{
		`nth_queue_up 1`, `nth_queue_messages_total{outcome="deleted"} 1`, `nth_queue_messages_total{outcome="poisoned"} 1`,
		`nth_queue_nodes{state="draining"} 0`, `nth_queue_messages_in_flight 0`, `nth_pods_evicted_total 2`,
		`nth_actions_total{action="drain",outcome="done"} 1`, `nth_events_total{kind="spot-interruption"} 1`, `nth_healthy 1`,
		`nth_api_requests_total{code="201",method="POST"} `,
	} {
		in := func(text string) bool { return strings.Contains("\n"+text, "\n"+series) }
		s.Await(t, "there is "+series, func() bool { return in(page(t, address+"/metrics")) })
		s.Await(t, "the file has "+series, func() bool {
			text, err := os.ReadFile(file)
			return err == nil && in(string(text))
		})
	}
	if said := page(t, address+"/healthz"); !strings.HasPrefix(said, "ok\n") || !strings.Contains(said, "leads, which is this process") {
		t.Errorf("/healthz says %q", said)
	}
	consumer.Stop(t)
}

// serving are settings by which metrics are served, and where; more of their table may follow.
func serving(t *testing.T) (settings, address string) {
	t.Helper()
	port, release, err := lab.ReservePort()
	if err != nil {
		t.Fatal(err)
	}
	release()
	return fmt.Sprintf("[metrics]\nlisten = \":%d\"\n", port), fmt.Sprintf("http://127.0.0.1:%d", port)
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

func lines(text string) []string { return strings.Split(text, "\n") }

func TestReloadedSettingsHoldForTheNextMessage(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	node, id := s.AddInstance(t, s.cp, nil)
	node.AddPod(t, "pod")
	consumer := s.start(t, "[events.spot-interruption]\naction = \"notify\"\n")

	consumer.Configure(t, "[events.spot-interruption]\naction = \"drian\"\n")
	consumer.Reload(t)
	consumer.Configure(t, "[events.spot-interruption]\naction = \"cordon\"\n[fleet]\ngroup_label = \"pool\"\n")
	consumer.Reload(t)
	s.Send(t, region.Spot(id))

	node.WaitCordoned(t)
	s.WaitEmpty(t)
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
		"restart nth-queue to apply: fleet.group_label",
	}
	if !slices.Equal(said, want) || len(consumer.Logged(systemd.ConfigInvalid)) == 0 {
		t.Errorf("it said %q, want %q and what is wrong", said, want)
	}
}
