package notify_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

const nodeName = "node-1"

// cluster is an API server in memory, so that it can be used where time is not real: one node's conditions and
// labels, and Events.
// What it does not know is answered with 404.
type cluster struct {
	t    *testing.T
	http http.ServeMux

	mu         sync.Mutex
	conditions []corev1.NodeCondition
	labels     map[string]string
	events     []corev1.Event
	requests   []string
	// answer is the status that requests get instead; 0 is the cluster's own answer, and -1 none at all.
	answer func(what string) int
}

func newCluster(t *testing.T, conditions ...corev1.NodeCondition) *cluster {
	c := &cluster{t: t, conditions: conditions, labels: map[string]string{}, answer: func(string) int { return 0 }}
	c.handle("GET /api/v1/nodes/"+nodeName, "get node", func(*http.Request, []byte) any {
		return corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
			ObjectMeta: metav1.ObjectMeta{Name: nodeName, ResourceVersion: "8", Labels: c.labels}, Status: corev1.NodeStatus{Conditions: c.conditions}}
	})
	c.handle("PATCH /api/v1/nodes/"+nodeName+"/status", "patch condition", c.patchStatus)
	c.handle("POST /api/v1/namespaces/{namespace}/events", "create event", func(_ *http.Request, body []byte) any {
		c.events = append(c.events, corev1.Event{})
		created := &c.events[len(c.events)-1]
		c.decode(body, created)
		return created
	})
	return c
}

// handle answers requests of a pattern, which have a name: with what do returns, or as answer says.
func (c *cluster) handle(pattern, what string, do func(r *http.Request, body []byte) any) {
	c.http.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		var body []byte
		if r.Body != nil {
			body, _ = io.ReadAll(r.Body) // it is in memory
		}
		name := what
		if what == "create event" {
			var e corev1.Event
			c.decode(body, &e)
			name += " " + e.Reason
		}
		c.mu.Lock()
		c.requests = append(c.requests, name)
		status := c.answer(name)
		var object any = metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
			Status: metav1.StatusFailure, Code: int32(status), Reason: reasons[status], Message: "as the test wants it"}
		if status == 0 {
			status, object = http.StatusOK, do(r, body)
		}
		text, err := json.Marshal(object)
		c.mu.Unlock()
		if err != nil {
			c.t.Error(err)
		}
		if status < 0 {
			<-r.Context().Done()
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = w.Write(text)
	})
}

var reasons = map[int]metav1.StatusReason{
	403: metav1.StatusReasonForbidden, 404: metav1.StatusReasonNotFound, 409: metav1.StatusReasonAlreadyExists,
}

// RoundTrip implements http.RoundTripper.
func (c *cluster) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := httptest.NewRecorder()
	c.http.ServeHTTP(answer, r)
	return answer.Result(), r.Context().Err()
}

// patchStatus merges conditions by their types and labels by their keys, as the API server does with a strategic merge patch.
func (c *cluster) patchStatus(r *http.Request, body []byte) any {
	if kind := r.Header.Get("Content-Type"); kind != "application/strategic-merge-patch+json" {
		c.t.Errorf("a patch of the kind %q replaces all conditions", kind)
	}
	var patch corev1.Node
	c.decode(body, &patch)
	for _, sent := range patch.Status.Conditions {
		c.conditions = append(slices.DeleteFunc(c.conditions, func(c corev1.NodeCondition) bool { return c.Type == sent.Type }), sent)
	}
	var metadata struct {
		Metadata struct{ Labels map[string]*string }
	}
	c.decode(body, &metadata)
	for key, value := range metadata.Metadata.Labels {
		delete(c.labels, key)
		if value != nil {
			c.labels[key] = *value
		}
	}
	patch.ResourceVersion = "9"
	return patch
}

func (c *cluster) decode(body []byte, into any) {
	if err := json.Unmarshal(body, into); err != nil {
		c.t.Errorf("reading %s: %v", body, err)
	}
}

func (c *cluster) client() kubernetes.Interface {
	config := &rest.Config{Host: "http://cluster", QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
	set, err := kubernetes.NewForConfigAndClient(config, &http.Client{Transport: c})
	if err != nil {
		c.t.Fatal(err)
	}
	return set
}

// answers makes requests whose name begins with what be answered with a status.
func (c *cluster) answers(what string, status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = func(asked string) int {
		if strings.HasPrefix(asked, what) {
			return status
		}
		return 0
	}
}

// asked returns the requests since it was called last.
func (c *cluster) asked() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	asked := c.requests
	c.requests = nil
	return asked
}

func (c *cluster) wantAsked(what ...string) {
	c.t.Helper()
	asked := c.asked()
	slices.Sort(asked) // The condition and Events are written at the same time.
	slices.Sort(what)
	if !slices.Equal(asked, what) {
		c.t.Errorf("asked for %q, want %q", asked, what)
	}
}

// condition returns ours, or nil.
func (c *cluster) condition() *corev1.NodeCondition {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, condition := range c.conditions {
		if condition.Type == "InterruptionPending" {
			return &condition
		}
	}
	return nil
}

