package drain_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/evict"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/state"
)

// Nothing is asked for after Run has ended, wherever it is canceled.
func TestGuard_NoRequestAfterItsEnd(t *testing.T) {
	bubble(t, func(t *testing.T, _ *apitest.Server) {
		for after := time.Duration(0); after < 20*time.Second; after += 370 * time.Millisecond {
			s := apitest.New(t)
			for i := range 5 {
				s.AddPod(pod(fmt.Sprintf("web-%d", i)), apitest.Ending(700*time.Millisecond))
			}
			s.ChangeNode(func(n *corev1.Node) { n.Status.VolumesInUse = []corev1.UniqueVolumeName{"v"} })
			s.Always("get", slowly(300*time.Millisecond))
			s.Always("patch", slowly(300*time.Millisecond))
			s.Always("evict", slowly(300*time.Millisecond))
			s.Always("list", slowly(300*time.Millisecond))
			began, goal := time.Now(), goalWithin(true, 10*time.Second)
			task, node := drain.NewTask(goal), drain.New(s.Client(), apitest.Node, drain.Options{VolumeWait: time.Minute, Options: evict.Options{Gate: kube.NewGate(2)}})
			task.Adjust(goal)
			ctx, cancel := context.WithTimeout(t.Context(), after)
			node.Guard(ctx, task, func(drain.Progress) {})
			ended := time.Now()
			cancel()
			task.Adjust(goal)
			_ = task.Result()
			n := count(s)
			time.Sleep(time.Minute)
			if ended.Sub(began) > after+300*time.Millisecond || // a cordon that is under way
				count(s) != n {
				t.Errorf("canceled after %s, ended after %s, %d requests since", after, ended.Sub(began), count(s)-n)
			}
		}
	})
}

// nth and the kubelet start at the same time.
func TestLook_WaitsForANodeToRegister(t *testing.T) {
	t.Parallel()
	for name, hard := range map[string]bool{"hard": true, "soft": false} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			s.RemoveNode()
			r := beginWithin(t, s, drain.Options{}, hard, plenty)
			time.Sleep(time.Minute)
			if reported := r.of(state.NodeMissing); len(reported) != 1 || reported[0].State.UID != "" || !strings.Contains(reported[0].Detail, "not registered") {
				t.Errorf("reported %+v", reported)
			}
			if reported := r.of(state.NodeEmpty); len(reported) != 0 || r.task.Result().NodeGone {
				t.Errorf("drained is reported as %+v before there is a Node", reported)
			}
			s.RegisterNode()
			s.AddPod(pod("a"), 0)
			registered := time.Now()
			r.await(state.NodeCordoned)
			if after := time.Since(registered); after > time.Second {
				t.Errorf("cordoned %s after it was registered", after)
			}
			if result := r.succeed(); result.Evicted != 1 || result.Cordon != drain.CordonSet || r.of(state.NodeEmpty)[0].State.UID == "" {
				t.Errorf("the result is %+v", result)
			}
		})
	}
}

func TestLook_PodsOfADeletedNode(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]bool{"before the drain": true, "in its midst": false} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			free := addHeld(s, pod("a"))
			goal := goalWithin(false, plenty)
			if before {
				s.RemoveNode()
				goal.NodeSeen = true
			}
			r := start(t, s, drain.Options{}, goal)
			r.await(state.PodHeld)
			s.RemoveNode()
			time.Sleep(time.Minute)
			r.reported(0, state.NodeEmpty)
			free()
			if result := r.succeed(); result.Evicted != 1 || !result.NodeGone {
				t.Errorf("the result is %+v", result)
			}
			if reported := r.of(state.NodeMissing); len(reported) != 1 || !strings.Contains(reported[0].Detail, "deleted") {
				t.Errorf("reported %+v", reported)
			}
		})
	}
}

