package kubelet_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/kubelet"
)

// keepWarm runs KeepWarm, with hardly a pause, until the test ends and returns a function that waits until a round ends
// in a way that is wanted.
func keepWarm(t *testing.T, k *kubelet.Kubelet) (until func(what string, wanted func(error) bool)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	rounds, ended := make(chan error), make(chan struct{})
	go func() {
		defer close(ended)
		k.KeepWarm(ctx, time.Millisecond, func(err error) {
			select {
			case rounds <- err:
			case <-ctx.Done():
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return func(what string, wanted func(error) bool) {
		t.Helper()
		var last error
		for deadline := time.After(30 * time.Second); ; {
			select {
			case last = <-rounds:
				if wanted(last) {
					return
				}
			case <-deadline:
				t.Fatalf("waiting until %s: the last round ended with: %v", what, last)
			}
		}
	}
}

func warm(err error) bool { return err == nil }

func says(word string) func(error) bool {
	return func(err error) bool { return err != nil && strings.Contains(err.Error(), word) }
}

func TestKeepWarmFollowsTheKubeletAndTellsEveryRound(t *testing.T) {
	server := startAPIServer(t)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	k := kubelet.New(kubelet.Options{Kubeconfig: path})
	until := keepWarm(t, k)
	until("it waits for a kubeconfig", func(err error) bool { return errors.Is(err, kubelet.ErrNotYet) })
	place(t, path, []byte(server.kubeconfig(tokenUser("system:node:a"))))
	until("it is warm", warm)
	server.refuse(http.StatusServiceUnavailable)
	until("the server is down", says(`reading node "a"`))
	server.refuse(0)
	until("it is warm again", warm)
	place(t, path, []byte("}"))
	until("the kubeconfig is broken", says("reading the kubeconfig "+path))
	place(t, path, []byte(server.kubeconfig(tokenUser("system:node:b"))))
	until("the kubeconfig is replaced", warm)
	becomes(t, k, "b")
	asked := strings.Join(server.heard(), "\n")
	for _, want := range []string{
		"GET /api/v1/nodes/a?resourceVersion=0 by system:node:a",
		"GET /api/v1/nodes/b?resourceVersion=0 by system:node:b",
	} {
		if !strings.Contains(asked, want) {
			t.Errorf("the server has not heard %q, but\n%s", want, asked)
		}
	}
}

func TestANodeThatIsNotRegisteredIsWarmAllTheSame(t *testing.T) {
	server := startAPIServer(t)
	server.absent["a"] = true
	path := place(t, filepath.Join(t.TempDir(), "kubeconfig"), []byte(server.kubeconfig(tokenUser("system:node:a"))))
	until := keepWarm(t, kubelet.New(kubelet.Options{Kubeconfig: path}))
	until("it is warm", warm)
}

func TestARotatedCertificateIsUsedByTheSameClient(t *testing.T) {
	server, dir := startAPIServer(t), t.TempDir()
	pair := place(t, filepath.Join(dir, "current.pem"), certificate(t, "system:node:a"))
	user := fmt.Sprintf(`{"client-certificate": %q, "client-key": %q}`, pair, pair)
	id := identity(t, server.kubeconfig(user))
	place(t, pair, certificate(t, "system:node:a-rotated")) // The name shows which one the server was shown.
	for deadline := time.Now().Add(30 * time.Second); ; {
		_, err := id.Client.CoreV1().Nodes().Get(t.Context(), "a", meta.GetOptions{})
		requests := server.heard()
		if last := requests[len(requests)-1]; strings.HasSuffix(last, "by system:node:a-rotated") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still the old certificate: %q (%v)", requests[len(requests)-1], err)
		}
	}
}
