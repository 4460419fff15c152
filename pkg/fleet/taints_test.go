package fleet_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/sqs"
)

// tainting drains for everything, and puts taints on the nodes.
func tainting(t fleet.Taints) func(*fleet.Options) {
	return func(o *fleet.Options) {
		draining(o)
		o.Taints = t
	}
}

// byKind taints by the kinds of events.
var byKind = fleet.Taints{Kinds: true, Effect: corev1.TaintEffectNoSchedule}

// taintsOf are a node's taints in the words of kubectl.
func (c *cluster) taintsOf(name string) []string {
	var all []string
	for _, t := range c.node(name).Spec.Taints {
		all = append(all, strings.TrimPrefix(t.ToString(), "aws-node-termination-handler/"))
	}
	return all
}

// stopTime is a notice that an instance is in a state, and whether EC2 says so of one that does not run any more.
func stopTime(known bool) sqs.Notice {
	n := interruption(instance, event.StateChange)[0]
	n.Stopped = known
	return n
}

func TestTheTaintsThatANodeGets(t *testing.T) {
	t.Parallel()
	kind := func(k event.Kind) sqs.Notice { return interruption(instance, k)[0] }
	long := kind(event.SpotInterruption)
	long.Event.ID = strings.Repeat("x", 70)
	for name, row := range map[string]struct {
		taints fleet.Taints
		notice sqs.Notice
		change func(*fleet.Options)
		there  []corev1.Taint
		want   []string
	}{
		"none without a setting":  {notice: kind(event.SpotInterruption)},
		"a spot interruption":     {taints: byKind, notice: kind(event.SpotInterruption), want: []string{"spot-itn=spot-interruption-" + instance + ":NoSchedule"}},
		"a scheduled maintenance": {taints: byKind, notice: kind(event.ScheduledMaintenance), want: []string{"scheduled-maintenance=scheduled-maintenance-" + instance + ":NoSchedule"}},
		"a termination by its group": {
			taints: byKind, notice: kind(event.ASGTermination), want: []string{"asg-lifecycle-termination=asg-termination-" + instance + ":NoSchedule"},
		},
		"a rebalance recommendation": {
			taints: byKind, notice: kind(event.RebalanceRecommendation),
			want: []string{"rebalance-recommendation=rebalance-recommendation-" + instance + ":NoSchedule"},
		},
		"a state has none of its own":     {taints: byKind, notice: stopTime(true)},
		"a reservation has none, neither": {taints: byKind, notice: kind(event.ReservationEnd)},
		"the effect is as it is set": {
			taints: fleet.Taints{Kinds: true, Effect: corev1.TaintEffectPreferNoSchedule}, notice: kind(event.SpotInterruption),
			want: []string{"spot-itn=spot-interruption-" + instance + ":PreferNoSchedule"},
		},
		"a value is as long as it may be":      {taints: byKind, notice: long, want: []string{"spot-itn=" + strings.Repeat("x", 63) + ":NoSchedule"}},
		"it is known to have stopped":          {taints: fleet.Taints{OutOfService: true}, notice: stopTime(true), want: []string{"node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"}},
		"it is only stopping":                  {taints: fleet.Taints{OutOfService: true}, notice: stopTime(false)},
		"it is taken, and runs for some time":  {taints: fleet.Taints{OutOfService: true}, notice: kind(event.SpotInterruption)},
		"it has stopped and nobody wants that": {taints: byKind, notice: stopTime(true)},
		"those that are there stay, and none comes twice": {
			taints: byKind, notice: kind(event.SpotInterruption),
			there: []corev1.Taint{{Key: "theirs", Effect: corev1.TaintEffectNoSchedule}, {Key: "aws-node-termination-handler/spot-itn", Value: "before", Effect: corev1.TaintEffectNoSchedule}},
			want:  []string{"theirs:NoSchedule", "spot-itn=before:NoSchedule"},
		},
		"none for what is only told": {
			taints: byKind, notice: kind(event.SpotInterruption),
			change: func(o *fleet.Options) { o.Policy[event.SpotInterruption] = policy.Rule{Action: policy.Notify} },
		},
		"none in a dry run": {taints: byKind, notice: kind(event.SpotInterruption), change: func(o *fleet.Options) { o.DryRun = true }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				n := nodeOf("a", instance, nil)
				n.Spec.Taints = row.there
				c.add(n)
				m := newParcel()
				r := c.run(func(o *fleet.Options) {
					tainting(row.taints)(o)
					if row.change != nil {
						row.change(o)
					}
				})
				r.Take([]sqs.Notice{row.notice}, 1, m)
				m.want(t, "done")
				synctest.Wait()
				if got := c.taintsOf("a"); !slices.Equal(got, row.want) {
					t.Errorf("the taints are %q, want %q", got, row.want)
				}
			})
		})
	}
}

