package drain_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/state"
)

var (
	drains = flag.Int("drains", 40, "how many random drains to try")
	seed   = flag.Uint64("seed", 0, "the first one's seed; 0 for any")
)

// walk is a drain at random: pods with graces and budgets, that come late or come back, outages, and a goal that changes.
type walk struct {
	t      *testing.T
	s      *apitest.Server
	random *rand.Rand
	r      *trial
	stop   chan struct{}
	wg     sync.WaitGroup

	mu sync.Mutex
	// goals are those that were set, and since when.
	goals []setGoal
	// added are when the pods were, graces their own, and returning those of a controller that brings them back.
	added     map[string]time.Time
	graces    map[string]time.Duration
	returning map[string]bool
}

type setGoal struct {
	goal drain.Goal
	at   time.Time
}

// For whatever happens: when it is told that the node is drained, a list that came before shows nothing that could be evicted;
// before a hard deadline every pod gets its grace, or what is left; and evictions have an end.
func TestDrainsAtRandomKeepTheirPromises(t *testing.T) {
	t.Parallel()
	first := *seed
	if first == 0 {
		first = rand.Uint64N(1 << 32)
	}
	for i := range *drains {
		number := first + uint64(i)
		run(t, fmt.Sprintf("seed %d", number), func(t *testing.T) {
			w := &walk{
				t: t, s: apitest.New(t), random: rand.New(rand.NewPCG(number, 0)), stop: make(chan struct{}),
				added: map[string]time.Time{}, graces: map[string]time.Duration{}, returning: map[string]bool{},
			}
			w.run()
		})
	}
}

func (w *walk) upTo(limit time.Duration) time.Duration {
	return time.Duration(w.random.Int64N(int64(limit) + 1)).Truncate(time.Millisecond)
}

// after does something later, unless the walk ends before.
func (w *walk) after(d time.Duration, do func()) {
	w.wg.Go(func() {
		select {
		case <-w.stop:
		case <-time.After(d):
			do()
		}
	})
}

func (w *walk) add(name string, p *corev1.Pod, ending apitest.Ending) {
	w.mu.Lock()
	w.added["default/"+name], w.graces["default/"+name] = time.Now(), time.Duration(*p.Spec.TerminationGracePeriodSeconds)*time.Second
	w.mu.Unlock()
	w.s.AddPod(p, ending)
}

func (w *walk) populate() {
	for i := range 3 + w.random.IntN(12) {
		name := fmt.Sprintf("pod-%d", i)
		seconds := 1 + w.random.Int64N(60)
		ends := apitest.Ending(1 + w.upTo(time.Duration(seconds)*time.Second))
		p := pod(name, grace(seconds), func(p *corev1.Pod) { p.OwnerReferences[0].Name = name })
		switch w.random.IntN(5) {
		case 0: // bound late
			p.CreationTimestamp.Time = time.Now().Truncate(time.Second)
			w.after(w.upTo(40*time.Second), func() { w.add(name, p, ends) })
			continue
		case 1, 2: // held
			w.s.Always("evict default/"+name, apitest.HeldBy(fmt.Sprint("budget-", w.random.IntN(2)), 0))
			w.after(w.upTo(3*time.Minute), func() { w.s.Always("evict default/"+name, nil) })
		}
		w.add(name, p, ends)
	}
	if w.random.IntN(2) == 0 {
		w.wg.Go(func() {
			for i := 0; ; i++ {
				name := fmt.Sprintf("back-%d", i)
				w.mu.Lock()
				w.returning["default/"+name] = true
				w.mu.Unlock()
				w.add(name, pod(name), apitest.Ending(500*time.Millisecond))
				for w.s.HasPod("default/" + name) {
					select {
					case <-w.stop:
						return
					case <-time.After(100 * time.Millisecond):
					}
				}
			}
		})
	}
}

// upset makes requests of one kind fail for a while.
func (w *walk) upset() {
	names := make([]string, 0, len(outages))
	for name := range outages {
		names = append(names, name)
	}
	slices.Sort(names)
	for range w.random.IntN(4) {
		outage, at, lasts := outages[names[w.random.IntN(len(names))]], w.upTo(time.Minute), w.upTo(20*time.Second)
		if w.random.IntN(3) == 0 {
			at = 0
		}
		w.after(at, func() {
			mend := outage(w.s)
			w.after(lasts, mend)
		})
	}
}

