package drain_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/evict"
	"github.com/nth-project/nth/pkg/loop"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/wait"
)

func TestLoadBalancers(t *testing.T) {
	t.Parallel()
	run(t, "a delay is an hour long", func(t *testing.T, s *apitest.Server) {
		s.AddPod(pod("a"), 0)
		began := time.Now()
		r := beginWithin(t, s, drain.Options{LoadBalancerWait: time.Hour}, false, 2*time.Hour)
		r.await(state.PodsFound)
		if reported := r.of(state.EvictionsDelayed); len(reported) != 1 || reported[0].Detail != "1h0m0s" {
			t.Errorf("reported %+v", reported)
		}
		if !s.CurrentNode().Spec.Unschedulable {
			t.Error("the node is not cordoned while evictions are held back")
		}
		r.succeed()
		if after := s.Requests("evict")[0].At.Sub(began); after != time.Hour {
			t.Errorf("evicted after %s", after)
		}
	})
	// What was held for one event is not for the next one: the node was open in between.
	run(t, "the wait ends with its drain", func(t *testing.T, s *apitest.Server) {
		s.AddPod(pod("a"), 0)
		b := &blocker{takes: time.Hour, left: draining}
		r := begin(t, s, drain.Options{LoadBalancers: b, ExcludeFromLoadBalancers: true})
		r.await(state.TargetsLeft)
		r.adjust(func(g *drain.Goal) { g.Evict = false })
		r.await(state.TargetsOut)
		if asked := b.inquiries(); len(asked) != 1 || asked[0].ended.IsZero() {
			t.Errorf("asked %+v", asked)
		}
		r.adjust(func(g *drain.Goal) { g.Evict = true })
		r.succeed()
	})
}

// blocker is what evictions wait for, scripts or load balancers: it is done after a time, or at once where it is asked again.
type blocker struct {
	takes  time.Duration
	err    error           // what it comes to then
	deaf   bool            // it waits on though nobody does any more
	left   string          // what it misses until then
	server *apitest.Server // which has the node; nil where it does not matter if that is closed

	mu    sync.Mutex
	asked []inquiry
}

// inquiry is one time that it was asked.
type inquiry struct {
	labeled, closed bool // the node was
	ended           time.Time
}

func (b *blocker) Wait(ctx context.Context, node wait.Node, tell func(string)) error {
	b.mu.Lock()
	number, err, takes := len(b.asked), b.err, b.takes
	closed := b.server != nil && b.server.CurrentNode().Spec.Unschedulable
	b.asked = append(b.asked, inquiry{labeled: node.Labeled, closed: closed})
	b.mu.Unlock()
	if number > 0 {
		takes = 0
	}
	if takes > 0 && b.left != "" {
		tell(b.left)
	}
	if b.deaf {
		time.Sleep(takes)
	} else if !loop.Await(ctx, nil, takes) {
		err = ctx.Err()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked[number].ended = time.Now()
	return err
}

func (b *blocker) inquiries() []inquiry {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.asked)
}

