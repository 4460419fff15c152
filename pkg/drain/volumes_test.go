package drain_test

import (
	"io"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/state"
)

func inUse(names ...corev1.UniqueVolumeName) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Status.VolumesInUse = names }
}

func TestVolumesAreWaitedForWithinBounds(t *testing.T) {
	t.Parallel()
	run(t, "until they are free", func(t *testing.T) {
		s := apitest.New(t)
		s.ChangeNode(inUse("vol-1", "vol-2"))
		r := begin(t, s, drain.Options{VolumeWait: time.Hour})
		r.await(state.VolumesInUse)
		if told := r.of(state.VolumesInUse); told[0].Detail != "2" {
			t.Errorf("told %+v", told)
		}
		s.ChangeNode(inUse())
		if result := r.succeed(); result.VolumesInUse != 0 {
			t.Errorf("the result is %+v", result)
		}
	})
	run(t, "until the wait ends", func(t *testing.T) {
		s := apitest.New(t)
		s.ChangeNode(func(n *corev1.Node) { n.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "vol-1"}} })
		r := begin(t, s, drain.Options{VolumeWait: 100 * time.Millisecond})
		if result := r.succeed(); result.VolumesInUse != 1 {
			t.Errorf("the result is %+v", result)
		}
	})
	run(t, "until the deadline", func(t *testing.T) {
		s := apitest.New(t)
		s.ChangeNode(inUse("vol-1"))
		r := beginWithin(t, s, drain.Options{VolumeWait: time.Hour, Margin: time.Second}, true, 3*time.Second)
		if result := r.succeed(); result.VolumesInUse != 1 {
			t.Errorf("the result is %+v", result)
		}
	})
	run(t, "not on a node that is gone", func(t *testing.T) {
		s := apitest.New(t)
		s.ChangeNode(inUse("vol-1"))
		r := begin(t, s, drain.Options{VolumeWait: time.Hour})
		r.await(state.VolumesInUse)
		s.RemoveNode()
		if result := r.succeed(); result.VolumesInUse != 0 {
			t.Errorf("the result is %+v", result)
		}
	})
}

// Nothing is left on the node then that the event is about. Whoever heard that its time was over, and a moment later that the node is
// drained, would have completed a hook, or told people, with the wrong one of the two.
func TestTheWaitForVolumesIsOverInTimeForTheDeadline(t *testing.T) {
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
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.ChangeNode(inUse("vol-1"))
			goal := goalWithin(true, c.hard)
			for deadline, in := range map[*time.Time]time.Duration{&goal.Soft: c.soft, &goal.TimeEnds: c.ends} {
				if in != 0 {
					*deadline = time.Now().Add(in)
				}
			}
			r := start(t, s, drain.Options{VolumeWait: 5 * time.Minute, Margin: margin}, goal)
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
			if n := r.guard.Result().VolumesInUse; n != 1 {
				t.Errorf("%d volumes are in use", n)
			}
		})
	}
}

// It is counted from the last pod's end. If it began anew for each event that joins, those before would run out of time for volumes alone.
func TestTheWaitForVolumesDoesNotBeginAnewForAnEventThatJoins(t *testing.T) {
	t.Parallel()
	const wait = 20 * time.Second
	for name, c := range map[string]struct {
		joins time.Duration
		want  time.Duration // after which the node is drained for both
	}{
		"during it":              {joins: 10 * time.Second, want: wait},
		"and again near its end": {joins: wait - time.Second, want: wait},
		"after it":               {joins: time.Minute, want: time.Minute},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.ChangeNode(inUse("vol-1"))
			r := begin(t, s, drain.Options{VolumeWait: wait})
			r.await(state.VolumesInUse)
			time.Sleep(time.Until(r.began.Add(c.joins)))
			r.adjust(joining)
			await(t, "that the node is drained for both", func() bool {
				return len(r.now(state.NodeEmpty)) > 0
			})
			if after := time.Since(r.began); after < c.want || after > c.want+3*time.Second {
				t.Errorf("drained for both after %s, want %s", after, c.want)
			}
			if n := r.guard.Result().VolumesInUse; n != 1 {
				t.Errorf("%d volumes are in use", n)
			}
		})
	}
}

