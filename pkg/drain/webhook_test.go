package drain_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/state"
)

// deadWebhook is an API server with an admission webhook that cannot be reached. It waits for timeoutSeconds, and then goes on if the
// failurePolicy is Ignore, or names the webhook if that is Fail. The request of a client that has left ends with that.
func deadWebhook(timeout time.Duration, ignore bool) apitest.Answer {
	return func(w http.ResponseWriter, r *http.Request) bool {
		select {
		case <-r.Context().Done():
			return true
		case <-time.After(timeout):
		}
		if ignore {
			return false
		}
		return refusal(http.StatusInternalServerError, metav1.StatusReasonInternalError, `Internal error occurred: failed calling webhook `+
			`"pods.example.org": failed to call webhook: Post "https://policy.example.svc:443/validate": context deadline exceeded`)(w, r)
	}
}

// refusal is an answer of the API server's with any code.
func refusal(code int, reason metav1.StatusReason, message string) apitest.Answer {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, err := fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,"reason":%q,"message":%q}`, code, reason, message)
		return err == nil
	}
}

// timeoutSeconds is 10 by default, and 30 at most.
var webhookTimeouts = []time.Duration{10 * time.Second, 30 * time.Second}

func TestAWebhookThatIsDeadAndIgnoredDelaysADrainAndTheEndOfACordon(t *testing.T) {
	t.Parallel()
	for _, timeout := range webhookTimeouts {
		for _, what := range []string{"evict", "patch"} {
			run(t, fmt.Sprint(what, ", ", timeout), func(t *testing.T) {
				s := apitest.New(t)
				s.AddPod(pod("a"), 0)
				s.Always(what, deadWebhook(timeout, true))
				r := drained(t, s, drain.Options{})
				r.cancel()
				<-r.done
				result, err := drain.New(s.Client(), apitest.Node, drain.Options{}).Uncordon(within(t, plenty), nil)
				if s.CurrentNode().Spec.Unschedulable || count(s, "evict") != 1 || count(s, "patch") != 2 {
					t.Errorf("uncordoned with %q, %v, after %d evictions and %d patches", result, err, count(s, "evict"), count(s, "patch"))
				}
			})
		}
	}
}

func TestAWebhookThatIsDeadIsNamed(t *testing.T) {
	t.Parallel()
	for _, timeout := range webhookTimeouts {
		run(t, fmt.Sprint(timeout), func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("a"), 0)
			s.Always("evict", deadWebhook(timeout, false))
			r := begin(t, s, drain.Options{})
			r.await(state.PodRefused)
			if told := r.of(state.PodRefused)[0].Detail; !strings.Contains(told, `failed calling webhook "pods.example.org"`) {
				t.Errorf("told %q", told)
			}
		})
	}
}

// Every write takes ten seconds. A budget lets the pod go only when its turn has come.
func TestAPodIsToldToEndBeforeTheMachineIsLostThoughAWebhookIsDeadAndIgnored(t *testing.T) {
	t.Parallel()
	for name, evict := range map[string]apitest.Answer{"": deadWebhook(10*time.Second, true), "held by a budget": apitest.HeldBy("budget", 0)} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("a", grace(30)), apitest.Ending(5*time.Second))
			s.Always("evict", evict)
			for _, what := range []string{"delete", "patch"} {
				s.Always(what, deadWebhook(10*time.Second, true))
			}
			beginWithin(t, s, drain.Options{Margin: 5 * time.Second}, true, 2*time.Minute)
			time.Sleep(2 * time.Minute)
			if s.HasPod("default/a") || !s.CurrentNode().Spec.Unschedulable {
				t.Errorf("when the machine is lost, the pod is there: %t, and the node is closed: %t, after %d deletions",
					s.HasPod("default/a"), s.CurrentNode().Spec.Unschedulable, count(s, "delete"))
			}
		})
	}
}

// The API server keeps the code that a webhook denies a request with (ToStatusErr in pkg/admission/plugin/webhook/errors of k8s.io/apiserver).
func TestAWebhooksRefusalIsToldWhateverItsCode(t *testing.T) {
	t.Parallel()
	for code, reason := range map[int]metav1.StatusReason{
		http.StatusConflict: metav1.StatusReasonConflict, http.StatusNotFound: metav1.StatusReasonNotFound, http.StatusForbidden: metav1.StatusReasonForbidden,
	} {
		run(t, fmt.Sprint(code), func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("a"), 0)
			s.Always("evict", refusal(code, reason, `admission webhook "db.example.org" denied the request: a backup is under way`))
			r := begin(t, s, drain.Options{})
			r.await(state.PodRefused)
			if held := r.guard.Result().HeldBy["default/a"]; !strings.Contains(held, "a backup is under way") {
				t.Errorf("held by %q", held)
			}
		})
	}
}