func TestScripts_DelayEvictions(t *testing.T) {
	t.Parallel()
	const late = "the wait has taken too long"
	for name, c := range map[string]struct {
		scripts    *blocker
		wait       time.Duration
		evictAfter time.Duration
		limit      time.Duration // hard; 0 is no deadline
		want       time.Duration
		reported   string
	}{
		"that take no time":                        {&blocker{}, time.Minute, 0, 0, 0, ""},
		"that take ten seconds":                    {&blocker{takes: 10 * time.Second}, time.Minute, 0, 0, 10 * time.Second, ""},
		"that fail":                                {&blocker{takes: time.Second, err: errors.New("failed: save.service")}, time.Minute, 0, 0, time.Second, "failed: save.service"},
		"that take too long":                       {&blocker{takes: time.Hour}, time.Minute, 0, 0, time.Minute, late},
		"that hear nobody":                         {&blocker{takes: 2 * time.Minute, deaf: true}, time.Minute, 0, 0, time.Minute, late},
		"that take a quarter of what there is":     {&blocker{takes: time.Hour}, time.Minute, 0, 2 * time.Minute, 30 * time.Second, late},
		"that run where nothing is left":           {&blocker{takes: time.Hour}, time.Minute, 0, time.Nanosecond, 0, late},
		"before the wait that holds all evictions": {&blocker{takes: 10 * time.Second}, time.Minute, 20 * time.Second, 0, 30 * time.Second, ""},
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			c.scripts.server = s
			s.AddPod(pod("a", grace(1)), 0)
			r := beginWithin(t, s, drain.Options{Scripts: c.scripts, ScriptsWait: c.wait, LoadBalancerWait: c.evictAfter}, c.limit > 0, c.limit)
			r.await(state.NodeEmpty)
			ended := append(s.Requests("evict"), s.Requests("delete")...)
			if after := ended[0].At.Sub(r.began); after != c.want {
				t.Errorf("the pod was evicted after %s, want %s", after, c.want)
			}
			if ran := c.scripts.inquiries(); len(ran) != 1 || !ran[0].closed || ran[0].ended.IsZero() && !c.scripts.deaf {
				t.Errorf("the scripts ran as %+v; want them once, on a closed node, and to their end", ran)
			}
			reported := r.of(state.ScriptsFailed)
			if (c.reported != "") != (len(reported) == 1) || c.reported != "" && reported[0].Detail != c.reported {
				t.Errorf("reported %+v, want %q", reported, c.reported)
			}
		})
	}
}

func TestScripts(t *testing.T) {
	t.Parallel()
	run(t, "not for a cordon", func(t *testing.T, s *apitest.Server) {
		own := &blocker{server: s}
		goal := toCordon()
		r := start(t, s, drain.Options{Scripts: own, ScriptsWait: time.Minute}, goal)
		r.await(state.NodeCordoned)
		time.Sleep(time.Minute)
		if ran := own.inquiries(); len(ran) != 0 {
			t.Errorf("they ran as %+v", ran)
		}
		r.adjust(func(g *drain.Goal) { g.Evict = true })
		r.await(state.NodeEmpty)
		if ran := own.inquiries(); len(ran) != 1 {
			t.Errorf("they ran as %+v", ran)
		}
	})
	// They run, and are not begun twice.
	run(t, "run once in a drain that is called off and resumed", func(t *testing.T, s *apitest.Server) {
		s.AddPod(pod("a"), 0)
		own := &blocker{takes: 30 * time.Second, server: s}
		r := begin(t, s, drain.Options{Scripts: own, ScriptsWait: time.Hour})
		for _, evict := range []bool{false, true} {
			time.Sleep(5 * time.Second)
			r.adjust(func(g *drain.Goal) { g.Evict = evict })
		}
		r.await(state.NodeEmpty)
		if after := s.Requests("evict")[0].At.Sub(r.began); after != 30*time.Second || len(own.inquiries()) != 1 {
			t.Errorf("evicted after %s; the scripts ran as %+v", after, own.inquiries())
		}
	})
}

const draining = "1 target is still draining in tg/web"

func TestLoadBalancers_DelayEvictions(t *testing.T) {
	t.Parallel()
	const set = 20 * time.Second
	for name, c := range map[string]struct {
		balancers *blocker
		set       time.Duration
		want      time.Duration
		holding   string // what is reported of evictions that wait for nothing else
	}{
		"that were done with it":              {&blocker{}, set, 0, ""},
		"that take three minutes":             {&blocker{takes: 3 * time.Minute, left: draining}, set, 3 * time.Minute, ""},
		"that may not be asked":               {&blocker{err: errors.New("it is refused")}, set, set, "20s"},
		"that may not be asked, with no wait": {&blocker{err: errors.New("it is refused")}, 0, 0, ""},
		"that nobody tells, for longer":       {&blocker{takes: time.Minute, left: draining, err: errors.New("nobody takes it out")}, set, time.Minute, ""},
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			s.AddPod(pod("a"), 0)
			r := drained(t, s, drain.Options{
				LoadBalancers: c.balancers, ExcludeFromLoadBalancers: true, LoadBalancerWait: c.set,
			})
			if after := s.Requests("evict")[0].At.Sub(r.began); after != c.want {
				t.Errorf("evicted after %s, want %s", after, c.want)
			}
			left, out := r.of(state.TargetsLeft), r.of(state.TargetsOut)
			if waited := c.balancers.takes > 0; waited != (len(left) > 0) || (waited || c.balancers.err != nil) != (len(out) > 0) {
				t.Errorf("reported %+v and %+v", left, out)
			}
			if c.balancers.err != nil && (len(out) != 1 || out[0].Detail != c.balancers.err.Error()) {
				t.Errorf("reported %+v", out)
			}
			if held := r.of(state.EvictionsDelayed); len(held) > 1 || (c.holding != "") != (len(held) == 1) || len(held) == 1 && held[0].Detail != c.holding {
				t.Errorf("reported %+v, want %q", held, c.holding)
			}
			if asked := c.balancers.inquiries(); !asked[0].labeled || len(asked) != 1 {
				t.Errorf("asked %+v", asked)
			}
		})
	}
}