func TestAnEventThatComesDuringADrainBringsItsTaintAtOnce(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.ending = 20 * time.Second
		c.add(nodeOf("a", instance, nil), podOn("a", "one"))
		r := c.run(tainting(byKind))
		first, second := newParcel(), newParcel()
		r.Take(interruption(instance, event.RebalanceRecommendation), 1, first)
		eventually(t, "the pod is evicted", func() bool { return c.times("evict") == 1 })
		r.Take(interruption(instance, event.SpotInterruption), 1, second)
		synctest.Wait()
		if got := c.taintsOf("a"); len(got) != 2 || len(second.became) > 0 {
			t.Errorf("during the drain the taints are %q, want one of each kind", got)
		}
		first.want(t, "done")
		second.want(t, "done")
	})
}

func TestATaintIsTriedAgainWhereSomebodyHasChangedTheNodeMeanwhile(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance, nil))
		c.before("taint", func(times int) error {
			if times <= 3 {
				c.change("a", func(n *corev1.Node) {
					n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "theirs", Value: string('0' + rune(times)), Effect: corev1.TaintEffectNoSchedule})
				})
			}
			return nil
		})
		m := newParcel()
		c.run(tainting(byKind)).Take(interruption(instance, event.SpotInterruption), 1, m)
		m.want(t, "done")
		synctest.Wait()
		want := []string{"theirs=1:NoSchedule", "theirs=2:NoSchedule", "theirs=3:NoSchedule", "spot-itn=spot-interruption-" + instance + ":NoSchedule"}
		if got := c.taintsOf("a"); !slices.Equal(got, want) {
			t.Errorf("the taints are %q, want %q", got, want)
		}
	})
}

func TestATaintThatDoesNotGetThroughHoldsNoDrainUp(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(int) error{
		"it is refused": forbidden,
		"it hangs":      func(int) error { time.Sleep(time.Minute); return apierrors.NewServiceUnavailable("not now") },
		"others always come first": func(int) error {
			return apierrors.NewConflict(corev1.Resource("nodes"), "a", nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.add(nodeOf("a", instance, nil), podOn("a", "one"))
				c.before("taint", answer)
				began := time.Now()
				m := newParcel()
				c.run(tainting(byKind)).Take(interruption(instance, event.SpotInterruption), 1, m)
				m.want(t, "done")
				if took := time.Since(began); took >= 2*c.ending {
					t.Errorf("the drain took %s", took)
				}
				if c.times("evict") != 1 || c.times("taint") == 0 || len(c.taintsOf("a")) > 0 {
					t.Errorf("%d pods were evicted, and the taints are %q after %d requests", c.times("evict"), c.taintsOf("a"), c.times("taint"))
				}
				eventually(t, "the claim has ended", func() bool { return c.holder("a") == "" })
			})
		})
	}
}

// running is a notice that an instance runs, as of that time.
func running(at time.Time) []sqs.Notice {
	return []sqs.Notice{{About: sqs.Running, Instance: instance, Event: event.Event{ID: "runs", Kind: event.StateChange, Noticed: at}}}
}

