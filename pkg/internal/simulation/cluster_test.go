package simulation_test

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/drain"
)

// The owners of a cordon.
const (
	byNTH   = "nth"
	byAdmin = "an administrator"
	byQueue = "nth-queue"
	byOther = "another drainer" // nth has left its cordon to one
)

// cluster is the truth about the Node and its pods that they do not say themselves.
type cluster struct {
	owner      string    // whose cordon it is; "" while the node is open
	owned      time.Time // since when
	uncordoned time.Time // when an operator last lifted a cordon
	erased     bool      // and removed its annotation
	action     string    // what the annotation nth-project.github.io/action says
	actionSet  time.Time // when that changed last
	karpenter  bool      // Karpenter's taint is on the Node
	tainted    time.Time // when that changed last
	foreign    bool      // ExcludeLabel is on the Node, and nth has not set it
	gone       time.Time // since when there is no Node
	back       time.Time // when it was registered last

	returning map[string]bool      // controllers whose pods come back to a closed node
	guarded   map[string]bool      // app labels whose budget lets no pod go
	yielding  map[string]bool      // app labels whose budget lets one pod go at a time
	inVain    map[string]time.Time // when nth last asked to evict a pod that another had replaced, by app label
	annotated map[string]time.Time // when the pod's annotation changed last, by namespace/name
	failed    time.Time            // when the kubelet failed all pods

	evictions  map[string]int       // how many evictions and deletions were accepted, by controller
	firstEnded map[string]time.Time // when the first pod was evicted or deleted, by controller
	ended      map[string]time.Time // when nth first evicted or deleted the pod, by its UID
	hanging    map[string]bool      // pods that never end, by namespace/name
	volumes    int                  // how many volumes the Node reports in use
	used       time.Time            // when the first of them came into use
	patches    int                  // how many patches of the Node were accepted
	skew       time.Duration        // by how much the API server's clock is ahead of the world's
	sleeps     []sleep              // the times in which the world's clock stood still, and it did not
}

// sleep is a time for which the machine slept, and with it the world's clock.
type sleep struct {
	at   time.Time
	span time.Duration
}

// woke returns when the machine last woke; zero if it never slept.
func (c *cluster) woke() (at time.Time) {
	for _, s := range c.sleeps {
		at = s.at
	}
	return at
}

// byWorld converts a time by the API server's clock to the world's clock. All of a sleep is the moment at which it began.
func (c *cluster) byWorld(t time.Time) time.Time {
	t = t.Add(-c.skew)
	for _, s := range slices.Backward(c.sleeps) {
		if awake := t.Add(s.span); awake.Before(s.at) {
			t = awake
		} else if t.Before(s.at) {
			t = s.at
		}
	}
	return t
}

func (c *cluster) init() {
	c.returning, c.guarded, c.annotated = map[string]bool{}, map[string]bool{}, map[string]time.Time{}
	c.evictions, c.firstEnded = map[string]int{}, map[string]time.Time{}
	c.yielding, c.inVain = map[string]bool{}, map[string]time.Time{}
	c.ended, c.hanging = map[string]time.Time{}, map[string]bool{}
}

// reset forgets what was on the Node before, since another one was registered.
func (c *cluster) reset() {
	c.own("")
	c.action, c.actionSet, c.karpenter, c.foreign = "", time.Now(), false, false
	c.gone, c.back = time.Time{}, time.Now()
}

// own records whose cordon is on the Node now; "" is none.
func (c *cluster) own(by string) {
	if c.owner != by {
		c.owner, c.owned = by, time.Now()
	}
}

// admin does what an operator does with kubectl. kind is cordon, uncordon, erase, recordon, or a value of the annotation
// nth-project.github.io/action; none removes that.
func (w *world) admin(h happening) {
	if w.server.CurrentNode() == nil {
		return
	}
	switch h.kind {
	case "cordon":
		w.cordonAs("kubectl", byAdmin)
	case "uncordon":
		w.uncordonByOperator()
	case "erase": // With the annotation, nobody reads on the Node when it was cordoned.
		w.uncordonByOperator()
		w.node(func(n *corev1.Node) { delete(n.Annotations, drain.CordonAnnotation) })
		w.change(func(c *cluster) { c.erased = true })
	case "recordon":
		w.uncordonByOperator()
		w.cordonAs("kubectl", byAdmin)
	default:
		action := strings.TrimPrefix(h.kind, "none")
		w.node(func(n *corev1.Node) {
			if metav1.SetMetaDataAnnotation(&n.ObjectMeta, drain.ActionAnnotation, action); action == "" {
				delete(n.Annotations, drain.ActionAnnotation)
			}
		})
		w.change(func(c *cluster) { c.action, c.actionSet = action, time.Now() })
	}
	w.disturb(0)
}

