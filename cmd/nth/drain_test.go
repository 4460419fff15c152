package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/rehearsal"
	"github.com/nth-project/nth/pkg/state"
)

// ownCluster is a cluster whose node is this machine, with the settings that lead there.
func ownCluster(t *testing.T, more string) (cluster *rehearsal.Cluster, settings string) {
	t.Helper()
	bootID, err := record.BootID("/")
	if err != nil {
		t.Fatal(err)
	}
	cluster = rehearsal.New(bootID)
	server := httptest.NewServer(cluster)
	t.Cleanup(server.Close)
	kubeconfig := file(t, string(rehearsal.Kubeconfig(server.URL)))
	return cluster, file(t, fmt.Sprintf("%s[kubernetes]\nkubeconfig = %q\n", more, kubeconfig))
}

// nodeOf is the cluster's node now.
func nodeOf(t *testing.T, cluster *rehearsal.Cluster) *corev1.Node {
	t.Helper()
	w := httptest.NewRecorder()
	cluster.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/v1/nodes/"+rehearsal.Node, http.NoBody))
	node := &corev1.Node{}
	if err := json.Unmarshal(w.Body.Bytes(), node); err != nil {
		t.Fatal(err)
	}
	return node
}

// writerOf names who has cordoned the node; "" is nobody.
func writerOf(t *testing.T, cluster *rehearsal.Cluster) string {
	t.Helper()
	node := nodeOf(t, cluster)
	if !node.Spec.Unschedulable {
		return ""
	}
	claim := drain.Claim{}
	if err := json.Unmarshal([]byte(node.Annotations[drain.CordonAnnotation]), &claim); err != nil {
		t.Errorf("the claim is %q: %v", node.Annotations[drain.CordonAnnotation], err)
	}
	return claim.Writer
}

// typed runs nth as a process of its own.
func typed(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	program := exec.CommandContext(t.Context(), self, args...)
	program.Env = append(os.Environ(), asProgram+"=nth")
	program.Stdout, program.Stderr = &out, &errs
	if err := program.Run(); err != nil {
		exit, ended := errors.AsType[*exec.ExitError](err)
		if !ended {
			t.Fatal(err)
		}
		status = exit.ExitCode()
	}
	return status, out.String(), errs.String()
}

// drainBench is a bench with a running service for a cluster's node.
func drainBench(t *testing.T) (*bench, *rehearsal.Cluster, *served) {
	t.Helper()
	b := newBench(t)
	var cluster *rehearsal.Cluster
	const form = "[events.shutdown]\naction = \"ignore\"\n[events.hibernation]\naction = \"ignore\"\n[imds]\nendpoint = %q\n"
	cluster, b.settings = ownCluster(t, fmt.Sprintf(form, b.imds.URL))
	s := b.serveNth(t)
	s.awaitStatus(t, "nothing is announced for node "+rehearsal.Node)
	return b, cluster, s
}

func TestDrain_AsksTheServiceUntilUndo(t *testing.T) {
	b, cluster, s := drainBench(t)
	status, said, stderr := typed(t, "drain", "--deadline", "2s")
	if status != 1 || !strings.Contains(stderr, "stopped waiting for the service after 2s: ") || !strings.Contains(stderr, `continues until "nth drain --undo"`) {
		t.Errorf("status %d, on standard error %q, said\n%s", status, stderr, said)
	}
	status, said, stderr = typed(t, "drain") // It replaces the first.
	if status != 0 || stderr != "" || writerOf(t, cluster) != drain.Host || !strings.Contains(said, "node made-up-node is drained for manual") {
		t.Errorf("status %d, on standard error %q, cordoned by %q, said\n%s", status, stderr, writerOf(t, cluster), said)
	}
	s.stop(t)
	s = b.serveNth(t) // The drain stands.
	s.awaitStatus(t, "is drained for manual")
	if writerOf(t, cluster) != drain.Host {
		t.Error("the node is not cordoned after a restart of the service")
	}
	for range 2 {
		status, said, stderr = typed(t, "drain", "--undo")
		if status != 0 || stderr != "" || !strings.Contains(said, "nothing is announced for node") || writerOf(t, cluster) != "" {
			t.Errorf("status %d, on standard error %q, cordoned by %q, said\n%s", status, stderr, writerOf(t, cluster), said)
		}
	}
	s.stop(t)
}