// No target drains for longer. There is no deadline.
func TestLoadBalancers_AnHourAtMost(t *testing.T) {
	t.Parallel()
	const set = 20 * time.Second
	for name, deaf := range map[string]bool{"and asked no longer": false, "also where they hear nobody": true} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			s.AddPod(pod("a"), 0)
			b := &blocker{takes: 5 * time.Hour, deaf: deaf}
			r := beginWithin(t, s, drain.Options{LoadBalancers: b, ExcludeFromLoadBalancers: true, LoadBalancerWait: set}, false, 0)
			time.Sleep(2 * time.Hour)
			asked := s.Requests("evict")
			if len(asked) != 1 || asked[0].At.Sub(r.began) != time.Hour {
				t.Errorf("evictions %+v, want one after an hour", asked)
			}
			if reported := r.of(state.TargetsOut); len(reported) == 0 || reported[0].Detail != "the wait has taken too long" {
				t.Errorf("reported %+v", reported)
			}
		})
	}
}

// As with any hold: each pod keeps its grace. And half of the time is for the evictions.
func TestLoadBalancers_DelayNoPodBeyondItsTurn(t *testing.T) {
	t.Parallel()
	for name, hard := range map[string]bool{"of a machine that is lost": true, "of one that is not": false} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			s.AddPod(pod("long", grace(80)), 0)
			s.AddPod(pod("short", grace(10)), 0)
			r := beginWithin(t, s, drain.Options{
				LoadBalancers: &blocker{takes: time.Hour}, ExcludeFromLoadBalancers: true, Options: evict.Options{Margin: 2 * time.Second},
			}, hard, 2*time.Minute)
			if result := r.succeed(); result.Evicted != 2 {
				t.Errorf("the result is %+v", result)
			}
			for name, want := range map[string]time.Duration{"long": 38 * time.Second, "short": 59 * time.Second} {
				if after := s.Requests("evict default/" + name)[0].At.Sub(r.began); after != want {
					t.Errorf("%s was evicted after %s, want %s", name, after, want)
				}
			}
			out := r.of(state.TargetsOut)
			if len(out) != 1 || out[0].Detail != "the wait has taken half of the time before the deadline" {
				t.Errorf("reported %+v", out)
			}
		})
	}
}

// The half is that of the time there is now.
func TestLoadBalancers_HalfOfTheTime(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		moved time.Duration // the deadline, after ten seconds
		want  time.Duration
	}{
		"there is":             {0, 5 * time.Minute},
		"that has become less": {-5 * time.Minute, 150 * time.Second},
		"that has become more": {5 * time.Minute, 450 * time.Second},
		"that is over at once": {-595 * time.Second, 10 * time.Second},
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			s.AddPod(pod("a"), 0)
			r := beginWithin(t, s, drain.Options{
				LoadBalancers: &blocker{takes: time.Hour}, ExcludeFromLoadBalancers: true,
			}, true, 10*time.Minute)
			time.Sleep(10 * time.Second)
			r.adjust(func(g *drain.Goal) { g.Hard, g.TimeEnds = g.Hard.Add(c.moved), g.TimeEnds.Add(c.moved) })
			r.await(state.PodEvicted)
			if after := s.Requests("evict")[0].At.Sub(r.began); after != c.want {
				t.Errorf("evicted after %s, want %s", after, c.want)
			}
			if held := r.of(state.EvictionsDelayed); len(held) > 0 {
				t.Errorf("reported %+v", held)
			}
		})
	}
}

