package drain_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/state"
)

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
