package drain

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DryRun is a Node that is only looked at: its methods tell what would be done and write nothing.
type DryRun struct{ *Node }

// NewDryRun returns the looked-at twin of a node.
func NewDryRun(n *Node) *DryRun { return &DryRun{n} }

// Guard returns a guard that tells what would be done, as if all went well at once, and stands then.
func (d *DryRun) Guard(goal Goal, tell func(Progress)) Guard {
	return &dryGuard{node: d.Node, tell: tell, goal: goal, adjusted: make(chan struct{}, 1)}
}

type dryGuard struct {
	node     *Node
	tell     func(Progress)
	adjusted chan struct{}

	mu     sync.Mutex
	goal   Goal
	result Result
}

// Adjust implements Guard.
func (g *dryGuard) Adjust(goal Goal) {
	g.mu.Lock()
	g.goal = goal
	g.mu.Unlock()
	nudge(g.adjusted)
}

// Result implements Guard.
func (g *dryGuard) Result() Result {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.result
}

// Run implements Guard.
func (g *dryGuard) Run(ctx context.Context) {
	var pause time.Duration
	told, evicted, trouble := false, false, ""
	for more := true; more; more = Await(ctx, g.adjusted, pause) {
		g.mu.Lock()
		goal := g.goal
		g.mu.Unlock()
		told = told && (evicted || !goal.Evict) // What a drain would do is told when it comes to one.
		var news []Progress
		err := retry(ctx, func(ctx context.Context) (err error) {
			news, err = g.look(ctx, goal)
			return err
		})
		if pause = forever; err != nil {
			pause = lookEvery
		}
		if err != nil && ctx.Err() == nil && !Alike(err.Error(), trouble) {
			trouble = err.Error()
			g.tell(Progress{What: Unclosable, Goal: goal.Number, State: State{Trouble: trouble}, Detail: trouble})
		}
		if told && err == nil { // It is the state under the new goal that counts.
			g.tell(Progress{What: Standing, Goal: goal.Number, State: news[0].State})
		}
		for _, p := range news {
			if p.What == Drained || !told {
				g.tell(p)
			}
		}
		if err == nil {
			told, evicted = true, evicted || goal.Evict
		}
	}
}

// look tells what would be done. Left stays empty, as if all had gone.
func (g *dryGuard) look(ctx context.Context, goal Goal) ([]Progress, error) {
	node, err := g.node.get(ctx, false)
	gone := apierrors.IsNotFound(err) && goal.NodeSeen
	result, state := Result{NodeGone: gone}, State{Closed: true, Ours: true, Seen: err == nil || gone, Drained: goal.Evict, Looked: true}
	if result.NodeGone {
		return g.done(result, []Progress{{What: Drained, Goal: goal.Number, State: state}}), nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading node %q: %w", g.node.name, err)
	}
	ordered := g.node.ordered(node, goal, memory{})
	result.Cordon, result.Limited = g.node.cordonOf(node, goal, memory{}, ordered), onlyCordon(node)
	state.Ours = result.Cordon == CordonNone || result.Cordon == CordonOurs
	state.Closed = state.Ours || result.Cordon == CordonForeign
	state.Left, state.Limited = result.Cordon == CordonLeft, result.Limited
	state.Drained = state.Drained && !result.Limited
	found := result.Cordon.progress()
	found.Goal, found.State = goal.Number, state
	if result.Cordon == CordonLifted {
		found.Events = goal.Events
	}
	news := []Progress{found}
	if !goal.Evict || result.Limited {
		return g.done(result, news), nil
	}
	pods, err := g.node.listPods(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing the pods of node %q: %w", g.node.name, err)
	}
	all, stay := len(pods.Items), g.stay(node, goal, result.Cordon)
	left := slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return stay(&p) })
	result.Evicted, result.Skipped = len(left), all-len(left)
	for i := range left {
		evicted := aboutPod(Evicted, &left[i], "")
		evicted.Goal, evicted.State, evicted.Total = goal.Number, state, len(left)
		news = append(news, evicted)
	}
	return g.done(result, append(news, Progress{What: Drained, Goal: goal.Number, State: state, Total: result.Evicted})), nil
}

// stay returns what tells which pods would stay on a Node that was found so.
func (g *dryGuard) stay(node *corev1.Node, goal Goal, found CordonResult) func(*corev1.Pod) bool {
	deadline, since := !goal.Hard.IsZero() || !goal.Soft.IsZero(), goal.Reopened
	if since.IsZero() && found == CordonLifted {
		since = g.node.viewOf(node, found).since
	}
	return func(pod *corev1.Pod) bool {
		return !g.node.opts.concerns(pod) || stays(pod, deadline) || cameAfter(pod, since)
	}
}

func (g *dryGuard) done(result Result, news []Progress) []Progress {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.result = result
	return news
}

// Uncordon tells whether there is a cordon of ours to lift.
func (d *DryRun) Uncordon(ctx context.Context, _ func(string) bool) (result UncordonResult, err error) {
	err = retry(ctx, func(ctx context.Context) error {
		node, err := d.get(ctx, false)
		if result = UncordonNodeGone; err == nil {
			result = d.uncordonOf(node)
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("reading node %q: %w", d.name, err)
	}
	return result, nil
}
