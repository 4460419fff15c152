package fleet_test

import (
	"errors"
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/sqs"
)

// someInstance is one of many that have no Node.
func someInstance(i int) string { return fmt.Sprintf("i-%017x", i) }

// tagged is an EC2 where this cluster's Node is tagged as shop's, and the many without a Node by those names, if any.
func tagged(names ...string) *knowledge {
	ec2 := &knowledge{states: map[string]string{instance: "running"}, clusters: map[string][]string{instance: {"shop"}}}
	for i := range 600 {
		ec2.states[someInstance(i)], ec2.clusters[someInstance(i)] = "running", names
	}
	return ec2
}

// strangers has the fleet hear for ten minutes of instances that it has no Node of, one each second, and returns what became of it all.
func strangers(t *testing.T, r *rig) map[outcome]int {
	t.Helper()
	parcels := make([]parcel, 600)
	for i := range parcels {
		parcels[i] = newParcel()
		r.Take(entered(someInstance(i), "terminated", 0), 1, parcels[i])
		time.Sleep(time.Second)
	}
	time.Sleep(2 * time.Minute)
	became := map[outcome]int{}
	for i, m := range parcels {
		select {
		case now := <-m.became:
			became[now]++
		default:
			t.Errorf("nothing became of message %d", i)
		}
	}
	return became
}

func TestWhatIsAnotherClustersIsToldByItsTagsWithoutAnyListOfNodes(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		leave   bool
		cluster string
		want    map[outcome]int
	}{
		"and deleted":                          {want: map[outcome]int{{what: "done"}: 600}},
		"and left, where that is wanted":       {leave: true, want: map[outcome]int{{"returned", 2 * time.Second}: 600}},
		"also with the name from the settings": {cluster: "shop", want: map[outcome]int{{what: "done"}: 600}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.add(nodeOf("a", instance, nil))
				ec2 := tagged("till", "bakery")
				r := c.run(func(o *fleet.Options) {
					draining(o)
					o.Instances, o.LeaveUnknown, o.Cluster = ec2, row.leave, row.cluster
				})
				before, _ := c.listed()
				if became := strangers(t, r); !maps.Equal(became, row.want) {
					t.Errorf("the messages came to %+v, want %+v", became, row.want)
				}
				if lists, glances := c.listed(); lists > before || glances > 0 {
					t.Errorf("after the first, there were %d lists of all Nodes and %d of one", lists-before, glances)
				}
				if ec2.asked > 601+1 {
					t.Errorf("EC2 was asked %d times", ec2.asked)
				}
			})
		})
	}
}

// Bookmarks tell that the watch is not behind, where nothing happens to any Node.
func TestAWatchThatIsShownCurrentNeedsNoListOfAllNodes(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		numbered bool
		lists    int
		glances  int
	}{
		"it is":                   {numbered: true, lists: 1, glances: 15},
		"versions are no numbers": {lists: 9, glances: 9},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.numbered, c.nameless, c.version = row.numbered, !row.numbered, 1
				c.add(nodeOf("a", instance, nil))
				r := c.run(draining)
				// What is written elsewhere has versions, too.
				go func() {
					for range 700 {
						time.Sleep(time.Second)
						c.mu.Lock()
						c.version++
						c.mu.Unlock()
					}
				}()
				before, _ := c.listed()
				if became := strangers(t, r); became[outcome{what: "done"}] != 600 {
					t.Errorf("the messages came to %+v, want all done", became)
				}
				lists, glances := c.listed()
				if lists -= before; lists > row.lists || glances > row.glances {
					t.Errorf("in twelve minutes there were %d lists of all Nodes and %d of one, want %d and %d at most", lists, glances, row.lists, row.glances)
				}
			})
		})
	}
}

