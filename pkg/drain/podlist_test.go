package drain_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/state"
)

// Something between nth and the API server may ignore the selector.
func TestPods_OfOtherNodesAreIgnored(t *testing.T) {
	bubble(t, func(t *testing.T) {
		elsewhere := func(p *corev1.Pod) { p.Spec.NodeName = "node-2" }
		s := apitest.New(t)
		s.IgnoreSelector()
		s.AddPod(pod("ours"), 0)
		s.AddPod(pod("other", elsewhere), 0)
		r := begin(t, s, drain.Options{})
		r.await(state.PodGone)
		s.AddPod(pod("other-later", elsewhere), 0)
		time.Sleep(time.Minute)
		if result := r.succeed(); result.Evicted != 1 || result.Skipped != 0 || count(s, "evict") != 1 {
			t.Errorf("the result is %+v, after %+v", result, s.Requests("evict"))
		}
	})
}

func TestPods_ListThatIsCutOrForeign(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"empty":           ``,
		"page":            `<html>sign in</html>`,
		"array":           `[]`,
		"another list":    `{"kind":"NodeList","items":[]}`,
		"no kind":         `{"items":[]}`,
		"cut":             `{"kind":"PodList","items":[{"metadata":{"name":"a"}}`,
		"cut at the end":  `{"kind":"PodList","items":[]`,
		"items no list":   `{"kind":"PodList","items":{}}`,
		"pod that is not": `{"kind":"PodList","items":[7]}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := apitest.New(t)
			s.Always("list pods", func(w http.ResponseWriter, _ *http.Request) bool {
				_, _ = io.WriteString(w, body)
				return true
			})
			if f, err := drain.New(s.Client(), apitest.Node, drain.Options{}).Forecast(t.Context(), time.Minute); err == nil {
				t.Errorf("it forecasts %+v", f)
			}
		})
	}
}

// A negative grace period is valid, and stands for a second. One that overflows is long.
func TestGracePeriod_AsTheAPIServerTakesIt(t *testing.T) {
	t.Parallel()
	for seconds, deletedAt := range map[int64]time.Duration{
		-30: 119 * time.Second, -9223372037: 119 * time.Second, 0: 119 * time.Second, 30: 90 * time.Second, 9223372037: time.Second,
	} {
		run(t, fmt.Sprint(seconds), func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("a", grace(seconds)), 0)
			s.Always("evict", apitest.HeldBy("budget", 0))
			r := beginWithin(t, s, drain.Options{}, true, 2*time.Minute)
			time.Sleep(3 * time.Minute)
			deleted := s.Requests("delete")
			if len(deleted) == 0 || r.guard.Result().Deleted != 1 {
				t.Fatalf("it is not deleted; the result is %+v", r.guard.Result())
			}
			if at := deleted[0].At.Sub(r.began); (at - deletedAt).Abs() > 2*time.Second {
				t.Errorf("it is deleted after %s, want %s", at, deletedAt)
			}
		})
	}
}

// A limit that is too short for an API server would be too short again the next time.
func TestReads_LimitsGrowUntilAnswersCome(t *testing.T) {
	t.Parallel()
	for _, takes := range []time.Duration{9 * time.Second, 15 * time.Second} {
		run(t, fmt.Sprint(takes), func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("a"), 0)
			for _, verb := range []string{"get", "list", "watch"} {
				s.Always(verb, late(takes))
			}
			r := beginWithin(t, s, drain.Options{}, true, 90*time.Second)
			if result := r.succeed(); result.Evicted != 1 {
				t.Errorf("the result is %+v", result)
			}
			r.cancel()
			<-r.done
			for _, verb := range []string{"get", "list", "watch"} {
				s.Always(verb, nil)
			}
		})
	}
}

// fatNodeAt is the environment variable that makes the test binary a process that drains the node of the API server there.
const fatNodeAt = "NTH_TEST_FAT_NODE"

// drainFatNode makes a forecast, drains the node, and returns what TestMemory reads.
func drainFatNode(server string) (string, error) {
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server, QPS: -1, ContentConfig: rest.ContentConfig{
		ContentType: runtime.ContentTypeProtobuf, AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON,
	}})
	if err != nil {
		return "", err
	}
	node := drain.New(client, apitest.Node, drain.Options{})
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for err := context.DeadlineExceeded; errors.Is(err, context.DeadlineExceeded); { // On a busy machine its limit has to grow.
		if _, err = node.Forecast(ctx, time.Minute); err != nil && ctx.Err() != nil {
			return "", err
		}
	}
	goal := goalWithin(true, time.Hour)
	guard := node.Guard(goal, func(p drain.Progress) {
		if p.Kind == state.NodeEmpty {
			cancel()
		}
	})
	guard.Run(ctx)
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return "", err
	}
	_, peak, _ := strings.Cut(string(status), "VmHWM:")
	peak, _, _ = strings.Cut(peak, "\n")
	return fmt.Sprintf("evicted %d VmHWM: %s", guard.Result().Evicted, strings.TrimSpace(peak)), nil
}

// fatNode is an API server with a Node of fat pods. It makes their JSON when it sends it.
type fatNode struct {
	pods, size int
	phase      corev1.PodPhase

	mu      sync.Mutex
	ended   []int
	version int
	changed chan struct{}
}

func (n *fatNode) serve(t *testing.T) http.Handler {
	s := apitest.New(t)
	n.changed, n.version = make(chan struct{}), 1_000_000
	mux := http.NewServeMux()
	forward := func(w http.ResponseWriter, r *http.Request) {
		r.RequestURI, r.URL.Scheme, r.URL.Host = "", "http", "server"
		answer, err := s.RoundTripper().RoundTrip(r)
		if err != nil {
			t.Error(err)
			return
		}
		w.Header().Set("Content-Type", answer.Header.Get("Content-Type"))
		w.WriteHeader(answer.StatusCode)
		_, _ = io.Copy(w, answer.Body)
		_ = answer.Body.Close()
	}
	mux.HandleFunc("/api/v1/nodes", forward)
	mux.HandleFunc("/api/v1/nodes/", forward)
	mux.HandleFunc("GET /api/v1/pods", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("watch") != "" {
			n.watch(w, r)
			return
		}
		n.mu.Lock()
		ended := slices.Clone(n.ended)
		_, _ = fmt.Fprintf(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"%d"},"items":[`, n.version)
		n.mu.Unlock()
		comma := ""
		for i := range n.pods {
			if !slices.Contains(ended, i) {
				_, _ = io.WriteString(w, comma+n.pod(i, n.size))
				comma = ","
			}
		}
		_, _ = io.WriteString(w, "]}")
	})
	mux.HandleFunc("POST /api/v1/namespaces/default/pods/{name}/eviction", func(w http.ResponseWriter, r *http.Request) {
		var i int
		_, _ = fmt.Sscanf(r.PathValue("name"), "fat-%d", &i)
		n.mu.Lock()
		if !slices.Contains(n.ended, i) {
			n.ended = append(n.ended, i)
			n.version++
			close(n.changed)
			n.changed = make(chan struct{})
		}
		n.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","code":201}`)
	})
	return mux
}

