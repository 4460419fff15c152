package evict_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/evict"
)

// scene is a drain from its begin to its deadline. Times count from the begin; 0 is none.
type scene struct {
	opts              evict.Options
	pods              []*corev1.Pod
	ends              apitest.Ending // of the pods
	hard, soft, delay time.Duration
	evict, delete     apitest.Answer
	at                time.Duration // when the pods come
	moves             func(*evict.Terms, time.Time)
	want              string // what is asked for, the first time, when, and with which grace if that is not the pod's
}

// play returns what was asked for the first time, when, and with which grace if that is not the pod's own.
func (c scene) play(t *testing.T, s *apitest.Server) string {
	t.Helper()
	uids := map[types.UID]bool{}
	add := func() {
		for _, p := range c.pods {
			uids[s.AddPod(p, c.ends).UID] = true
		}
	}
	if c.at == 0 {
		add()
	}
	s.Always("evict", c.evict)
	s.Always("delete", c.delete)
	terms := delayed(c.delay, true, c.hard)
	if c.soft != 0 {
		terms.Soft = time.Now().Add(c.soft)
	}
	r := start(t, s, c.opts, terms)
	if c.at > 0 {
		time.Sleep(c.at)
		add()
	}
	if c.moves != nil {
		time.Sleep(10 * time.Second)
		r.adjust(func(g *evict.Terms) { c.moves(g, r.began) })
	}
	time.Sleep(c.at + max(c.hard, c.soft, time.Minute))
	asked := s.Requests("evict", "delete")
	slices.SortStableFunc(asked, func(a, b apitest.Request) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.What, b.What)) })
	var found []string
	seen := map[string]bool{}
	for _, q := range asked {
		if p := q.Options.Preconditions; p == nil || p.UID == nil || !uids[*p.UID] {
			t.Errorf("%s with the preconditions %+v", q.What, p)
		}
		if seen[q.What] {
			continue
		}
		seen[q.What] = true
		what := fmt.Sprintf("%s %s", strings.Replace(q.What, "default/", "", 1), q.At.Sub(r.began)-c.at)
		if g := q.Options.GracePeriodSeconds; g != nil {
			what += fmt.Sprintf(" with %d", *g)
		}
		found = append(found, what)
	}
	return strings.Join(found, ", ")
}