func TestANodeThatHasJoinedJustNowIsNoStranger(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		numbered bool
		catches  time.Duration // when the watch catches up; 0 is never
		want     string
	}{
		"the watch catches up at once":                      {true, time.Second, "done"},
		"it takes its time":                                 {true, 40 * time.Second, "returned"},
		"it does not":                                       {true, 0, "returned"},
		"versions are no numbers":                           {false, 0, "returned"},
		"versions are no numbers, and the watch catches up": {false, 500 * time.Millisecond, "done"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.numbered, c.nameless, c.version = row.numbered, !row.numbered, 1
				c.add(nodeOf("a", instance, nil), podOn("b", "one"))
				r := c.run(draining)
				stalled := make(chan struct{})
				c.mu.Lock()
				c.stalled = stalled
				c.mu.Unlock()
				c.join(nodeOf("b", other, nil))
				m := newParcel()
				r.Take(interruption(other, event.SpotInterruption), 1, m)
				if row.catches > 0 {
					time.AfterFunc(row.catches, func() { close(stalled) })
				}
				m.want(t, row.want)
				if evicted := c.times("evict"); (evicted == 1) != (row.want == "done") {
					t.Errorf("the message was %s, and %d pods evicted", row.want, evicted)
				}
			})
		})
	}
}

func TestWhoseAnInstanceWithoutANodeIs(t *testing.T) {
	t.Parallel()
	const mixed = "i-0aaaaaaaaaaaaaaaa"
	const done, left = "done", "returned"
	for name, row := range map[string]struct {
		names   []string // in its tags
		nodes   map[string][]string
		cluster string
		gone    bool
		err     error
		want    string // with "leave"
	}{
		"it has the tag of our Nodes":                         {names: []string{"shop"}, want: done},
		"it has that and another":                             {names: []string{"till", "shop"}, want: done},
		"it has another":                                      {names: []string{"till"}, want: left},
		"it has none":                                         {want: left},
		"EC2 does not know it any more":                       {gone: true, want: left},
		"EC2 cannot be asked":                                 {names: []string{"shop"}, err: errors.New("not permitted"), want: left},
		"it has the tag in the settings":                      {names: []string{"till"}, cluster: "till", want: done},
		"it has our Nodes' tag, and the settings say another": {names: []string{"shop"}, cluster: "slip", want: done},
		"our Nodes have no tags, and the settings none":       {names: []string{"shop"}, nodes: map[string][]string{instance: nil}, want: left},
		"our Nodes have no tags, the settings have it":        {names: []string{"shop"}, nodes: map[string][]string{instance: nil}, cluster: "shop", want: done},
		"our Nodes have two, of which it has one":             {names: []string{"till"}, nodes: map[string][]string{instance: {"shop"}, mixed: {"till"}}, want: done},
		"our Nodes have two, and it has a third":              {names: []string{"bakery"}, nodes: map[string][]string{instance: {"shop"}, mixed: {"till"}}, want: left},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, leave := range []bool{true, false} {
				bubble(t, func(t *testing.T, c *cluster) {
					c.add(nodeOf("a", instance, nil), nodeOf("b", mixed, nil))
					ec2 := &knowledge{states: map[string]string{instance: "running", mixed: "running"}, err: row.err}
					if ec2.clusters = map[string][]string{instance: {"shop"}}; row.nodes != nil {
						ec2.clusters = maps.Clone(row.nodes)
					}
					if !row.gone {
						ec2.states[other], ec2.clusters[other] = "running", row.names
					}
					r := c.run(func(o *fleet.Options) {
						draining(o)
						o.Instances, o.LeaveUnknown, o.Cluster, o.UncordonStarted = ec2, leave, row.cluster, true
					})
					for what, notices := range map[string][]sqs.Notice{
						"ends":     entered(other, "terminated", 0),
						"is taken": interruption(other, event.ASGTermination),
						"runs":     runs(other),
					} {
						want := row.want
						if !leave {
							want = done
						}
						m := newParcel()
						r.Take(notices, 1, m)
						if became := m.want(t, want); became.after > 2*time.Second {
							t.Errorf("that it %s was returned for %s", what, became.after)
						}
					}
				})
			}
		})
	}
}