func TestAnInstanceThatRunsAgainLosesWhatNTHHasPutOnItsNode(t *testing.T) {
	t.Parallel()
	ours := []corev1.Taint{
		{Key: "aws-node-termination-handler/asg-lifecycle-termination", Value: "x", Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute},
	}
	both := fleet.Taints{Kinds: true, Effect: corev1.TaintEffectNoSchedule, OutOfService: true}
	for name, row := range map[string]struct {
		taints  fleet.Taints
		noticed time.Duration
		change  func(*fleet.Options)
		want    []string
		cordon  bool
	}{
		"all that is ours": {taints: both, noticed: time.Minute, want: []string{"theirs:NoSchedule"}},
		"only what the settings put there": {
			taints: byKind, noticed: time.Minute, want: []string{"theirs:NoSchedule", "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"},
		},
		"nothing if the cordon is of later": {taints: both, noticed: -time.Minute, want: []string{
			"theirs:NoSchedule", "asg-lifecycle-termination=x:NoSchedule", "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
		}, cordon: true},
		"nothing if nobody wants that": {taints: both, noticed: time.Minute, change: func(o *fleet.Options) { o.UncordonStarted = false }, want: []string{
			"theirs:NoSchedule", "asg-lifecycle-termination=x:NoSchedule", "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
		}, cordon: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				text, err := json.Marshal(drain.Claim{Event: "before", Kind: string(event.StateChange), Since: time.Now().UTC()})
				if err != nil {
					t.Fatal(err)
				}
				n := nodeOf("a", instance, map[string]string{drain.CordonAnnotation: string(text)})
				n.Spec.Unschedulable = true
				n.Spec.Taints = append([]corev1.Taint{{Key: "theirs", Effect: corev1.TaintEffectNoSchedule}}, ours...)
				c.add(n)
				r := c.run(func(o *fleet.Options) {
					tainting(row.taints)(o)
					o.UncordonStarted = true
					if row.change != nil {
						row.change(o)
					}
				})
				m := newParcel()
				r.Take(running(time.Now().Add(row.noticed)), 1, m)
				m.want(t, "done")
				if got := c.taintsOf("a"); !slices.Equal(got, row.want) || c.node("a").Spec.Unschedulable != row.cordon {
					t.Errorf("the taints are %q, want %q; cordoned: %t", got, row.want, c.node("a").Spec.Unschedulable)
				}
			})
		})
	}
}

func TestTaintsThatCannotBeTakenOffAreTriedAgainWithTheMessage(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		text, err := json.Marshal(drain.Claim{Event: "before", Since: time.Now().UTC()})
		if err != nil {
			t.Fatal(err)
		}
		n := nodeOf("a", instance, map[string]string{drain.CordonAnnotation: string(text)})
		n.Spec.Unschedulable = true
		n.Spec.Taints = []corev1.Taint{{Key: "aws-node-termination-handler/spot-itn", Effect: corev1.TaintEffectNoSchedule}}
		c.add(n)
		c.before("taint", forbidden)
		r := c.run(func(o *fleet.Options) {
			tainting(byKind)(o)
			o.UncordonStarted = true
		})
		first, again := newParcel(), newParcel()
		r.Take(running(time.Now().Add(time.Minute)), 1, first)
		first.want(t, "returned")
		c.before("taint", nil)
		r.Take(running(time.Now().Add(time.Minute)), 2, again)
		again.want(t, "done")
		if got := c.taintsOf("a"); len(got) > 0 {
			t.Errorf("the taints are %q, want none", got)
		}
	})
}

// The taints of a node are taken off together.
func TestATaintStaysWhoseEventStandsWhenMaintenanceIsCalledOff(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.booted()
		c.before("evict", held)
		stop := at("instance-stop", 100*time.Minute)
		s := (&schedule{}).say(instance, stop)
		r := c.run(func(o *fleet.Options) {
			within(s)(o)
			o.Taints = fleet.Taints{Kinds: true, Effect: corev1.TaintEffectNoSchedule}
		})
		time.Sleep(time.Minute)
		r.Take([]sqs.Notice{{About: sqs.Interruption, Instance: instance, Event: event.Event{
			ID: "termination", Kind: event.ASGTermination, State: event.Pending, Code: "Terminated",
		}}}, 1, newParcel())
		time.Sleep(time.Minute)
		has := func(key string) bool {
			return slices.ContainsFunc(c.node("a").Spec.Taints, func(t corev1.Taint) bool { return strings.HasSuffix(t.Key, key) })
		}
		if !has("scheduled-maintenance") || !has("asg-lifecycle-termination") {
			t.Fatalf("its taints are %v", c.node("a").Spec.Taints)
		}
		s.say(instance, canceled(stop))
		time.Sleep(2 * time.Minute)
		if has("scheduled-maintenance") || !has("asg-lifecycle-termination") {
			t.Errorf("its taints are %v", c.node("a").Spec.Taints)
		}
	})
}