func TestPlan(t *testing.T) {
	t.Parallel()
	const near = 40 * time.Second
	const karpenters, autoscalers = "karpenter.sh/do-not-disrupt", "cluster-autoscaler.kubernetes.io/safe-to-evict"
	respect := evict.Options{RespectDoNotDisrupt: true}
	held, stuck := apitest.HeldBy("budget", 0), pod("stuck", ending(3600))
	set := func(d time.Duration) *time.Duration { return &d }
	one := func(seconds int64, changes ...func(*corev1.Pod)) []*corev1.Pod {
		return []*corev1.Pod{pod("a", append(changes, grace(seconds))...)}
	}
	for name, c := range map[string]scene{
		// Before a hard deadline, a pod that a budget holds is deleted at its turn.
		"a grace that does not fit is clipped":       {pods: one(600), hard: near, evict: held, want: "delete a 0s with 40, evict a 0s with 40"},
		"the margin is kept free":                    {opts: evict.Options{Margin: 30 * time.Second}, pods: one(600), hard: near, evict: held, want: "delete a 0s with 10, evict a 0s with 10"},
		"never below one second":                     {opts: evict.Options{Margin: 2 * near}, pods: one(600), hard: near, evict: held, want: "delete a 0s with 1, evict a 0s with 1"},
		"a grace that fits is given whole":           {pods: one(3), hard: near, evict: held, want: "evict a 0s, delete a 37s"},
		"a pod without grace gets the usual seconds": {opts: evict.Options{Margin: 30 * time.Second}, pods: []*corev1.Pod{pod("a", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = nil })}, hard: near, evict: held, want: "delete a 0s with 10, evict a 0s with 10"},
		"a setting replaces the grace":               {opts: evict.Options{GracePeriod: set(2 * time.Second)}, pods: one(600), hard: near, evict: held, want: "evict a 0s with 2, delete a 38s with 2"},
		"a setting of nothing is one second":         {opts: evict.Options{GracePeriod: set(0), Margin: time.Second}, pods: one(600), hard: near, evict: held, want: "evict a 0s with 1, delete a 38s with 1"},
		"a negative grace is a second":               {pods: one(-30), hard: near, evict: held, want: "evict a 0s, delete a 39s"},
		"a negative one that overflows, too":         {pods: one(-9223372037), hard: near, evict: held, want: "evict a 0s, delete a 39s"},
		"one that overflows is long":                 {pods: one(9223372037), hard: near, evict: held, want: "delete a 0s with 40, evict a 0s with 40"},
		"a long grace comes before a short one":      {pods: []*corev1.Pod{pod("s", grace(1)), pod("m", grace(3)), pod("l", grace(600))}, hard: 6 * time.Second, evict: held, want: "delete l 0s with 6, evict l 0s with 6, evict m 0s, evict s 0s, delete m 3s, delete s 5s"},
		// A soft deadline deletes nothing, and takes no time from a hard one.
		"soft, held":                {pods: one(600), soft: near, evict: held, want: "evict a 0s"},
		"hard, a nearer soft one":   {opts: evict.Options{Margin: 2 * time.Second}, pods: one(30), hard: time.Minute, soft: 40 * time.Second, evict: held, want: "evict a 0s, delete a 28s"},
		"hard, an overdue soft one": {opts: evict.Options{Margin: 2 * time.Second}, pods: one(30), hard: time.Minute, soft: -time.Hour, evict: held, want: "evict a 0s, delete a 28s"},
		"hard, a later soft one":    {opts: evict.Options{Margin: 2 * time.Second}, pods: one(30), hard: time.Minute, soft: time.Hour, evict: held, want: "evict a 0s, delete a 28s"},
		"a hard one that comes": {
			opts: evict.Options{Margin: 2 * time.Second}, pods: one(30), soft: time.Hour, evict: held,
			moves: func(g *evict.Terms, began time.Time) { g.Hard = began.Add(time.Minute) },
			want:  "evict a 0s, delete a 28s",
		},
		// Nothing delays a pod beyond its turn. The terms are judged again while it waits for something else.
		"accepted without effect": {
			pods: one(30), hard: 42 * time.Second, delay: 5 * time.Second, evict: accepted, moves: func(*evict.Terms, time.Time) {}, want: "evict a 5s, delete a 12s",
		},
		"throttled": {
			pods: one(30), hard: 42 * time.Second, delay: 8 * time.Second, evict: apitest.Throttled(60), moves: func(*evict.Terms, time.Time) {}, want: "evict a 8s, delete a 12s",
		},
		"a delay, hard":                     {pods: one(2), hard: 5 * time.Second, delay: time.Hour, want: "evict a 3s"},
		"a delay, soft":                     {pods: one(2), soft: 5 * time.Second, delay: time.Hour, want: "evict a 3s"},
		"a delay, and a grace that is long": {pods: one(600), hard: 5 * time.Second, delay: time.Hour, want: "evict a 0s with 5"},
		"others, critical, hard":            {pods: append(one(2, critical), stuck), ends: apitest.Never, hard: 5 * time.Second, want: "evict a 3s, delete stuck 4s with 1"},
		"others, critical, soft":            {pods: append(one(2, critical), stuck), ends: apitest.Never, soft: 5 * time.Second, want: "evict a 3s"},
		"its own wish":                      {pods: one(10, annotated(evict.Annotation, evict.AtDeadline)), hard: near, want: "evict a 30s"},
		"its own wish, soft":                {pods: one(10, annotated(evict.Annotation, evict.AtDeadline)), soft: near, want: "evict a 30s"},
		"its own wish, soft, a later hard":  {pods: one(10, annotated(evict.Annotation, evict.AtDeadline)), soft: near, hard: 15 * time.Minute, want: "evict a 30s"},
		"its own wish, without a deadline":  {pods: one(10, annotated(evict.Annotation, evict.AtDeadline))},
		"its own wish never":                {pods: one(10, annotated(evict.Annotation, evict.Never)), hard: near},
		"its own wish, once finished":       {pods: one(10, annotated(evict.Annotation, evict.AtDeadline), phase(corev1.PodSucceeded)), soft: near, want: "evict a 0s"},
		"its own wish, finished, no end":    {pods: one(10, annotated(evict.Annotation, evict.AtDeadline), phase(corev1.PodFailed)), want: "evict a 0s"},
		// The annotations of others, by a setting.
		"Karpenter's":                   {opts: respect, pods: one(10, annotated(karpenters, "true")), hard: near, want: "evict a 30s"},
		"Karpenter's, a duration":       {opts: respect, pods: one(10, annotated(karpenters, "1h")), hard: near, want: "evict a 0s"},
		"Karpenter's, and its own wish": {opts: respect, pods: one(10, annotated(karpenters, "true"), annotated(evict.Annotation, "now")), hard: near, want: "evict a 0s"},
		"the autoscaler's":              {opts: respect, pods: one(10, annotated(autoscalers, "false")), hard: near, want: "evict a 30s"},
		"the autoscaler's, safe":        {opts: respect, pods: one(10, annotated(autoscalers, "true")), hard: near, want: "evict a 0s"},
		"the autoscaler's, no deadline": {opts: respect, pods: one(10, annotated(autoscalers, "false"))},
		"both, not by default":          {pods: one(10, annotated(karpenters, "true"), annotated(autoscalers, "false")), hard: near, want: "evict a 0s"},
		// Critical pods come after the others, unless one of those does not end, and the drain's own pod comes last.
		"critical, once the rest is gone":     {pods: append(one(5), pod("dns", critical)), ends: apitest.Ending(3 * time.Second), want: "evict a 0s, evict dns 3s"},
		"critical, once the rest is overdue":  {pods: []*corev1.Pod{pod("web", grace(5)), pod("dns", critical)}, ends: apitest.Never, want: "evict web 0s, evict dns 15s"},
		"its own pod, also before a deadline": {opts: evict.Options{Last: "default/a"}, pods: append(one(40, critical), pod("dns", critical, grace(5)), pod("web", grace(30))), ends: apitest.Ending(2 * time.Second), hard: time.Minute, want: "evict web 0s, evict dns 2s, evict a 4s"},
		// What others have ended is shortened to a second, in the last one. Their clock is years ahead of the bubble's.
		"shortened":                   {pods: one(1, ending(3600)), ends: apitest.Never, hard: near, want: "delete a 39s with 1"},
		"shortened, with a margin":    {opts: evict.Options{Margin: time.Second}, pods: one(3600, ending(3600)), ends: apitest.Never, hard: near, want: "delete a 38s with 1"},
		"not if it would end in time": {pods: one(1, ending(7)), ends: apitest.Never, hard: 10 * time.Second},
		"not in its last second":      {pods: one(1, ending(1)), ends: apitest.Never, hard: 10 * time.Second, at: 9500 * time.Millisecond},
		// An eviction that was accepted and has no effect gives way to a deletion.
		"accepted before the turn":         {pods: one(30), hard: time.Minute, delay: 25 * time.Second, evict: accepted, want: "evict a 25s, delete a 30s"},
		"accepted shortly before the turn": {pods: one(30), hard: time.Minute, delay: 29500 * time.Millisecond, evict: accepted, want: "evict a 29.5s, delete a 30.5s with 29"},
		"accepted at the turn":             {pods: one(30), hard: time.Minute, delay: time.Minute, evict: accepted, want: "evict a 30s, delete a 40s with 20"},
		"accepted, of little grace":        {pods: one(6), hard: time.Minute, delay: time.Minute, evict: accepted, want: "evict a 54s, delete a 56s with 4"},
		// After a deadline at which the machine was not gone, a pod gets half a minute.
		"late, its own grace fits":   {pods: one(5), hard: 10 * time.Second, at: 70 * time.Second, want: "evict a 0s"},
		"late, it has more":          {pods: one(600), hard: 10 * time.Second, at: 70 * time.Second, want: "evict a 0s with 30"},
		"late, held":                 {pods: one(5), hard: 10 * time.Second, at: 70 * time.Second, evict: held, want: "evict a 0s, delete a 25s"},
		"late, held, a longer grace": {pods: one(600), hard: 10 * time.Second, at: 70 * time.Second, evict: held, want: "delete a 0s with 30, evict a 0s with 30"},
		"late, terminating":          {pods: one(1, ending(3600)), ends: apitest.Never, hard: 10 * time.Second, at: 70 * time.Second, want: "delete a 29s with 1"},
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			if got := c.play(t, s); got != c.want {
				t.Errorf("asked for %q; want %q", got, c.want)
			}
		})
	}
}