// Nothing is left on the node then that the event is about. Who heard that its time was over, and a moment later that the node is
// drained, would have completed a hook, or reported operators, with the wrong one of the two.
func TestVolumes_DoneBeforeTheDeadline(t *testing.T) {
	t.Parallel()
	const margin = 2 * time.Second
	for name, c := range map[string]struct {
		hard, soft, ends time.Duration // 0 is none
		moved            time.Duration // what they move by during the wait
		want             time.Duration
	}{
		"of a machine that is lost":                 {hard: time.Minute, ends: time.Minute, want: time.Minute - margin},
		"that has come nearer":                      {hard: time.Minute, ends: time.Minute, moved: -10 * time.Second, want: 50*time.Second - margin},
		"that has gone further away":                {hard: time.Minute, ends: time.Minute, moved: 10 * time.Second, want: 70*time.Second - margin},
		"of a machine that stays":                   {soft: time.Minute, ends: time.Minute, want: time.Minute - margin},
		"of one that stays, which comes nearer":     {soft: time.Minute, ends: time.Minute, moved: -10 * time.Second, want: 50*time.Second - margin},
		"that is hard, though a soft one is nearer": {hard: time.Minute, soft: 10 * time.Second, ends: time.Minute, want: time.Minute - margin},
		"after which another event has had a while": {hard: time.Hour, ends: 30 * time.Second, want: 30*time.Second - margin},
		"which is over, with a while from then":     {soft: -time.Minute, ends: 30 * time.Second, want: 30*time.Second - margin},
		"which is over, and so is the while":        {soft: -time.Minute, ends: -30 * time.Second, want: 5 * time.Minute},
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			s.ChangeNode(inUse("vol-1"))
			goal := goalWithin(true, c.hard)
			for deadline, in := range map[*time.Time]time.Duration{&goal.Soft: c.soft, &goal.TimeEnds: c.ends} {
				if in != 0 {
					*deadline = time.Now().Add(in)
				}
			}
			r := start(t, s, drain.Options{VolumeWait: 5 * time.Minute, Options: evict.Options{Margin: margin}}, goal)
			r.await(state.VolumesInUse)
			if c.moved != 0 {
				r.adjust(func(g *drain.Goal) {
					for _, deadline := range []*time.Time{&g.Hard, &g.Soft, &g.TimeEnds} {
						if !deadline.IsZero() {
							*deadline = deadline.Add(c.moved)
						}
					}
				})
			}
			r.await(state.NodeEmpty)
			if after := r.drainedAt().Sub(r.began); after < c.want || after >= c.want+margin {
				t.Errorf("drained after %s, want %s", after, c.want)
			}
		})
	}
}

