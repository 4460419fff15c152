// Package rehearsal is a made-up cluster: an API server with one Node and a few pods, for "nth rehearse" on a machine that is no node.
// Newcomers start with Cluster and New.
//
// The API server answers only the requests of a drain: whose credential it is, the Node and patches of the Node, lists and watches of pods,
// evictions and deletions. The cluster simulates a kubelet, which terminates pods within their grace periods. It also simulates one disruption
// budget, which allows one disruption at a time. It is just faithful enough for a drain: pkg/drain/apitest and the lab show what a real API
// server refuses. Everything is in memory.
package rehearsal

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Node is the name of the only node.
const Node = "made-up-node"

// Cluster is the API server. It is an http.Handler, and safe for concurrent use.
type Cluster struct {
	*http.ServeMux

	mu      sync.Mutex
	node    *corev1.Node
	pods    map[string]*pod // by namespace and name
	history []change        // of the Node and its pods; the length of history is the current resource version
	changed chan struct{}   // closed and replaced at every change
	allowed int             // how many pods the disruption budget lets go now
}

// pod is a pod in the cluster. The object is replaced at every change, and never modified.
type pod struct {
	object     *corev1.Pod
	exitsAfter time.Duration // how long the pod's processes run after SIGTERM, if they are not killed before
	terminated time.Time     // when the processes got SIGTERM; zero before
	removal    *time.Timer   // removes the pod when its processes have ended; nil until the pod terminates
}

// change is an event of a watch of pods. A change of the Node, which nobody watches, is empty: it only counts as a resource version.
type change struct {
	Type   string      `json:"type"`
	Object *corev1.Pod `json:"object"`
}

// budgetApp is the label "app" of the pods that have a disruption budget, and the budget's name. An evicted pod is replaced on another node after
// budgetReplaces: then the budget allows the next disruption.
const (
	budgetApp      = "web"
	budgetReplaces = 3 * time.Second
)

// New returns a cluster with one node and a few pods as on most nodes. The node's status has the boot ID, which nth compares with the machine's.
func New(bootID string) *Cluster {
	c := &Cluster{pods: map[string]*pod{}, changed: make(chan struct{}), allowed: 1}
	c.node = &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: Node, UID: "made-up-node-uid", ResourceVersion: c.add(change{}), CreationTimestamp: metav1.Now()},
		Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			NodeInfo:   corev1.NodeSystemInfo{BootID: bootID},
		},
	}
	c.ServeMux = c.routes()
	for _, s := range samples() {
		c.pods[s.namespace+"/"+s.name] = &pod{object: s.pod(), exitsAfter: s.exitsAfter}
	}
	return c
}

// sample describes one of the pods.
type sample struct {
	namespace, name string
	controller      string        // the kind of the controller; "" is none
	grace           time.Duration // the grace period
	exitsAfter      time.Duration // how long the processes run after SIGTERM
	priorityClass   string
	app             string // the label "app", by which a disruption budget selects pods; "" is none
	emptyDir        bool
	about           string // what the pod is an example of
}

// samples lists the pods of the cluster.
func samples() []sample {
	const usual = 30 * time.Second
	return []sample{
		{namespace: "default", name: "web-1", controller: "ReplicaSet", app: "web", grace: usual, exitsAfter: 2 * time.Second, about: "of a Deployment: its budget lets one go at a time"},
		{namespace: "default", name: "web-2", controller: "ReplicaSet", app: "web", grace: usual, exitsAfter: 2 * time.Second, about: "of the same"},
		{namespace: "default", name: "cache-0", controller: "StatefulSet", grace: usual, exitsAfter: 4 * time.Second, emptyDir: true, about: "of a StatefulSet, with an emptyDir"},
		{namespace: "default", name: "deaf-1", controller: "ReplicaSet", grace: 8 * time.Second, exitsAfter: time.Hour, about: "ignores SIGTERM; grace period 8 s"},
		{namespace: "default", name: "by-hand", grace: usual, exitsAfter: time.Second, about: "without a controller"},
		{namespace: "kube-system", name: "coredns-1", controller: "ReplicaSet", priorityClass: "system-cluster-critical", grace: usual, exitsAfter: time.Second, about: "critical: goes when the others are gone"},
		{namespace: "kube-system", name: "kube-proxy-1", controller: "DaemonSet", grace: usual, exitsAfter: time.Second, about: "of a DaemonSet: stays"},
	}
}

