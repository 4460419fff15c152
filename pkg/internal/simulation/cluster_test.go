package simulation_test

import (
	"encoding/json"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
)

// The owners of a cordon, besides nobody.
const (
	byNTH   = "nth"
	byAdmin = "an administrator"
	byQueue = "nth-queue"
	byOther = "whom it was left to"
)

// cluster is what is true of the Node besides what it says itself. It belongs to who has the world's lock.
type cluster struct {
	owner      string    // whose cordon it is
	owned      time.Time // since when
	uncordoned time.Time // when an operator last lifted a cordon
	action     string    // what operators ask for
	actionSet  time.Time
	karpenter  bool
	tainted    time.Time // when that changed last
	foreign    bool      // the label is somebody else's
	gone       time.Time // since when there is no Node
	back       time.Time // when it was registered last
	returning  map[string]bool
	guarded    map[string]bool
	yielding   map[string]bool // workloads whose budget lets one pod go at a time
	annotated  map[string]time.Time
	failed     time.Time // when the kubelet has failed all pods

	evictions  map[string]int       // accepted, by controller
	firstEnded map[string]time.Time // when the first was, by controller
	ended      map[string]ended     // by the pod's UID
	hanging    map[string]bool      // pods that never end
	volumes    int                  // that the node reports in use
	used       time.Time            // since when there are any
	patches    int
	skew       time.Duration // by how much the API server's clock is ahead of the world's
	sleeps     []sleep       // in which it ran on
}

// sleep is a time for which the machine slept, and with it the world's clock.
type sleep struct {
	at   time.Time
	span time.Duration
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

// ended is how nth has made a pod end.
type ended struct {
	pod   string
	at    time.Time
	grace time.Duration // that it was given first
	how   string
}

func (c *cluster) init() {
	c.returning, c.guarded, c.annotated = map[string]bool{}, map[string]bool{}, map[string]time.Time{}
	c.evictions, c.firstEnded = map[string]int{}, map[string]time.Time{}
	c.yielding = map[string]bool{}
	c.ended, c.hanging = map[string]ended{}, map[string]bool{}
}

// reset is for a Node that has been registered anew.
func (c *cluster) reset() {
	c.own("")
	c.action, c.actionSet, c.karpenter, c.foreign = "", time.Now(), false, false
	c.gone, c.back = time.Time{}, time.Now()
}

func (c *cluster) own(by string) {
	if c.owner != by {
		c.owner, c.owned = by, time.Now()
	}
}

// admin does to the Node what kubectl would: kind is cordon, uncordon, erase, recordon, or what the annotation nth-project.github.io/action is to say.
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
	case "recordon":
		w.uncordonByOperator()
		w.cordonAs("kubectl", byAdmin)
		w.mu.Lock()
		w.forgetUncordon()
		w.mu.Unlock()
	default:
		action := h.kind
		if action == "none" {
			action = ""
		}
		w.node(func(n *corev1.Node) {
			if action == "" {
				delete(n.Annotations, drain.ActionAnnotation)
				return
			}
			if n.Annotations == nil {
				n.Annotations = map[string]string{}
			}
			n.Annotations[drain.ActionAnnotation] = action
		})
		w.mu.Lock()
		w.cluster.action, w.cluster.actionSet = action, time.Now()
		w.mu.Unlock()
	}
	w.bother(0)
}

func (w *world) cordonAs(manager, owner string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.server.CurrentNode().Spec.Unschedulable {
		return
	}
	w.server.CordonAs(manager)
	w.cluster.own(owner)
}