// What is left of the wait was cut off by a deadline that has moved since, and is there for an event that joins.
func TestWhatADeadlineHasLeftOfTheWaitForVolumesIsThereForAnEventThatJoins(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.ChangeNode(inUse("vol-1"))
		r := beginWithin(t, s, drain.Options{VolumeWait: time.Hour, Margin: time.Second}, false, time.Minute)
		r.succeed()
		r.adjust(func(g *drain.Goal) { g.Soft, g.TimeEnds = g.Soft.Add(10*time.Minute), g.TimeEnds.Add(10*time.Minute) })
		r.adjust(joining)
		time.Sleep(time.Minute)
		s.ChangeNode(inUse())
		await(t, "that it is drained for both", func() bool {
			return len(r.now(state.NodeEmpty)) > 0
		})
		if n := r.guard.Result().VolumesInUse; n != 0 {
			t.Errorf("%d volumes are in use", n)
		}
	})
}

// The wait is for the volumes of the pods that have gone, and the last of them has gone later now.
func TestTheWaitForVolumesBeginsAnewForAPodThatCame(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const wait = 20 * time.Second
		s := apitest.New(t)
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
}

// withClaim is a pod that uses the volume of a claim, and withScratch one that has a claim made for itself.
func withClaim(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}})
	}
}

func withScratch(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			Ephemeral: &corev1.EphemeralVolumeSource{},
		}})
	}
}

func TestVolumesOfPodsThatStayAreNotWaitedFor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
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
			told := r.of(state.VolumesInUse)
			return len(told) > 0 && told[len(told)-1].Detail == "1"
		})
		s.ChangeNode(inUse("kubernetes.io/csi/ebs.csi.aws.com^vol-1", "kubernetes.io/csi/ebs.csi.aws.com^vol-2"))
		if result := r.succeed(); result.VolumesInUse != 0 {
			t.Errorf("the result is %+v", result)
		}
		if n := count(s, "get claim default/data"); n != 0 {
			t.Errorf("the claim of a pod that is gone was asked for %d times", n)
		}
	})
}

// A claim that may not be read, or a volume of another sort, is one more reason to wait, and nothing else.
// The watch is silent, and only the list before the end shows it.
func TestAPodThatComesDuringTheWaitForVolumesIsEvicted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.ChangeNode(func(n *corev1.Node) { n.Status.VolumesInUse = []corev1.UniqueVolumeName{"v"} })
		s.Always("watch pods", apitest.Silence())
		r := begin(t, s, drain.Options{VolumeWait: time.Minute})
		r.await(state.VolumesInUse)
		time.Sleep(10 * time.Second)
		s.AddPod(pod("late"), 0)
		r.await(state.PodEvicted, "default/late")
		if told := r.of(state.NodeEmpty); len(told) > 0 {
			t.Errorf("told %+v", told)
		}
	})
}

func TestAVolumeThatCannotBeToldIsWaitedFor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
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
		if result := r.succeed(); result.VolumesInUse != 2 {
			t.Errorf("the result is %+v", result)
		}
		for _, name := range []string{"unknown", "disk", "unbound"} { // What they are does not change while they are in use.
			if n := count(s, "get claim default/"+name); n != 1 {
				t.Errorf("the claim %s was asked for %d times", name, n)
			}
		}
	})
}

// Thousands of nodes may be drained at once.
func TestClaimsAreAskedForOnlyWhereVolumesAreInUse(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("agent", ownedBy("DaemonSet", "apps/v1"), withClaim("cache")), 0)
		s.AddVolume("cache", "ebs.csi.aws.com", "vol-1")
		drained(t, s, drain.Options{VolumeWait: time.Hour})
		if n := count(s, "get claim", "get volume"); n != 0 {
			t.Errorf("%d requests for claims and their volumes", n)
		}
	})
}