// runs is the notice that an instance runs by now.
func runs(id string) []sqs.Notice {
	notices := running(time.Now())
	notices[0].Instance = id
	return notices
}

// A message that comes to the wrong reader first has two minutes, as another one.
func TestWhatIsLeftToOthersIsGivenBackAtOnceAndNotHeld(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		notices func() []sqs.Notice
		rules   policy.Action
		alone   bool // launches are not completed here, and nothing is uncordoned
	}{
		"a spot interruption":              {notices: func() []sqs.Notice { return interruption(other, event.SpotInterruption) }},
		"one that is ignored here":         {notices: func() []sqs.Notice { return interruption(other, event.SpotInterruption) }, rules: policy.Ignore},
		"that it runs":                     {notices: func() []sqs.Notice { return runs(other) }},
		"that it runs, not minded here":    {notices: func() []sqs.Notice { return runs(other) }, alone: true},
		"its launch":                       {notices: func() []sqs.Notice { return atHook(sqs.Launch, other) }},
		"its launch, not completed here":   {notices: func() []sqs.Notice { return atHook(sqs.Launch, other) }, alone: true},
		"its termination at a hook":        {notices: func() []sqs.Notice { return atHook(sqs.Interruption, other) }},
		"its termination, that is ignored": {notices: func() []sqs.Notice { return atHook(sqs.Interruption, other) }, rules: policy.Ignore},
	} {
		for whose, ec2 := range map[string]fleet.Instances{
			"another cluster's": &knowledge{states: map[string]string{other: "running"}, clusters: map[string][]string{instance: {"shop"}, other: {"till"}}},
			"anybody's":         &knowledge{states: map[string]string{other: "running"}, clusters: map[string][]string{instance: {"shop"}}},
			"of no EC2":         nil,
		} {
			t.Run(name+", "+whose, func(t *testing.T) {
				t.Parallel()
				bubble(t, func(t *testing.T, c *cluster) {
					c.add(nodeOf("a", instance, nil))
					group := &waiting{}
					r := c.run(func(o *fleet.Options) {
						draining(o)
						o.LeaveUnknown, o.Hooks, o.CompleteLaunches, o.UncordonStarted = true, group, !row.alone, !row.alone
						if o.Instances = ec2; row.rules != "" {
							o.Policy = policy.Settings{event.SpotInterruption: {Action: row.rules}, event.ASGTermination: {Action: row.rules}}
						}
					})
					m, began := newParcel(), time.Now()
					r.Take(row.notices(), 1, m)
					if became := m.want(t, "returned"); became.after > 2*time.Second || time.Since(began) > time.Second {
						t.Errorf("after %s it was returned for %s", time.Since(began), became.after)
					}
					if group.holding() > 0 || len(group.heard()) > 0 {
						t.Errorf("%d hooks are held, and completed: %q", group.holding(), group.heard())
					}
				})
			})
		}
	}
}

func TestALaunchIsWaitedForWhereItMayBeOurs(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		ec2   *knowledge
		leave bool
		want  int // completions
	}{
		"it has our tag":               {&knowledge{clusters: map[string][]string{instance: {"shop"}, other: {"shop"}}}, true, 1},
		"its group has a Node here":    {&knowledge{groups: map[string][]string{"workers": {instance, other}}}, true, 1},
		"it has another's":             {&knowledge{clusters: map[string][]string{instance: {"shop"}, other: {"till"}}}, false, 0},
		"nobody can say, and it stays": {&knowledge{err: errors.New("not permitted")}, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.add(nodeOf("a", instance, nil))
				group := &waiting{}
				r := c.run(func(o *fleet.Options) {
					draining(o)
					o.LeaveUnknown, o.Hooks, o.CompleteLaunches, o.Instances = row.leave, group, true, row.ec2
				})
				m := newParcel()
				r.Take(atHook(sqs.Launch, other), 1, m)
				time.Sleep(10 * time.Minute)
				c.join(nodeOf("b", other, nil))
				m.want(t, "done")
				if got := len(group.heard()); got != row.want {
					t.Errorf("%d launches were completed, want %d", got, row.want)
				}
			})
		})
	}
}