func TestDrain_EndsWhenOperatorsDecideOtherwise(t *testing.T) {
	for words, decide := range map[string]func(dir, id string) (event state.EventStatus, err error){
		"someone uncordoned the node": func(_, id string) (state.EventStatus, error) {
			return state.EventStatus{ID: id, Released: true}, nil
		},
		"the Node's annotation nth-project.github.io/action forbids evictions": func(_, id string) (state.EventStatus, error) {
			return state.EventStatus{ID: id, LeftAlone: true}, nil
		},
		`another "nth drain" has ended or replaced this one`: func(dir, _ string) (state.EventStatus, error) {
			return state.EventStatus{}, record.RemoveDrainRequest(dir)
		},
	} {
		t.Run(words, func(t *testing.T) {
			newBench(t)
			dir := os.Getenv("STATE_DIRECTORY")
			showing, stop := context.WithCancel(t.Context())
			var service sync.WaitGroup
			show := func(events ...state.EventStatus) {
				s := state.Status{Version: state.StatusVersion, PID: os.Getpid(), Updated: time.Now(), Node: "a", Events: events}
				if err := record.WriteStatus(os.Getenv("RUNTIME_DIRECTORY"), s); err != nil {
					t.Error(err)
				}
			}
			show()
			service.Go(func() {
				asked := record.DrainRequest{}
				for asked.ID == "" && showing.Err() == nil {
					asked, _ = record.ReadDrainRequest(dir)
				}
				event, err := decide(dir, asked.ID)
				if err != nil {
					t.Error(err)
				}
				show(event)
			})
			status, _, stderr := call(t, "drain")
			if status != 1 || !strings.Contains(stderr, words) {
				t.Errorf("status %d, on standard error %q", status, stderr)
			}
			stop()
			service.Wait()
		})
	}
}

func TestDrain_AnUnreadableRequestIsReported(t *testing.T) {
	b, _, s := drainBench(t)
	b.put(t, "state/drain.json", "not JSON")
	s.awaitStatus(t, "nth drain: reading the drain request "+filepath.Join(b.host, "state/drain.json"))
	if status, said, stderr := typed(t, "drain", "--undo"); status != 0 {
		t.Errorf("status %d, on standard error %q, said\n%s", status, stderr, said)
	}
	for stdout := "nth drain: "; strings.Contains(stdout, "nth drain: ") && s.over() == nil; runtime.Gosched() {
		_, stdout, _ = call(t, "status")
	}
	s.stop(t) // It fails if the process was killed.
}

func TestDrain_NeedsAServiceWithACredential(t *testing.T) {
	for want, left := range map[string]func(*state.Status){
		"run: sudo systemctl restart nth":                      func(s *state.Status) { s.Stopped = s.Updated },
		"as nth cannot drain the node: there is no kubeconfig": without,
		"the service runs as a dry run, and changes nothing\n": func(s *state.Status) { s.DryRun = true },
	} {
		b := newBench(t)
		s := watching()
		left(&s)
		b.leave(t, s)
		status, said, stderr := call(t, "drain")
		request, err := record.ReadDrainRequest(os.Getenv("STATE_DIRECTORY"))
		if status != 1 || said != "" || !strings.Contains(stderr, want) || request.ID != "" || err != nil {
			t.Errorf("status %d, on standard error %q, asked for %v (%v), said\n%s", status, stderr, request, err, said)
		}
	}
}

func TestDrain_DryRunShowsThePlan(t *testing.T) {
	cluster, kubeconfig, written := realCluster(t)
	settings := file(t, fmt.Sprintf("[kubernetes]\nkubeconfig = %q\n", kubeconfig))
	status, said, stderr := call(t, "drain --dry-run --config "+settings)
	if status != 0 || stderr != "" || !strings.Contains(oneLine(said), "default/cache-0 StatefulSet 30 s") || writerOf(t, cluster) != "" || len(written()) > 0 {
		t.Errorf("status %d, on standard error %q, written %q, said\n%s", status, stderr, written(), said)
	}
}
