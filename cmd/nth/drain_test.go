package main_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/rehearsal"
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
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	settings = filepath.Join(t.TempDir(), "nth.toml")
	text := fmt.Sprintf("%s[kubernetes]\nkubeconfig = %q\n", more, kubeconfig)
	for file, content := range map[string][]byte{kubeconfig: rehearsal.Kubeconfig(server.URL), settings: []byte(text)} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cluster, settings
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

func TestANodeIsDrainedByHandAndOpenedAgain(t *testing.T) {
	t.Parallel()
	cluster, settings := ownCluster(t, "")
	status, said, stderr := typed(t, "drain", "--config", settings)
	if status != 0 || stderr != "" || writerOf(t, cluster) != drain.ByHand {
		t.Errorf("status %d, on standard error %q, cordoned by %q, said\n%s", status, stderr, writerOf(t, cluster), said)
	}
	for _, words := range []string{
		" s  cordoned the node after ", " s  6 pods to evict\n", " s  evicted default/deaf-1\n", "; retrying\n",
		" s  kube-system/coredns-1 is gone, 0 of 6 left\n", "is drained: 6 pods evicted, 1 left in place\n",
	} {
		if !strings.Contains(said, words) {
			t.Errorf("%q is not said:\n%s", words, said)
		}
	}
	for _, words := range []string{"takes pods again", "was not cordoned by nth drain; nothing to undo"} {
		status, said, stderr = typed(t, "drain", "--undo", "--config", settings)
		if status != 0 || stderr != "" || !strings.Contains(said, words) || writerOf(t, cluster) != "" {
			t.Errorf("status %d, on standard error %q, cordoned by %q, said\n%s", status, stderr, writerOf(t, cluster), said)
		}
	}
}

func TestDrain_OutOfTimeIsStatus1AndNamesTheRest(t *testing.T) {
	t.Parallel()
	cluster, settings := ownCluster(t, "")
	status, said, stderr := typed(t, "drain", "--deadline", "3s", "--config", settings)
	if status != 1 || !strings.Contains(stderr, "not done within 3s; left: ") || !strings.Contains(stderr, "default/deaf-1") {
		t.Errorf("status %d, on standard error %q, said\n%s", status, stderr, said)
	}
	if writerOf(t, cluster) != drain.ByHand {
		t.Errorf("cordoned by %q: what was done stands", writerOf(t, cluster))
	}
}

func TestWhatPeopleWantOfTheNodeEndsADrainByHand(t *testing.T) {
	t.Parallel()
	cluster, settings := ownCluster(t, "")
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, drain.ActionAnnotation, drain.OnlyCordon)
	w := httptest.NewRecorder()
	cluster.ServeHTTP(w, httptest.NewRequest(http.MethodPatch, "/api/v1/nodes/"+rehearsal.Node, strings.NewReader(patch)))
	status, said, stderr := typed(t, "drain", "--config", settings)
	if status != 1 || !strings.Contains(stderr, "the annotation nth-project.github.io/action on the Node asks for its pods to be left alone") || strings.Contains(said, "evicted") {
		t.Errorf("status %d, on standard error %q, said\n%s", status, stderr, said)
	}
}

func TestADryRunOfADrainByHandChangesNothing(t *testing.T) {
	t.Parallel()
	cluster, settings := ownCluster(t, "dry_run = true\n")
	version := nodeOf(t, cluster).ResourceVersion
	status, said, stderr := typed(t, "drain", "--config", settings)
	if status != 0 || stderr != "" || !strings.Contains(said, "dry run: would have evicted default/web-1\n") || nodeOf(t, cluster).ResourceVersion != version {
		t.Errorf("status %d, on standard error %q, said\n%s", status, stderr, said)
	}
}

func TestWithoutACredentialADrainByHandIsStatus1(t *testing.T) {
	t.Parallel()
	_, settings := ownCluster(t, "")
	if err := os.Remove(strings.Trim(strings.SplitN(shipped(t, settings), "= ", 2)[1], "\"\n")); err != nil {
		t.Fatal(err)
	}
	status, said, stderr := typed(t, "drain", "--config", settings)
	if status != 1 || said != "" || !strings.Contains(stderr, "the kubelet has not joined its cluster yet") {
		t.Errorf("status %d, on standard error %q, said\n%s", status, stderr, said)
	}
}