func TestLook(t *testing.T) {
	t.Parallel()
	run(t, "every five seconds", func(t *testing.T, s *apitest.Server) {
		r := begin(t, s, drain.Options{})
		r.succeed()
		if after := r.drainedAt().Sub(r.began); after != time.Second {
			t.Errorf("without pods, drained %s after the cordon", after)
		}
		time.Sleep(time.Minute)
		for i, after := range gaps(s.Requests("get node")) {
			if after != 5*time.Second {
				t.Errorf("look %d came after %s", i+1, after)
			}
		}
	})
	// If the machine is lost, a look that fails is as good as none.
	for name, answer := range map[string]apitest.Answer{"at once for a late pod": nil, "that fails before a hard deadline": apitest.Unavailable()} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			r := beginWithin(t, s, drain.Options{}, answer != nil, plenty)
			r.succeed()
			time.Sleep(time.Minute + time.Second)
			s.Always("get node", answer)
			came := time.Now()
			s.AddPod(pod("late"), 0)
			r.await(state.PodEvicted, "default/late")
			if after := s.Requests("evict")[0].At.Sub(came); after > 10*time.Millisecond {
				t.Errorf("evicted after %s", after)
			}
		})
	}
}

// A look hangs, the one before which a pod that comes late is not evicted: somebody may have opened the node. What a machine that is
// lost leaves of time is more than that, or not.
func TestLook_ThatHangsDelaysALatePod(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		left  time.Duration // to the deadline, when it comes
		grace int64
		after time.Duration // when it is evicted
	}{
		"ten seconds at most":                        {10 * time.Minute, 1, 10 * time.Second},
		"a quarter of the time that is left":         {20 * time.Second, 1, 5 * time.Second},
		"three seconds where its turn has come":      {2 * time.Minute, 600, 3 * time.Second},
		"the quarter where that is less than these":  {8 * time.Second, 600, 2 * time.Second},
		"no longer than to its turn, with its grace": {40 * time.Second, 35, 5 * time.Second},
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			r := beginWithin(t, s, drain.Options{}, true, plenty)
			r.succeed()
			s.Always("get node", apitest.Hang())
			looks := count(s, "get node")
			await(t, "a look that hangs", func() bool { return count(s, "get node") > looks })
			came := time.Now()
			r.adjust(func(g *drain.Goal) { g.Hard = came.Add(c.left) })
			s.AddPod(pod("late", grace(c.grace)), 0)
			r.await(state.PodEvicted, "default/late")
			if after := s.Requests("evict")[0].At.Sub(came); after != c.after {
				t.Errorf("evicted after %s; want %s", after, c.after)
			}
		})
	}
}

// A load balancer in front of the API server answers so while its backend moves.
func TestLook_ProxyPageIsNoDeletedNode(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		goal  func(*drain.Goal)
		looks int // that were answered before
	}{
		"at the first look":                 {func(*drain.Goal) {}, 0},
		"at the first look after a restart": {func(g *drain.Goal) { g.NodeSeen = true }, 0},
		"later":                             {func(*drain.Goal) {}, 1},
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			s.ChangeNode(asking(drain.ActionAnnotation, drain.OnlyCordon))
			s.AddPod(pod("a"), 0)
			goal := goalWithin(true, plenty)
			c.goal(&goal)
			if c.looks == 0 {
				s.Answer("get node", apitest.Page(http.StatusNotFound), apitest.Page(http.StatusNotFound))
			}
			r := start(t, s, drain.Options{}, goal)
			if c.looks > 0 {
				r.leave()
				s.Answer("get node", apitest.Page(http.StatusNotFound))
			}
			time.Sleep(time.Minute)
			if !s.HasPod("default/a") || len(r.of(state.NodeMissing)) > 0 || r.task.Result().Cordon != drain.CordonSet {
				t.Errorf("a pod that operators want left alone is there: %t; reported %+v, and the result is %+v", s.HasPod("default/a"), r.reports, r.task.Result())
			}
		})
	}
}

