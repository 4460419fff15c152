package drain_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
)

func TestAHeldPodIsAskedForAgainAndItsBudgetToldOnce(t *testing.T) {
	t.Parallel()
	s := apitest.New(t)
	s.AddPod(pod("a"), 0)
	s.Answer("evict", apitest.HeldBy("web-budget", 0), apitest.HeldBy("web-budget", 0), apitest.HeldBy("web-budget", 0))
	r := drained(t, s, drain.Options{})
	if r.result.Evicted != 1 || count(s, "evict") != 4 {
		t.Errorf("%+v after %d evictions", r.result, count(s, "evict"))
	}
	if held := r.of(drain.Held); len(held) != 1 || held[0].Detail != "web-budget" || held[0].Pod != "default/a" {
		t.Errorf("told %+v", held)
	}
}

func TestAnEvictionIsRepeatedWhateverRefusesItAndTheReasonIsTold(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer apitest.Answer
		detail string
	}{
		"throttled":             {apitest.Throttled(1), "429 Too Many Requests"},
		"two budgets":           {apitest.TwoBudgets(), "more than one PodDisruptionBudget"},
		"unavailable":           {apitest.Unavailable(), "503 Service Unavailable"},
		"a webhook says no":     {apitest.Forbidden("admission webhook denied the request"), "admission webhook denied"},
		"the connection breaks": {apitest.Reset(), "cannot be reached"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := apitest.New(t)
			s.AddPod(pod("a"), 0)
			s.Answer("evict", c.answer, c.answer)
			r := drained(t, s, drain.Options{})
			if r.result.Evicted != 1 || count(s, "evict") != 3 {
				t.Errorf("%+v after %d evictions; want 3", r.result, count(s, "evict"))
			}
			if told := r.of(drain.Refused); len(told) != 1 || !strings.Contains(told[0].Detail, c.detail) {
				t.Errorf("told %+v; want once %q", told, c.detail)
			}
		})
	}
}

// The first answer of an API server that has not heard of a young pod, and the last of one whose pod has gone, are the
// same. Only the watch tells which it is.
func TestAnAnswerThatThePodIsUnknownIsNoSuccess(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]apitest.Answer{
		"404": apitest.NotFound(), "403, no relationship": apitest.NoRelationship(), "409": apitest.Conflict(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := apitest.New(t)
			s.AddPod(pod("a"), 0)
			s.Answer("evict", answer, answer)
			r := drained(t, s, drain.Options{})
			if s.HasPod("default/a") || r.result.Evicted != 1 || count(s, "evict") != 3 {
				t.Errorf("%+v after %d evictions", r.result, count(s, "evict"))
			}
			if told := r.of(drain.Refused); len(told) != 0 {
				t.Errorf("told %+v", told)
			}
		})
	}
}

func TestADeletionIsInsistedOnLikeAnEviction(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]apitest.Answer{
		"a webhook says no":     apitest.Forbidden("admission webhook denied the request"),
		"403, no relationship":  apitest.NoRelationship(),
		"404":                   apitest.NotFound(),
		"the connection breaks": apitest.Reset(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := apitest.New(t)
			s.AddPod(pod("a", grace(600)), 0)
			s.Always("evict", apitest.HeldBy("budget", 0))
			s.Answer("delete", answer, answer)
			r := beginWithin(t, s, drain.Options{}, true, plenty)
			if result := r.succeed(); result.Deleted != 1 || count(s, "delete") != 3 {
				t.Errorf("%+v after %d deletions", result, count(s, "delete"))
			}
		})
	}
}

// One request per answer: client-go by itself would obey a Retry-After up to ten times within one call.
func TestRetryAfterIsObeyedWithinReason(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]apitest.Answer{
		"a budget that is being worked on": apitest.HeldBy("budget", 600),
		"throttling":                       apitest.Throttled(600),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := apitest.New(t)
			s.AddPod(pod("a"), 0)
			s.Answer("evict", answer)
			if r := drained(t, s, drain.Options{}); count(s, "evict") != 2 || r.result.Evicted != 1 {
				t.Errorf("%d evictions, %+v", count(s, "evict"), r.result)
			}
		})
	}
}

func TestRetryAfterDoesNotSleepThroughTheTurn(t *testing.T) {
	t.Parallel()
	s := apitest.New(t)
	s.AddPod(pod("a", grace(2)), 0)
	s.Always("evict", apitest.Throttled(600))
	r := beginWithin(t, s, drain.Options{}, true, 5*time.Second)
	if result := r.succeed(); result.Deleted != 1 {
		t.Errorf("%+v", result)
	}
}
