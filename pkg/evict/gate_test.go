package evict_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/evict"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/state"
)

func TestEvict_AtTheGate(t *testing.T) {
	t.Parallel()
	// The API server does not answer for one node, while the turn of another one's pod comes.
	run(t, "the grace is what is left then", func(t *testing.T, _ *apitest.Server) {
		gate := kube.NewGate(1)
		hanging, lost := apitest.New(t), apitest.New(t)
		hanging.AddPod(pod("a", grace(30)), 0)
		lost.AddPod(pod("a", grace(10)), apitest.Ending(time.Second))
		hanging.Always("evict", apitest.HeldBy("budget", 0))
		hanging.Always("delete", apitest.Hang())
		lost.Always("evict", apitest.HeldBy("budget", 0))
		beginWithin(t, hanging, evict.Options{Gate: gate}, true, 60*time.Second)
		r := beginWithin(t, lost, evict.Options{Gate: gate}, true, 41*time.Second)
		r.await(state.PodDeleted)
		asked := lost.Requests("delete")[0]
		left := r.goal.Hard.Sub(asked.At)
		given := 10 * time.Second
		if g := asked.Options.GracePeriodSeconds; g != nil {
			given = time.Duration(*g) * time.Second
		}
		if given > left+time.Second {
			t.Errorf("deleted with a grace of %s, where %s are left", given, left)
		}
	})
}

func TestEvict_AtTheGateIsDropped(t *testing.T) {
	t.Parallel()
	for name, happens := range map[string]func(*apitest.Server, string){
		"somebody else deletes the pod": func(s *apitest.Server, name string) { s.DeletePod(name) },
		"the pod is to stay":            func(s *apitest.Server, name string) { s.ChangePod(name, annotated(evict.Annotation, evict.Never)) },
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			s.AddPod(pod("a", grace(60)), 0)
			s.AddPod(pod("b", grace(60)), 0)
			s.Always("evict", slowly(5*time.Second))
			begin(t, s, evict.Options{Gate: kube.NewGate(1)})
			await(t, "an eviction", func() bool { return count(s, "evict") == 1 })
			sent := strings.TrimPrefix(s.Requests("evict")[0].What, "evict ")
			happens(s, map[string]string{"default/a": "default/b", "default/b": "default/a"}[sent])
			time.Sleep(time.Second)
			happens(s, sent)
			time.Sleep(30 * time.Second)
			s.Requested(t, 1, "evict")
			if stays := name == "the pod is to stay"; s.HasPod(sent) != stays {
				t.Errorf("the eviction that was sent is canceled only if the pod is to stay: %t", stays)
			}
		})
	}
}

// Others' requests have the only place until its turn: its budget is asked all the same.
func TestEvict_AtTheGateIsAskedAtItsTurn(t *testing.T) {
	t.Parallel()
	for name, held := range map[string]bool{"a budget grants it": false, "a budget holds it": true} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			gate := kube.NewGate(1)
			if p := pod("a", grace(30), apitest.Ready); held {
				s.AddHeld(p)
			} else {
				s.AddPod(p, apitest.Ending(time.Second))
			}
			leave := <-apitest.Enter(t, gate, kube.Urgent)
			r := beginWithin(t, s, evict.Options{Gate: gate}, true, 31*time.Second)
			time.Sleep(1500 * time.Millisecond)
			leave()
			if result := r.succeed(); (len(r.of(state.PodHeld)) == 1) != held || (result.Deleted == 1) != held {
				t.Errorf("the result is %+v, after %d evictions; reported %+v", result, count(s, "evict"), r.reports)
			}
		})
	}
}

// Another node's request has the only place meanwhile.
func TestEvict_AtTheGateDeadlineMoves(t *testing.T) {
	t.Parallel()
	held := func(s *apitest.Server) { s.AddHeld(pod("a", grace(25))) }
	long := func(s *apitest.Server) { s.AddPod(pod("a", grace(300)), 0) }
	elses := func(s *apitest.Server) { s.AddPod(pod("a", grace(7200), ending(3600)), apitest.Never) }
	for name, c := range map[string]struct {
		add   func(*apitest.Server)
		waits time.Duration // from when
	}{
		"an eviction, which gets what grace there is": {long, 0},
		"a deletion at the turn":                      {held, 35 * time.Second},
		"a deletion that shortens another":            {elses, 59 * time.Second},
	} {
		for how, moves := range map[string]func(*evict.Terms){
			"goes away": func(g *evict.Terms) { g.Hard = time.Time{} },
			"is later":  func(g *evict.Terms) { g.Hard = g.Hard.Add(time.Hour) },
		} {
			run(t, name+", "+how, func(t *testing.T, s *apitest.Server) {
				gate := kube.NewGate(1)
				c.add(s)
				var leave func()
				if c.waits == 0 {
					leave = <-apitest.Enter(t, gate, kube.Urgent)
				}
				r := beginWithin(t, s, evict.Options{Gate: gate}, true, time.Minute)
				if c.waits > 0 {
					time.Sleep(c.waits - 500*time.Millisecond)
					leave = <-apitest.Enter(t, gate, kube.Urgent)
				}
				time.Sleep(time.Second)
				r.adjust(moves)
				time.Sleep(100 * time.Millisecond)
				leave()
				time.Sleep(time.Minute)
				for _, q := range s.Requests("evict", "delete") {
					if q.Options.GracePeriodSeconds != nil || strings.HasPrefix(q.What, "delete") {
						t.Errorf("%s after %s with %+v", q.What, q.At.Sub(r.began), q.Options)
					}
				}
				if deleted, refused := r.of(state.PodDeleted), r.of(state.PodRefused); len(deleted)+len(refused) > 0 {
					t.Errorf("reported %+v and %+v", deleted, refused)
				}
				if c.waits == 0 && count(s, "evict") == 0 {
					t.Error("it was never asked for")
				}
			})
		}
	}
}

// All nodes of nth-queue share one gate. Another request has come before.
func TestEvict_AtTheGateUrgentPodsPass(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		grace          int64
		urgent, passes bool
	}{
		"its turn has come":     {600, false, true},
		"its node is urgent":    {1, true, true},
		"neither of them holds": {1, false, false},
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			gate := kube.NewGate(1)
			s.AddPod(pod("a", grace(c.grace)), 0)
			s.Always("evict", slowly(time.Second))
			leave, waiting := <-apitest.Enter(t, gate, kube.Urgent), apitest.Enter(t, gate, kube.InTurn)
			beginWithin(t, s, evict.Options{Gate: gate, Urgent: func() bool { return c.urgent }}, true, time.Minute)
			time.Sleep(500 * time.Millisecond)
			leave()
			synctest.Wait()
			if passed := count(s, "evict") > 0; passed != c.passes || passed == (len(waiting) > 0) {
				t.Errorf("it has passed the one that has waited longer: %t, and that one has entered: %t", passed, len(waiting) > 0)
			}
		})
	}
}
