package fleet_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/sqs"
)

// waiting is Auto Scaling, with lifecycle actions that wait.
type waiting struct {
	mu        sync.Mutex
	completed []string
	// outcomes are those that the completions were for.
	outcomes []event.Outcome
	held     int
	// loses tells that no group keeps a machine whose time is over.
	loses bool
	// before is called at the beginning of a completion.
	before func()
}

// Hold implements fleet.Hooks.
func (w *waiting) Hold(ctx context.Context, _ string, _ sqs.Hook, _ time.Time) {
	w.count(1)
	<-ctx.Done()
	w.count(-1)
}

func (w *waiting) count(by int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held += by
}

// holding is how many hooks are held now.
func (w *waiting) holding() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.held
}

// Complete implements fleet.Hooks.
func (w *waiting) Complete(_ context.Context, instance string, hook sqs.Hook, _ time.Time, outcome event.Outcome) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.before != nil {
		w.before()
	}
	w.completed, w.outcomes = append(w.completed, hook.Group+" "+instance), append(w.outcomes, outcome)
	return nil
}

// Loses implements fleet.Hooks.
func (w *waiting) Loses(context.Context, string, sqs.Hook) (bool, error) { return w.loses, nil }

func (w *waiting) heard() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.completed)
}

// atHook is the notice of a group that waits for an instance.
func atHook(about sqs.Subject, id string) []sqs.Notice {
	n := sqs.Notice{About: about, Instance: id, Hook: &sqs.Hook{Group: "workers", Name: "hook", Token: "token", Launch: about == sqs.Launch}}
	if about == sqs.Interruption {
		n.Event = interruption(id, event.ASGTermination)[0].Event
	}
	return []sqs.Notice{n}
}

const other = "i-0fedcba9876543210"

func TestAGroupWaitsForNoNodeThatOurClusterDoesNotHave(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		ec2    *knowledge
		change func(*fleet.Options)
		about  sqs.Subject
		hidden bool // there is a Node that does not tell its instance
		became outcome
		heard  bool
	}{
		"another of the group is a Node here": {
			ec2: &knowledge{groups: map[string][]string{"workers": {instance, other}}}, became: outcome{what: "done"}, heard: true,
		},
		"none of the group is a Node here": {
			ec2: &knowledge{groups: map[string][]string{"workers": {instance}}}, became: outcome{what: "done"},
		},
		"nothing is known of the group": {ec2: &knowledge{}, became: outcome{what: "done"}},
		"another is a Node here, of a queue of several clusters": {
			ec2:    &knowledge{groups: map[string][]string{"workers": {instance, other}}},
			change: func(o *fleet.Options) { o.LeaveUnknown = true }, became: outcome{what: "done"}, heard: true,
		},
		"none is a Node here, of a queue of several clusters": {
			ec2:    &knowledge{groups: map[string][]string{"workers": {instance}}},
			change: func(o *fleet.Options) { o.LeaveUnknown = true }, became: outcome{"returned", 2 * time.Second},
		},
		"it has the tag of this cluster alone": {
			ec2:    &knowledge{states: map[string]string{instance: "running"}, managed: map[string]bool{instance: true}},
			change: func(o *fleet.Options) { o.ManagedOnly, o.OwnTag = true, true }, became: outcome{what: "done"}, heard: true,
		},
		"it has a tag that several clusters may have": {
			ec2:    &knowledge{states: map[string]string{instance: "running"}, managed: map[string]bool{instance: true}},
			change: func(o *fleet.Options) { o.ManagedOnly = true }, became: outcome{what: "done"},
		},
		"it has the tag, and a Node that does not tell its instance may be its": {
			ec2:    &knowledge{states: map[string]string{instance: "running"}, managed: map[string]bool{instance: true}},
			change: func(o *fleet.Options) { o.ManagedOnly, o.OwnTag = true, true }, hidden: true, became: outcome{what: "done"},
		},
		"it lacks the tag, and another of the group is a Node here": {
			ec2:    &knowledge{states: map[string]string{instance: "running"}, groups: map[string][]string{"workers": {instance, other}}},
			change: func(o *fleet.Options) { o.ManagedOnly, o.OwnTag = true, true }, became: outcome{what: "done"},
		},
		"EC2 cannot be asked": {
			ec2: &knowledge{groups: map[string][]string{"workers": {instance, other}}, err: errors.New("not now")}, became: outcome{"returned", 2 * time.Second},
		},
		"nothing is written": {
			ec2:    &knowledge{groups: map[string][]string{"workers": {instance, other}}},
			change: func(o *fleet.Options) { o.DryRun = true }, became: outcome{what: "done"},
		},
		"a launch whose node never comes": {
			ec2:    &knowledge{groups: map[string][]string{"workers": {instance, other}}},
			change: func(o *fleet.Options) { o.CompleteLaunches = true }, about: sqs.Launch, became: outcome{what: "done"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.add(nodeOf("b", other, nil))
				if row.hidden {
					c.add(&corev1.Node{ObjectMeta: nodeOf("c", "", nil).ObjectMeta})
				}
				m, group := newParcel(), &waiting{}
				group.before = func() {
					if len(m.became) > 0 {
						t.Error("the message was done before the group had heard")
					}
				}
				r := c.run(func(o *fleet.Options) {
					draining(o)
					o.Hooks, o.Instances = group, row.ec2
					if row.change != nil {
						row.change(o)
					}
				})
				about := row.about
				if about == "" {
					about = sqs.Interruption
				}
				r.Take(atHook(about, instance), 1, m)
				time.Sleep(31 * time.Minute) // A launch is waited for that long, in the bubble.
				if became := m.want(t, row.became.what); became != row.became {
					t.Errorf("the message was %+v, want %+v", became, row.became)
				}
				if heard := len(group.heard()) == 1; heard != row.heard || len(group.heard()) > 1 {
					t.Errorf("the group has heard %q, want it to: %t", group.heard(), row.heard)
				}
				c.untouched("b")
			})
		})
	}
}

// The watch may be behind what the API server knows.
func TestAGroupWaitsForANodeThatHasJustCome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		group := &waiting{}
		r := newRig(t, func(o *fleet.Options) {
			draining(o)
			o.Hooks, o.Instances = group, &knowledge{groups: map[string][]string{"workers": {instance, other}}}
		}, nodeOf("b", other, nil))
		if _, err := r.client.CoreV1().Nodes().Create(t.Context(), nodeOf("a", instance, nil), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		m := newParcel()
		r.Take(atHook(sqs.Interruption, instance), 1, m)
		m.want(t, "returned")
		if heard := group.heard(); len(heard) > 0 {
			t.Errorf("the group has heard %q", heard)
		}
	})
}