// cordonAs cordons the node as somebody other than nth, unless it is cordoned.
func (w *world) cordonAs(manager, owner string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.server.CurrentNode().Spec.Unschedulable {
		return
	}
	w.server.CordonAs(manager)
	w.closedByOtherLocked(owner)
}

// uncordonByOperator lifts the cordon. nth must not act again for the events that wanted it, if it surely knew of them.
func (w *world) uncordonByOperator() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.server.CurrentNode().Spec.Unschedulable {
		return
	}
	known := w.cluster.owner == byNTH && w.steady(20*time.Second) && !w.cluster.leftAlone() // A node that is left alone is not watched.
	w.cluster.uncordoned, w.cluster.erased = time.Now(), false
	for _, n := range w.notices {
		n.held = false
		isSure := n.announced.After(w.ruleSet[n.kind]) && !n.deadlined.After(n.announced)
		if n.firstSeen.IsZero() { // While reads are refused, nth may see the event before it sees the uncordon.
			isSure = time.Now().After(w.refused)
		}
		switch {
		case w.over(n) || !n.vague && !w.possible(n, cordoned) && isSure: // It never wanted the cordon.
		case known && w.sure(n, cordoned) && time.Since(n.firstSeen) > 15*time.Second:
			n.lifted, n.released = time.Now(), false
		default:
			n.unsure = true // nth may have known of it or not.
		}
	}
	w.cluster.own("")
	w.server.UncordonAs("kubectl")
}

// closedByOtherLocked records that somebody other than nth has cordoned the node.
func (w *world) closedByOtherLocked(owner string) {
	w.cluster.own(owner)
	w.unseenUncordonLocked()
}

// unseenUncordonLocked lets what the last uncordon forbids nth not count any more, unless nth has surely seen that the node was open.
func (w *world) unseenUncordonLocked() {
	if time.Since(w.cluster.uncordoned) > slow {
		return
	}
	for _, n := range w.notices {
		if !n.lifted.IsZero() && n.lifted.Equal(w.cluster.uncordoned) {
			n.unsure, n.lifted = true, time.Time{}
		}
	}
}

// queue is nth-queue acting on the same Node as nth. kind is cordon or lift.
func (w *world) queue(h happening) {
	node := w.server.CurrentNode()
	if node == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case h.kind == "cordon" && !node.Spec.Unschedulable && w.cluster.action == "":
		text, _ := json.Marshal(drain.Claim{Writer: drain.Queue, Event: "queued", Kind: "spot-interruption", Since: time.Now()}) // A claim always encodes.
		w.server.ChangeNode(func(n *corev1.Node) {
			metav1.SetMetaDataAnnotation(&n.ObjectMeta, drain.CordonAnnotation, string(text))
			n.Spec.Unschedulable = true
		}, drain.Queue)
		w.closedByOtherLocked(byQueue)
	case h.kind == "lift" && w.cluster.owner == byQueue:
		w.server.ChangeNode(func(n *corev1.Node) {
			delete(n.Annotations, drain.CordonAnnotation)
			n.Spec.Unschedulable = false
		}, drain.Queue)
		w.cluster.own("")
	}
	w.disturbLocked(0)
}

// karpenter puts Karpenter's taint on the Node, or takes it off. kind is on or off.
func (w *world) karpenter(h happening) {
	w.node(func(n *corev1.Node) {
		n.Spec.Taints = nil
		if h.kind == "on" {
			n.Spec.Taints = []corev1.Taint{{Key: "karpenter.sh/disrupted", Effect: corev1.TaintEffectNoSchedule}}
		}
	})
	w.change(func(c *cluster) { c.karpenter, c.tainted = h.kind == "on", time.Now() })
}

// label sets drain.ExcludeLabel as somebody other than nth, unless the Node has it.
func (w *world) label(_ happening) {
	w.mu.Lock()
	defer w.mu.Unlock()
	node := w.server.CurrentNode()
	if node == nil || node.Labels[drain.ExcludeLabel] != "" {
		return
	}
	w.server.ChangeNode(func(n *corev1.Node) {
		metav1.SetMetaDataLabel(&n.ObjectMeta, drain.ExcludeLabel, "true")
	}, "somebody")
	w.cluster.foreign = true
	w.disturbLocked(0)
}

// removeNode deletes the Node, which leaves its pods.
func (w *world) removeNode(happening) {
	if w.server.CurrentNode() == nil {
		return
	}
	w.server.RemoveNode()
	w.change(func(c *cluster) {
		c.own("")
		c.gone, c.volumes = time.Now(), 0
		for _, n := range w.notices { // nth may have read what operators did to the Node before, or not.
			n.unsure, n.lifted = n.unsure || !n.lifted.IsZero(), time.Time{}
		}
	})
}

// registerNode has the kubelet register the Node, with another UID than before.
func (w *world) registerNode(happening) {
	if w.server.CurrentNode() != nil {
		return
	}
	w.server.RegisterNode()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cluster.reset()
	w.disturbLocked(0)
}