// Describe returns a line for each pod of the cluster, for the output of "nth rehearse".
func Describe() []string {
	var lines []string
	for _, s := range samples() {
		lines = append(lines, fmt.Sprintf("%-26s%s", s.namespace+"/"+s.name, s.about))
	}
	return lines
}

// Kubeconfig returns the kubeconfig of the node's kubelet. url is where the cluster is served.
func Kubeconfig(url string) []byte {
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: made-up
contexts: [{name: made-up, context: {cluster: made-up, user: made-up}}]
clusters: [{name: made-up, cluster: {server: %q}}]
users: [{name: made-up, user: {token: made-up}}]
`, url)
}

// pod returns the sample as a running pod.
func (s sample) pod() *corev1.Pod {
	object := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.namespace, Name: s.name, UID: types.UID(s.name + "-uid"), ResourceVersion: "1",
			CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Hour)),
		},
		Spec:   corev1.PodSpec{NodeName: Node, PriorityClassName: s.priorityClass, TerminationGracePeriodSeconds: new(int64(s.grace / time.Second))},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	if s.app != "" {
		object.Labels = map[string]string{"app": s.app}
	}
	if s.controller != "" {
		object.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "apps/v1", Kind: s.controller, Name: s.name, UID: types.UID(s.name + "-owner"), Controller: new(true),
		}}
	}
	if s.emptyDir {
		object.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	}
	return object
}

// add adds a change to the history, and wakes the watches. It returns the new resource version. The caller holds c.mu.
func (c *Cluster) add(made change) (version string) {
	c.history = append(c.history, made)
	close(c.changed)
	c.changed = make(chan struct{})
	return strconv.Itoa(len(c.history))
}

// update changes a pod by edit, gives it the next resource version, and notifies the watches. kind is the type of the watch event, such as
// "MODIFIED". The caller holds c.mu.
func (c *Cluster) update(p *pod, kind string, edit func(*corev1.Pod)) {
	p.object = p.object.DeepCopy()
	edit(p.object)
	p.object.ResourceVersion = strconv.Itoa(len(c.history) + 1)
	c.add(change{kind, p.object})
}

// since returns the changes after a resource version, and a channel that is closed at the next change.
func (c *Cluster) since(version int) ([]change, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.history[min(version, len(c.history)):]), c.changed
}

// terminate sends SIGTERM to a pod's processes, so to say, and removes the pod within the grace period. A second call, such as a deletion after an
// eviction, sets a new grace period. The caller holds c.mu.
func (c *Cluster) terminate(p *pod, grace time.Duration) {
	now := time.Now()
	if p.removal == nil {
		p.terminated = now
	} else { // The new grace period replaces that of the earlier call.
		p.removal.Stop()
	}
	c.update(p, "MODIFIED", func(object *corev1.Pod) {
		object.DeletionTimestamp = new(metav1.NewTime(now.Add(grace)))
		object.DeletionGracePeriodSeconds = new(int64(grace / time.Second))
	})
	// The processes end by themselves, or are killed after the grace period. The kubelet gives a pod at least a second.
	exits, kill := p.terminated.Add(p.exitsAfter).Sub(now), max(grace, time.Second)
	p.removal = time.AfterFunc(max(min(exits, kill), 0), func() { c.remove(p) })
}

// remove removes a pod whose processes have ended, and notifies the watches. It does nothing if the pod was removed before.
func (c *Cluster) remove(p *pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	name := p.object.Namespace + "/" + p.object.Name
	if c.pods[name] == nil {
		return
	}
	delete(c.pods, name)
	c.update(p, "DELETED", func(*corev1.Pod) {})
}

// patch applies a JSON merge patch (RFC 7386) to the Node. The caller holds c.mu.
func (c *Cluster) patch(body []byte) error {
	before, err := json.Marshal(c.node)
	if err != nil {
		return fmt.Errorf("encoding the simulated Node: %w", err)
	}
	after, err := jsonpatch.MergePatch(before, body)
	if err != nil {
		return fmt.Errorf("patching the simulated Node: %w", err)
	}
	node := &corev1.Node{}
	if err := json.Unmarshal(after, node); err != nil {
		return fmt.Errorf("decoding the patched simulated Node: %w", err)
	}
	node.ResourceVersion = c.add(change{}) // Nobody watches the Node.
	c.node = node
	return nil
}