func TestVolumes(t *testing.T) {
	t.Parallel()
	run(t, "are waited for until they are free", func(t *testing.T, s *apitest.Server) {
		s.ChangeNode(inUse("vol-1", "vol-2"))
		r := begin(t, s, drain.Options{VolumeWait: time.Hour})
		r.await(state.VolumesInUse)
		if reported := r.of(state.VolumesInUse); reported[0].Detail != "2 left" {
			t.Errorf("reported %+v", reported)
		}
		s.ChangeNode(inUse())
		r.succeed()
	})
	run(t, "are seen by a read, as a watch may be older than the cordon", func(t *testing.T, s *apitest.Server) {
		old := s.CurrentNode()
		s.ChangeNode(inUse("vol-1"))
		r := begin(t, s, drain.Options{VolumeWait: time.Hour, Watched: func() *corev1.Node { return old }})
		r.await(state.VolumesInUse)
	})
	run(t, "are waited for until the wait ends", func(t *testing.T, s *apitest.Server) {
		s.ChangeNode(func(n *corev1.Node) { n.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "vol-1"}} })
		r := begin(t, s, drain.Options{VolumeWait: 100 * time.Millisecond})
		r.succeed()
	})
	run(t, "are not waited for on a node that is gone", func(t *testing.T, s *apitest.Server) {
		s.ChangeNode(inUse("vol-1"))
		r := begin(t, s, drain.Options{VolumeWait: time.Hour})
		r.await(state.VolumesInUse)
		s.RemoveNode()
		r.succeed()
	})
	// The wait is for the volumes of the pods that have gone, and the last of them has gone later now.
	run(t, "a second wait for a pod that came", func(t *testing.T, s *apitest.Server) {
		const wait = 20 * time.Second
		s.ChangeNode(inUse("vol-1"))
		r := begin(t, s, drain.Options{VolumeWait: wait})
		r.await(state.VolumesInUse)
		time.Sleep(wait / 2)
		s.AddPod(pod("late"), 0)
		r.await(state.PodGone, "default/late")
		gone := time.Now()
		r.adjust(joining)
		r.succeed()
		if after := r.drainedAt().Sub(gone); after < wait-time.Second {
			t.Errorf("drained %s after the last pod has gone, want %s", after, wait)
		}
	})
	run(t, "of pods that stay are not waited for", func(t *testing.T, s *apitest.Server) {
		daemon := ownedBy("DaemonSet", "apps/v1")
		s.AddPod(pod("agent", daemon, withClaim("cache"), withScratch("spool")), 0)
		s.AddPod(pod("web", withClaim("data")), 0)
		s.AddVolume("cache", "ebs.csi.aws.com", "vol-1")
		s.AddVolume("agent-spool", "ebs.csi.aws.com", "vol-2")
		s.AddVolume("data", "ebs.csi.aws.com", "vol-3")
		s.ChangeNode(inUse("kubernetes.io/csi/ebs.csi.aws.com^vol-1", "kubernetes.io/csi/ebs.csi.aws.com^vol-2", "kubernetes.io/csi/ebs.csi.aws.com^vol-3"))
		// What could not be asked for the first time is asked for again.
		s.Answer("get", apitest.Throttled(0)) // of the cordon
		s.Answer("get claim default/cache", apitest.Unavailable())
		s.Answer("get volume", apitest.Unavailable())
		r := begin(t, s, drain.Options{VolumeWait: time.Hour})
		await(t, "that one volume is waited for", func() bool {
			reported := r.of(state.VolumesInUse)
			return len(reported) > 0 && reported[len(reported)-1].Detail == "1 left"
		})
		s.ChangeNode(inUse("kubernetes.io/csi/ebs.csi.aws.com^vol-1", "kubernetes.io/csi/ebs.csi.aws.com^vol-2"))
		r.succeed()
		s.Requested(t, 0, "get claim default/data")
	})
	run(t, "unknown ones are waited for", func(t *testing.T, s *apitest.Server) {
		daemon := ownedBy("DaemonSet", "apps/v1")
		s.AddPod(pod("secret", daemon, withClaim("unknown")), 0)
		s.AddPod(pod("local", daemon, withClaim("disk")), 0)
		s.AddVolume("disk", "", "")
		s.ChangeNode(inUse("vol-1", "vol-2"))
		s.AddPod(pod("early", daemon, withClaim("unbound")), 0)
		s.Always("get claim default/unbound", func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Type", "application/json")
			_, err := io.WriteString(w, `{"kind":"PersistentVolumeClaim","apiVersion":"v1","metadata":{"namespace":"default","name":"unbound"}}`)
			return err == nil
		})
		r := begin(t, s, drain.Options{VolumeWait: 2500 * time.Millisecond})
		r.succeed()
		for _, name := range []string{"unknown", "disk", "unbound"} { // What they are does not change while they are in use.
			s.Requested(t, 1, "get claim default/"+name)
		}
	})
	// Thousands of nodes may be drained at once.
	run(t, "no requests where none is in use", func(t *testing.T, s *apitest.Server) {
		s.AddPod(pod("agent", ownedBy("DaemonSet", "apps/v1"), withClaim("cache")), 0)
		s.AddVolume("cache", "ebs.csi.aws.com", "vol-1")
		drained(t, s, drain.Options{VolumeWait: time.Hour})
		s.Requested(t, 0, "get claim", "get volume")
	})
	run(t, "of a Node that cannot be read are of unknown number", func(t *testing.T, s *apitest.Server) {
		r := begin(t, s, drain.Options{VolumeWait: 20 * time.Second})
		r.await(state.NodeCordoned)
		s.Always("get node", apitest.Unavailable())
		r.succeed()
		if reported := r.of(state.VolumesInUse); len(reported) != 1 || reported[0].Detail != "their number is not known yet" {
			t.Errorf("reported %+v", reported)
		}
	})
}