// uncordonByOperator lifts the cordon: nth is not to act again for what wanted it.
func (w *world) uncordonByOperator() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.server.CurrentNode().Spec.Unschedulable {
		return
	}
	known := w.cluster.owner == byNTH && w.steady(20*time.Second) && !w.cluster.leave() // a node that is left alone is not watched
	w.cluster.uncordoned = time.Now()
	for _, n := range w.notices {
		n.held = false
		asWas := n.announced.After(w.ruleSet[n.kind]) && !n.deadlined.After(n.announced) // it was never due before
		switch {
		case n.over(w) || !n.vague && !w.possible(n, cordoned) && (n.seen.IsZero() || asWas):
		case known && w.sure(n, cordoned) && time.Since(n.seen) > 15*time.Second:
			n.lifted, n.released = time.Now(), false
		default:
			n.unsure = true // nth may have known of it, or not
		}
	}
	w.cluster.own("")
	w.server.UncordonAs("kubectl")
}

// forgetUncordon is for an uncordon that nth may not have seen: the node was closed again before its next look. It belongs to who has the
// lock.
func (w *world) forgetUncordon() {
	for _, n := range w.notices {
		if !n.lifted.IsZero() && n.lifted.Equal(w.cluster.uncordoned) {
			n.unsure, n.lifted = true, time.Time{}
		}
	}
}

// queue is nth-queue beside nth on the node: kind is cordon or lift.
func (w *world) queue(h happening) {
	node := w.server.CurrentNode()
	if node == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case h.kind == "cordon" && !node.Spec.Unschedulable && w.cluster.action == "":
		text, _ := json.Marshal(drain.Claim{Writer: drain.Queue, Event: "queued", Kind: "spot-interruption", Since: time.Now()}) // it always encodes
		w.server.ChangeNode(func(n *corev1.Node) {
			if n.Annotations == nil {
				n.Annotations = map[string]string{}
			}
			n.Annotations[drain.CordonAnnotation] = string(text)
			n.Spec.Unschedulable = true
		}, drain.Queue)
		w.cluster.own(byQueue)
		if time.Since(w.cluster.uncordoned) < slow {
			w.forgetUncordon()
		}
	case h.kind == "lift" && w.cluster.owner == byQueue:
		w.server.ChangeNode(func(n *corev1.Node) {
			delete(n.Annotations, drain.CordonAnnotation)
			n.Spec.Unschedulable = false
		}, drain.Queue)
		w.cluster.own("")
	}
	w.disturb(0)
}

// karpenter puts its taint on the Node, or takes it off: kind is on or off.
func (w *world) karpenter(h happening) {
	w.node(func(n *corev1.Node) {
		n.Spec.Taints = nil
		if h.kind == "on" {
			n.Spec.Taints = []corev1.Taint{{Key: "karpenter.sh/disrupted", Effect: corev1.TaintEffectNoSchedule}}
		}
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cluster.karpenter, w.cluster.tainted = h.kind == "on", time.Now()
	w.disturb(0)
}

// label sets the load balancers' label as somebody else would, unless it is there.
func (w *world) label(_ happening) {
	w.mu.Lock()
	defer w.mu.Unlock()
	node := w.server.CurrentNode()
	if node == nil || node.Labels[drain.ExcludeLabel] != "" {
		return
	}
	w.server.ChangeNode(func(n *corev1.Node) {
		if n.Labels == nil {
			n.Labels = map[string]string{}
		}
		n.Labels[drain.ExcludeLabel] = "true"
	}, "somebody")
	w.cluster.foreign = true
	w.disturb(0)
}

func (w *world) removeNode(happening) {
	if w.server.CurrentNode() == nil {
		return
	}
	w.server.RemoveNode()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cluster.own("")
	w.cluster.gone, w.cluster.volumes = time.Now(), 0
	w.disturb(0)
}

func (w *world) registerNode(happening) {
	if w.server.CurrentNode() != nil {
		return
	}
	w.server.RegisterNode()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cluster.reset()
	for _, n := range w.notices { // Nobody can tell whether nth has read what operators have done to the one before.
		n.unsure, n.lifted = n.unsure || !n.lifted.IsZero(), time.Time{}
	}
	w.disturb(0)
}