// adjust changes the goal a few times. A hard deadline, once there is one, stays.
func (w *walk) adjust(began time.Time) {
	at := time.Duration(0)
	for i := range w.random.IntN(4) {
		at += w.upTo(40 * time.Second)
		limit, hard, joins := at+time.Second+w.upTo(3*time.Minute), w.random.IntN(2) == 0, w.random.IntN(3) == 0
		w.after(at, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.r.adjust(func(g *drain.Goal) {
				if hard || !g.Hard.IsZero() {
					g.Hard = began.Add(limit)
				} else {
					g.Soft = began.Add(limit)
				}
				if joins {
					g.Events = append(g.Events, fmt.Sprint("event-joined-", i))
				}
			})
			w.goals = append(w.goals, setGoal{w.r.goal, time.Now()})
		})
	}
}

func (w *walk) run() {
	began := time.Now()
	w.populate()
	w.upset()
	goal := goalWithin(w.random.IntN(3) > 0, time.Minute+w.upTo(3*time.Minute))
	w.r = start(w.t, w.s, drain.Options{Margin: 2 * time.Second}, goal)
	w.mu.Lock()
	w.goals = []setGoal{{goal, began}}
	w.mu.Unlock()
	w.adjust(began)
	time.Sleep(8 * time.Minute) // By now all budgets have yielded, and all rounds are over.
	synctest.Wait()
	if told := w.r.last(); !told.State.Drained || told.Left > 0 {
		w.t.Errorf("it is not drained at last: %+v, %+v", told, w.r.guard.Result())
	}
	close(w.stop)
	w.wg.Wait()
	w.r.cancel()
	<-w.r.done
	w.mu.Lock()
	defer w.mu.Unlock()
	w.judgeDrained()
	w.judgeGraces()
	w.judgeBounds()
}

// judgeDrained looks at what was on the node when it was told to be drained.
func (w *walk) judgeDrained() {
	gone := map[string]time.Time{}
	w.r.mu.Lock()
	told := slices.Clone(w.r.told)
	at := slices.Clone(w.r.at)
	w.r.mu.Unlock()
	for i, p := range told {
		if p.Kind == state.PodGone {
			gone[p.Pod] = at[i]
		}
		if p.Kind != state.NodeEmpty {
			continue
		}
		var list time.Time
		for _, q := range w.s.Requests("list") {
			if !q.At.After(at[i]) {
				list = q.At
			}
		}
		for name, added := range w.added {
			if _, left := gone[name]; !left && added.Before(list) && !w.returning[name] {
				w.t.Errorf("told to be drained after %s, and %s is there", at[i].Sub(w.goals[0].at), name)
			}
		}
	}
	for name := range w.added {
		if !w.returning[name] && w.s.HasPod(name) {
			w.t.Errorf("%s is there at the end", name)
		}
	}
}

// judgeGraces looks at the grace that pods were given.
func (w *walk) judgeGraces() {
	for _, q := range w.s.Requests("evict", "delete") {
		what, name, _ := strings.Cut(q.What, " ")
		goals := slices.DeleteFunc(slices.Clone(w.goals), func(g setGoal) bool { return g.at.After(q.At) })
		now := goals[len(goals)-1]
		own, g := w.graces[name], q.Options.GracePeriodSeconds
		if now.goal.Hard.IsZero() {
			if what == "delete" || g != nil {
				w.t.Errorf("%s with the grace %v without a hard deadline", q.What, g)
			}
			continue
		}
		left := now.goal.Hard.Add(-2 * time.Second).Sub(q.At)
		overtime := now.goal.Hard.Before(q.At.Add(time.Second))
		given := own
		if g != nil {
			given = time.Duration(*g) * time.Second
		}
		if want := max(min(own, left.Truncate(time.Second)), time.Second); given < want && !overtime || given > own && own >= time.Second {
			w.t.Errorf("%s with %s, where it has %s and %s were left", q.What, given, own, left)
		}
		if !overtime && given > max(left+time.Second, time.Second) {
			w.t.Errorf("%s with %s, where %s were left", q.What, given, left)
		}
		if what == "delete" && left > own+time.Second {
			w.t.Errorf("%s with %s left, where it has %s", q.What, left, own)
		}
	}
}

// judgeBounds looks at how often pods were asked for.
func (w *walk) judgeBounds() {
	joined := len(w.goals[len(w.goals)-1].goal.Events)
	back := 0
	for name := range w.returning {
		if strings.HasPrefix(name, "default/back-") {
			back++
		}
	}
	turns := joined // each of as many rounds as there are
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	for _, p := range w.r.told {
		if p.Kind == state.NodeClosed {
			break
		}
		if p.Kind == state.PodEvicted && strings.HasPrefix(p.Pod, "default/back-") {
			turns++ // Kind comes back to an open node counts by itself.
			break
		}
	}
	if back > 1+5*turns+1 {
		w.t.Errorf("%d pods came back for %d events", back, joined)
	}
	if n := count(w.s, "evict", "delete"); n > 200*len(w.added) {
		w.t.Errorf("%d requests for %d pods", n, len(w.added))
	}
}