// watch tells of the pods that have gone since the watch began.
func (n *fatNode) watch(w http.ResponseWriter, r *http.Request) {
	end := time.After(10 * time.Second)
	var from int
	_, _ = fmt.Sscan(r.URL.Query().Get("resourceVersion"), &from)
	told := from - 1_000_000
	w.WriteHeader(http.StatusOK)
	for {
		w.(http.Flusher).Flush()
		n.mu.Lock()
		fresh, changed := slices.Clone(n.ended[told:]), n.changed
		n.mu.Unlock()
		for k, i := range fresh {
			size := n.size
			if told+k > 10 {
				size = 0 // Each event is read alone, and takes time.
			}
			_, _ = io.WriteString(w, `{"type":"DELETED","object":`+n.pod(i, size)+"}\n")
		}
		told += len(fresh)
		select {
		case <-changed:
		case <-end:
			return
		case <-r.Context().Done():
			return
		}
	}
}

func (n *fatNode) pod(i, size int) string {
	p := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: fmt.Sprintf("fat-%d", i), UID: types.UID(fmt.Sprintf("uid-%d", i)), ResourceVersion: "1000000",
			Annotations: map[string]string{"notes": "FILLER"},
		},
		Spec:   corev1.PodSpec{NodeName: apitest.Node, Containers: []corev1.Container{{Name: "a", Args: []string{"FILLER"}}}},
		Status: corev1.PodStatus{Phase: n.phase},
	}
	text, _ := json.Marshal(p) // It always encodes.
	return strings.ReplaceAll(string(text), "FILLER", strings.Repeat("x", size/2))
}