// A Node that is pinned by its UID goes, and another machine's takes its name.
func TestLook_NextNodeOfThatNameIsLeftAlone(t *testing.T) {
	t.Parallel()
	for name, hard := range map[string]bool{"with a hard deadline": true, "without": false} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			free := addHeld(s, pod("held"))
			r := beginWithin(t, s, drain.Options{UID: s.CurrentNode().UID}, hard, plenty)
			r.await(state.PodHeld)
			s.RegisterNode()
			s.AddPod(pod("innocent"), 0)
			r.await(state.NodeMissing)
			free()
			time.Sleep(time.Minute)
			if evicted := count(s, "evict default/innocent"); s.CurrentNode().Spec.Unschedulable || evicted > 0 {
				t.Errorf("the other Node is cordoned: %t, and its pod was asked to go %d times", s.CurrentNode().Spec.Unschedulable, evicted)
			}
		})
	}
}

// The agent decides again each time.
func TestLook_ReportsChangesOnly(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*apitest.Server){
		"on a node that is drained":               func(*apitest.Server) {},
		"on a node that operators have opened":    func(s *apitest.Server) { s.UncordonAs("kubectl") },
		"on a node that is to be left alone":      func(s *apitest.Server) { s.ChangeNode(asking(drain.ActionAnnotation, drain.OnlyCordon)) },
		"on a node whose kubelet is of next boot": func(s *apitest.Server) { s.SetBootID("boot-2") },
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			s.SetBootID(claim.BootID)
			r := begin(t, s, drain.Options{})
			time.Sleep(20 * time.Second)
			change(s)
			time.Sleep(20 * time.Second)
			before := len(r.of(state.StateChanged))
			time.Sleep(time.Minute)
			if reported := r.of(state.StateChanged); len(reported) > before {
				t.Errorf("in a quiet minute, it was reported %d times: %+v", len(reported)-before, reported[len(reported)-1])
			}
		})
	}
}

// The pods are listed while the Node is read for the first time, and each of them asks for a look.
func TestLook_RequestsOfADrain(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		s.AddPod(pod("a"), 0)
		s.Answer("get node", slowly(100*time.Millisecond))
		drained(t, s, drain.Options{})
		var asked []string
		for _, q := range s.Requests() {
			asked = append(asked, q.What)
		}
		slices.Sort(asked)
		if want := []string{"evict default/a", "get node", "list pods", "list pods", "patch node", "watch pods"}; !slices.Equal(asked, want) {
			t.Errorf("asked for %q; want %q", asked, want)
		}
	})
}

func TestOutage_ReportedOnceAfterTenSeconds(t *testing.T) {
	t.Parallel()
	for what, kind := range map[string]state.TransitionKind{
		"get node": state.NodeCordonFailed, "patch node": state.NodeCordonFailed, "list pods": state.PodRefused,
	} {
		for name, c := range map[string]struct {
			answer apitest.Answer
			words  string
		}{
			"a webhook fails":              {apitest.Refused(500, metav1.StatusReasonInternalError, `failed calling webhook "pods.example.org"`), "failed calling webhook"},
			"a webhook denies it with 409": {apitest.Refused(409, metav1.StatusReasonConflict, "an upgrade is under way"), "an upgrade is under way"},
			"the API server is not ready":  {apitest.Unavailable(), "503"},
			"connections to it break":      {apitest.Reset(), "the API server cannot be reached"},
			"it does not answer":           {apitest.Hang(), "no answer from the API server"},
			"a proxy asks for a login":     {apitest.Page(200), "the API server's answer is unreadable: "},
		} {
			for _, hard := range []bool{false, true} {
				run(t, fmt.Sprintf("%s: %s, with a hard deadline: %t", what, name, hard), func(t *testing.T, s *apitest.Server) {
					s.AddPod(pod("a"), 0)
					s.Always(what, c.answer)
					r := beginWithin(t, s, drain.Options{}, hard, plenty)
					time.Sleep(9900 * time.Millisecond)
					r.reported(0, kind)
					time.Sleep(10 * time.Minute)
					reported := r.of(kind)
					if len(reported) != 1 || !strings.Contains(reported[0].Detail, c.words) {
						t.Fatalf("reported %+v; want once %q", reported, c.words)
					}
					if trouble := reported[0].State.Trouble; !strings.Contains(trouble, c.words) {
						t.Errorf("the trouble is %q", trouble)
					}
					s.Always(what, nil)
					if r.succeed(); r.last().State.Trouble != "" {
						t.Errorf("the state is %+v after that", r.last().State)
					}
				})
			}
		}
	}
}