func TestVolumesOfANodeThatCannotBeReadAreNotTakenForFree(t *testing.T) {
	t.Parallel()
	run(t, "what is not known is told as unknown", func(t *testing.T) {
		s := apitest.New(t)
		r := begin(t, s, drain.Options{VolumeWait: 20 * time.Second})
		r.await(state.NodeClosed)
		s.Always("get node", apitest.Unavailable())
		result := r.succeed()
		if told := r.of(state.VolumesInUse); result.VolumesInUse != drain.VolumesUnknown || len(told) != 1 || told[0].Detail != "an unknown number" {
			t.Errorf("the result is %+v, told %+v", result, told)
		}
	})
	run(t, "what was known last stands", func(t *testing.T) {
		s := apitest.New(t)
		s.ChangeNode(inUse("vol-1", "vol-2"))
		r := begin(t, s, drain.Options{VolumeWait: 20 * time.Second})
		r.await(state.VolumesInUse)
		s.Always("get node", apitest.Unavailable())
		result := r.succeed()
		if told := r.of(state.VolumesInUse); result.VolumesInUse != 2 || len(told) != 1 || told[0].Detail != "2" {
			t.Errorf("the result is %+v, told %+v", result, told)
		}
	})
	run(t, "they are waited for until it can be read", func(t *testing.T) {
		s := apitest.New(t)
		r := begin(t, s, drain.Options{VolumeWait: time.Hour})
		r.await(state.NodeClosed)
		s.Always("get node", apitest.Unavailable())
		time.AfterFunc(20*time.Second, func() { s.Always("get node", nil) })
		result := r.succeed()
		if after := r.drainedAt().Sub(r.began); result.VolumesInUse != 0 || after < 20*time.Second || after > 22*time.Second {
			t.Errorf("drained after %s with %+v", after, result)
		}
	})
}

// Its volume may be attached to the node still, and others may have come with it.
func TestAfterAPodThatCameLateTheNodeIsFoundEmptyAnew(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		r := drained(t, s, drain.Options{VolumeWait: time.Hour})
		lists := count(s, "list pods")
		s.ChangeNode(inUse("vol-1"))
		s.AddPod(pod("late"), 0)
		r.await(state.PodGone, "default/late")
		r.await(state.VolumesInUse)
		if told := r.of(state.NodeEmpty); len(told) != 1 {
			t.Errorf("drained is told as %+v while a volume is in use", told)
		}
		s.ChangeNode(inUse())
		await(t, "that it is drained again", func() bool { return len(r.of(state.NodeEmpty)) == 2 })
		if n := count(s, "list pods") - lists; n != 1 {
			t.Errorf("%d lists since; want one that shows that nothing is left", n)
		}
	})
}

// A volume is let go by its driver on the node: without it, the volume would be attached until somebody takes it by force.
func TestTheDriverOfVolumesStaysUntilTheyAreFreeAndBeyond(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("ebs-csi-node", ownedBy("DaemonSet", "apps/v1"), critical), 0)
		s.AddPod(pod("web", withClaim("data")), 0)
		s.AddVolume("data", "ebs.csi.aws.com", "vol-1")
		s.ChangeNode(inUse("kubernetes.io/csi/ebs.csi.aws.com^vol-1"))
		r := beginWithin(t, s, drain.Options{VolumeWait: time.Hour}, true, plenty)
		r.await(state.VolumesInUse)
		time.Sleep(time.Minute)
		if len(r.of(state.NodeEmpty)) > 0 {
			t.Error("drained while a volume is in use")
		}
		s.ChangeNode(inUse())
		if result := r.succeed(); result.VolumesInUse != 0 || result.Skipped != 1 {
			t.Errorf("the result is %+v", result)
		}
		time.Sleep(time.Until(r.goal.Hard)) // To the machine's end.
		if n := count(s, "evict default/ebs-csi-node") + count(s, "delete default/ebs-csi-node"); n != 0 {
			t.Errorf("the driver's end was asked for %d times", n)
		}
	})
}