// written returns the Events that exist.
func (c *cluster) written() []corev1.Event {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.events)
}

// A stage is a Kubernetes that writes to a cluster, in a bubble where time is not real.
type stage struct {
	watched    func() *corev1.Node // what a watch shows; nil without a watch
	t          *testing.T
	cluster    *cluster
	opts       notify.KubernetesOptions
	node       *notify.KubernetesNode
	kubernetes *notify.Kubernetes
	stop       context.CancelFunc
	ended      sync.WaitGroup
	trouble    []string
	away       atomic.Bool // there is no identity

	mu      sync.Mutex
	entries []state.Entry
}

// rules are the rules of the stage.
var rules = policy.Settings{
	event.SpotInterruption:        {Action: policy.Drain, Hard: true, Hibernate: policy.Cordon},
	event.RebalanceRecommendation: {Action: policy.Notify},
	event.ScheduledMaintenance: {Action: policy.Drain, Codes: map[string]policy.When{
		"system-reboot": policy.Now, "system-maintenance": policy.Never,
	}},
	event.ASGTermination: {Action: policy.Drain},
	event.Shutdown:       {Action: policy.Drain},
	event.ReservationEnd: {Action: policy.Drain},
	event.Hibernation:    {Action: policy.Drain},
}

// play runs f on a stage; start starts its Kubernetes, and f must call it.
func play(t *testing.T, c func(*testing.T) *cluster, f func(s *stage)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &stage{t: t, cluster: c(t)}
		s.opts = notify.KubernetesOptions{
			Rules:     rules,
			Condition: true, Events: true, Source: "nth",
			Trouble: func(err error) {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.trouble = append(s.trouble, err.Error())
			},
		}
		f(s)
		s.end()
	})
}

// each runs f on a stage for each row.
func each[R any](t *testing.T, rows map[string]R, f func(s *stage, row R)) {
	t.Helper()
	for name, row := range rows {
		t.Run(name, func(t *testing.T) { play(t, bare, func(s *stage) { f(s, row) }) })
	}
}

func bare(t *testing.T) *cluster { return newCluster(t) }

// start runs the Kubernetes, and waits until it looks at the node for the first time.
func (s *stage) start() {
	var ctx context.Context
	ctx, s.stop = context.WithCancel(s.t.Context())
	s.kubernetes = notify.NewKubernetes(s.opts)
	s.node = s.kubernetes.Node("", s.identity, s.record)
	s.ended.Go(func() { s.kubernetes.Run(ctx) })
	s.pass(10 * time.Second)
}

func (s *stage) identity(context.Context) (notify.Identity, error) {
	if s.away.Load() {
		return notify.Identity{}, errors.New("not joined yet")
	}
	return notify.Identity{Client: s.cluster.client(), Node: nodeName, Watched: s.watched}, nil
}

func (s *stage) record() []state.Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.entries)
}

func (s *stage) end() {
	if s.stop != nil {
		s.stop()
	}
	s.ended.Wait()
}

func (s *stage) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// tell tells what happens, with the entry as it then is in the record.
func (s *stage) tell(h state.Transition) {
	s.t.Helper()
	s.mu.Lock()
	i := slices.IndexFunc(s.entries, func(e state.Entry) bool { return e.Event.ID == h.Entry.Event.ID })
	if i >= 0 {
		s.entries[i] = h.Entry
	} else if h.Entry.Event.ID != "" {
		s.entries = append(s.entries, h.Entry)
	}
	s.mu.Unlock()
	h.At, h.Node = time.Now(), nodeName
	if h.Plan == "" {
		h.Plan = rules.Describe(h.Entry)
	}
	s.node.OnTransition(h)
	synctest.Wait()
}

// entry is one of an event that was announced just now.
func entry(id string, kind event.Kind, phase state.Phase) state.Entry {
	return state.Entry{
		Event: event.Event{ID: id, Kind: kind, Code: "terminate", State: event.Pending}, Phase: phase,
		FirstSeen: time.Now(), Changed: time.Now(),
	}
}

// spot is the entry of a spot interruption in two minutes after the bubble's beginning.
func spot(phase state.Phase) state.Entry {
	e := entry("spot-1", event.SpotInterruption, phase)
	e.Event.Deadline = time.Date(2000, 1, 1, 0, 2, 0, 0, time.UTC)
	return e
}

func announced(e state.Entry) state.Transition {
	return state.Transition{Kind: state.Announced, Entry: e}
}

// step is what happens in the course of a step.
func step(what state.TransitionKind, action string, e state.Entry) state.Transition {
	return state.Transition{Kind: what, Entry: e, Action: action, Reason: "the reason", Took: 250 * time.Millisecond}
}

// pod is what happens to a pod in a drain.
func pod(what state.TransitionKind, name string) state.Transition {
	h := step(what, "drain", spot(state.Draining))
	h.Pod, h.PodUID = "shop/"+name, "uid-"+name
	return h
}

// posting is what an endpoint was sent.
type posting struct{ id, text string }

