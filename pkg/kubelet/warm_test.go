package kubelet_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
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

// A file on a server that is gone is read for ever.
func TestAKubeconfigThatIsReadForEverIsToldOfAndWaitedForNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		back := make(chan struct{})
		k := kubelet.New(kubelet.Options{Read: func(context.Context) (string, []byte, error) {
			<-back
			return "the settings", nil, nil
		}})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		began, told := time.Now(), make(chan error)
		go k.KeepWarm(ctx, time.Minute, func(err error) {
			select {
			case told <- err:
			case <-ctx.Done():
			}
		})
		for range 3 {
			if err := <-told; !says("looking at the kubeconfig takes more than 20s")(err) {
				t.Errorf("the round ended with: %v", err)
			}
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("three rounds took %s", took)
		}
		began = time.Now()
		if _, err := k.Identity(t.Context()); !says("looking at the kubeconfig takes more than 20s")(err) || time.Since(began) != 0 {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		close(back)
		for err := range told {
			if errors.Is(err, kubelet.ErrNotYet) {
				break
			}
		}
	})
}

// It takes the twenty seconds that a look is given.
func TestAnIdentityIsKeptWarmWhileItsKubeconfigIsReadForEver(t *testing.T) {
	t.Parallel()
	server := startAPIServer(t)
	var gone atomic.Bool
	text := []byte(server.kubeconfig(tokenUser("system:node:a")))
	k := kubelet.New(kubelet.Options{Read: func(context.Context) (string, []byte, error) {
		if gone.Load() {
			<-t.Context().Done()
		}
		return "the settings", text, nil
	}})
	identityOf(t, k)
	gone.Store(true)
	before := len(server.heard())
	keepWarm(t, k)("it is told of", says("looking at the kubeconfig takes more than"))
	if heard := server.heard(); len(heard) == before || !strings.Contains(heard[before], "/nodes/a") {
		t.Errorf("meanwhile the server has heard %q", heard[before:])
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