// A read is given up after twelve seconds. A write has to be waited for longer: a webhook may take 30 seconds. What a busy
// API server asks for is followed within reason, and one request is one: client-go by itself would repeat it, as late as the API server says.
func TestRequests_AreGivenUpAndRepeated(t *testing.T) {
	t.Parallel()
	const longestPause, looksAtVolumes = 2 * time.Second, time.Second
	for what, busy := range map[string]time.Duration{
		"get node": 5 * time.Second, "patch node": 5 * time.Second, "list pods": 5 * time.Second,
		"get claim default/cache": looksAtVolumes, "get volume": looksAtVolumes,
	} {
		limit := kube.Read
		if what == "patch node" {
			limit = kube.Write
		}
		for name, c := range map[string]struct {
			answer      apitest.Answer
			least, most time.Duration // from one to the next
		}{
			"which hangs": {apitest.Hang(), limit, limit + longestPause},
			"for which the API server is too busy for a minute": {apitest.Throttled(60), busy, busy},
		} {
			run(t, what+", "+name, func(t *testing.T, s *apitest.Server) {
				s.AddPod(pod("agent", ownedBy("DaemonSet", "apps/v1"), withClaim("cache")), 0)
				s.AddVolume("cache", "ebs.csi.aws.com", "vol-1")
				s.ChangeNode(inUse("kubernetes.io/csi/ebs.csi.aws.com^vol-1"))
				if what == "list pods" {
					s.Answer(what, pass) // the first, which is another's
				}
				s.Always(what, c.answer)
				opts := drain.Options{VolumeWait: time.Hour}
				if what == "list pods" {
					opts.VolumeWait = 0
				}
				begin(t, s, opts)
				time.Sleep(10 * time.Minute)
				asked := s.Requests(what)
				for _, after := range gaps(asked[1:]) {
					if after < c.least || after > c.most {
						t.Errorf("repeated after %s, want %s to %s", after, c.least, c.most)
					}
				}
				if len(asked) < 10 {
					t.Errorf("asked %d times", len(asked))
				}
			})
		}
	}
}

// An outage of the API server is mostly short, and a cordon that it refuses is not worth a hurry. A budget that yields is to cost seconds.
func TestRequests_PausesGrow(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		what           string
		answer         apitest.Answer
		first, longest time.Duration // at most; half of that at least
	}{
		"while the API server is not ready":     {"get node", apitest.Unavailable(), 100 * time.Millisecond, 2 * time.Second},
		"while a webhook refuses the cordon":    {"patch node", apitest.Forbidden("no cordons here"), 2 * time.Second, time.Minute},
		"while a webhook refuses an eviction":   {"evict", apitest.Forbidden("no evictions here"), 5 * time.Second, 5 * time.Second},
		"while a budget refuses it for one pod": {"evict", apitest.HeldBy("budget", 0), 200 * time.Millisecond, 3 * time.Second},
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			if c.what == "evict" {
				s.AddPod(pod("a"), 0)
			}
			s.Always(c.what, c.answer)
			begin(t, s, drain.Options{})
			time.Sleep(10 * time.Minute)
			found := gaps(s.Requests(c.what))
			most := c.first
			for i, after := range found {
				if after < most/2 || after > most {
					t.Errorf("attempt %d came after %s, want %s to %s", i+2, after, most/2, most)
				}
				most = min(2*most, c.longest)
			}
			if len(found) < 10 {
				t.Errorf("%d attempts", len(found))
			}
		})
	}
}