// hookRig is a webhook with an endpoint, on a clock that is the test's.
type hookRig struct {
	t     *testing.T
	began time.Time
	opts  notify.WebhookOptions
	hook  *notify.Webhook
	nodes map[string]*notify.WebhookNode
	about notify.Subject
	stop  func()

	mu       sync.Mutex // for these, which the webhook's goroutine uses, too
	answer   func(ctx context.Context, text string) error
	posts    []posting
	tellings []notify.DeliveryResult
}

// plainText is a template whose messages are easy to compare.
const plainText = `{{ .EventID }} {{ .Outcome }}`

func hooked(t *testing.T, test func(r *hookRig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &hookRig{t: t, began: time.Now()}
		r.up()
		r.about = notify.Subject{
			Machine: func(context.Context) notify.Machine { return notify.Machine{ID: "i-1"} },
			Node: func(context.Context) (string, map[string]string) {
				return "ip-10-0-0-1", map[string]string{"team": "web"}
			},
		}
		r.opts = notify.WebhookOptions{
			Template: compile(t, plainText), Post: r.post,
			At: []notify.Phase{notify.Announced, notify.Ended, notify.Over},
			Reported: func(t notify.DeliveryResult) {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.tellings = append(r.tellings, t)
			},
		}
		r.start()
		test(r)
		r.stop()
	})
}

func (r *hookRig) post(ctx context.Context, id, text string) error {
	r.mu.Lock()
	r.posts = append(r.posts, posting{id, text})
	answer := r.answer
	r.mu.Unlock()
	return answer(ctx, text)
}

// answers makes the endpoint answer so from now on.
func (r *hookRig) answers(answer func(ctx context.Context, text string) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

// posted returns what was posted since it was called last.
func (r *hookRig) posted() []posting {
	r.mu.Lock()
	defer r.mu.Unlock()
	posts := r.posts
	r.posts = nil
	return posts
}

// told returns all that became of notices.
func (r *hookRig) told() []notify.DeliveryResult {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.tellings)
}

// use begins another run of the webhook, with other options.
func (r *hookRig) use(change func(*notify.WebhookOptions)) {
	r.stop()
	change(&r.opts)
	r.start()
}

// useTemplate makes the messages other ones.
func (r *hookRig) useTemplate(text string) {
	r.use(func(o *notify.WebhookOptions) { o.Template = compile(r.t, text) })
}

// start begins a run of a webhook, as after a restart.
func (r *hookRig) start() {
	hook := notify.NewWebhook(r.opts)
	r.hook, r.nodes = hook, map[string]*notify.WebhookNode{}
	ctx, cancel := context.WithCancel(r.t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		hook.Run(ctx)
	}()
	r.stop = func() {
		cancel()
		<-ended
	}
}

// hear tells the webhook that something happened to the event, and lets it do what it does at once.
func (r *hookRig) hear(what state.TransitionKind, id string, change ...func(*state.Transition)) {
	h := state.Transition{Kind: what, At: time.Now(), Node: "ip-10-0-0-1", Entry: r.entry(id, state.Seen)}
	for _, c := range change {
		c(&h)
	}
	r.node(h.Node).OnTransition(h)
	synctest.Wait()
}

// node is the listener of a node. A name that is not known yet is the first node's.
func (r *hookRig) node(name string) *notify.WebhookNode {
	if name == "" {
		name = "ip-10-0-0-1"
	}
	if r.nodes[name] == nil {
		r.nodes[name] = r.hook.Node(r.about)
	}
	return r.nodes[name]
}

func (r *hookRig) entry(id string, phase state.Phase) state.Entry {
	return state.Entry{
		Event: event.Event{ID: id, Kind: event.SpotInterruption, Code: "terminate", State: event.Pending, Deadline: r.began.Add(2 * time.Minute)},
		Phase: phase, FirstSeen: r.began, Changed: r.began,
	}
}

// drain is the step that a happening belongs to, with the phase that its entry is in.
func drain(phase state.Phase) func(*state.Transition) {
	return func(h *state.Transition) { h.Action, h.Entry.Phase = "drain", phase }
}

func endsAs(ending state.Ending) func(*state.Transition) {
	return func(h *state.Transition) { h.Entry.Phase, h.Entry.Ending = state.Closed, ending }
}

// pass lets time go by.
func (r *hookRig) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// want compares what was posted since it was called last, by event.
func (r *hookRig) want(posts ...string) {
	r.t.Helper()
	var got []string
	for _, p := range r.posted() {
		got = append(got, p.text)
	}
	byEvent := func(a, b string) int { return strings.Compare(strings.Fields(a)[0], strings.Fields(b)[0]) }
	slices.SortStableFunc(got, byEvent)
	slices.SortStableFunc(posts, byEvent)
	if !slices.Equal(got, posts) {
		r.t.Errorf("posted were, by event,\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(posts, "\n\t"))
	}
}

// down makes the endpoint refuse everything.
func (r *hookRig) down() {
	r.answers(func(context.Context, string) error { return errors.New("connection refused") })
}

func (r *hookRig) up() { r.answers(func(context.Context, string) error { return nil }) }
