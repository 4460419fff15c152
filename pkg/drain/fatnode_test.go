package drain_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/state"
)

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
	task := drain.NewTask(goal)
	node.Guard(ctx, task, func(p drain.Progress) {
		if p.Kind == state.NodeEmpty {
			cancel()
		}
	})
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return "", err
	}
	_, peak, _ := strings.Cut(string(status), "VmHWM:")
	peak, _, _ = strings.Cut(peak, "\n")
	return fmt.Sprintf("evicted %d VmHWM: %s", task.Result().Evicted, strings.TrimSpace(peak)), nil
}

// fatNode is an API server with a Node of fat pods. It fills them as it sends them; of a watch, the first ten events.
func fatNode(t *testing.T, pods, size int, of corev1.PodPhase) http.Handler {
	s := apitest.New(t)
	for i := range pods {
		s.AddPod(pod(fmt.Sprint("fat-", i), phase(of), annotated("notes", "FILLER"), func(p *corev1.Pod) {
			p.Spec.Containers = []corev1.Container{{Name: "a", Args: []string{"FILLER"}}}
		}), 0)
	}
	filler := strings.NewReplacer("FILLER", strings.Repeat("x", size/2))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.URL.Scheme, r.URL.Host = "http", "server"
		answer, err := s.RoundTripper().RoundTrip(r)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		defer func() { _ = answer.Body.Close() }()
		w.Header().Set("Content-Type", answer.Header.Get("Content-Type"))
		w.WriteHeader(answer.StatusCode)
		lines := bufio.NewReader(answer.Body)
		for n := 0; err == nil; n++ {
			w.(http.Flusher).Flush()
			var line string
			if line, err = lines.ReadString('\n'); n < 10 {
				line = filler.Replace(line)
			}
			_, _ = io.WriteString(w, line)
		}
	})
}