func TestANodeOfFargateHidesNoInstanceOfOurs(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		fargate := nodeOf("fargate-ip-10-0-0-1.eu-central-1.compute.internal", "", nil)
		fargate.Spec.ProviderID = "aws:///eu-central-1a/4f1dcb3bd5-0a1b2c3d/" + fargate.Name
		c.add(nodeOf("a", instance, nil), fargate)
		group := &waiting{}
		r := c.run(func(o *fleet.Options) {
			draining(o)
			o.Hooks, o.Instances = group, &knowledge{clusters: map[string][]string{instance: {"shop"}, other: {"shop"}}}
		})
		m := newParcel()
		r.Take(timeless(other), 1, m)
		m.want(t, "done")
		if got := len(group.heard()); got != 1 {
			t.Errorf("%d terminations were completed, want that of an instance without a Node", got)
		}
	})
}

// K3s and others make up provider IDs of their own.
func TestANodeThatDoesNotTellItsInstanceIsFoundByItsNameForWhateverIsTold(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		n := nodeOf("ip-10-0-0-1.internal", "", nil)
		n.Spec.ProviderID, n.Status.Conditions[0].Status = "k3s://"+n.Name, corev1.ConditionFalse
		c.add(n, podOn(n.Name, "one"))
		group := &waiting{}
		r := c.run(func(o *fleet.Options) {
			draining(o)
			o.Hooks, o.CompleteLaunches, o.UncordonStarted = group, true, true
			o.Instances = &knowledge{states: map[string]string{instance: "running"}, dns: map[string]string{instance: n.Name}, managed: map[string]bool{instance: true}}
		})
		launched := newParcel()
		r.Take(atHook(sqs.Launch, instance), 1, launched)
		time.Sleep(time.Minute)
		c.change(n.Name, func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue })
		launched.want(t, "done")
		if got := len(group.heard()); got != 1 {
			t.Errorf("%d launches were completed", got)
		}
		stopped := newParcel()
		r.Take(entered(instance, "stopping", 0), 1, stopped)
		stopped.want(t, "done")
		synctest.Wait()
		if !c.node(n.Name).Spec.Unschedulable {
			t.Fatal("it was not cordoned")
		}
		time.Sleep(time.Minute)
		again := newParcel()
		r.Take(running(time.Now()), 1, again)
		again.want(t, "done")
		synctest.Wait()
		if c.node(n.Name).Spec.Unschedulable {
			t.Error("it is still cordoned")
		}
	})
}

// An instance that is known to be ours, and that joins in time, is drained.
func TestASpotInstanceOfOursThatHasNotJoinedYetIsWaitedForInTheQueue(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance, nil), podOn("b", "one"))
		ec2 := &knowledge{clusters: map[string][]string{instance: {"shop"}, other: {"shop"}}}
		r := c.run(func(o *fleet.Options) { draining(o); o.Instances = ec2 })
		notices := interruption(other, event.SpotInterruption)
		time.AfterFunc(30*time.Second, func() { c.join(nodeOf("b", other, nil)) })
		receives := 0
		for {
			m := newParcel()
			receives++
			r.Take(notices, receives, m)
			became := <-m.became
			if became.what == "done" {
				break
			}
			time.Sleep(became.after)
		}
		if c.times("evict") != 1 {
			t.Errorf("after %d receipts it was done, with %d pods evicted", receives, c.times("evict"))
		}
	})
}

func TestEC2IsNotAskedAgainAndAgainWhatItRefusesToSay(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance, nil))
		ec2 := &knowledge{err: errors.New("not permitted")}
		r := c.run(func(o *fleet.Options) { draining(o); o.Instances = ec2 })
		if became := strangers(t, r); became[outcome{what: "done"}] != 600 {
			t.Errorf("the messages came to %+v, want all done", became)
		}
		if ec2.asked > 25 {
			t.Errorf("in ten minutes it was asked %d times", ec2.asked)
		}
	})
}
