package main_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/rehearsal"
)

func TestRehearse_NeedsNoRightsAndFitsATerminal(t *testing.T) {
	t.Parallel()
	if readme := shipped(t, "../../README.md"); !strings.Contains(readme, "    make build\n    bin/nth rehearse\n") {
		t.Error("README does not begin with a rehearsal")
	}
	program := exec.CommandContext(t.Context(), "/proc/self/exe", "rehearse")
	program.Dir, program.Env = "/", []string{asProgram + "=nth"}
	if os.Getuid() == 0 {
		program.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	out, err := program.CombinedOutput()
	said := string(out)
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	for _, line := range []string{
		`draining the node: EC2 will terminate this spot instance at`, `cordoned the node in`, `! disruption budget web blocks the eviction of default/web-\d;`,
		`evicted default/deaf-1`, `kube-system/coredns-1 is gone; pods still to go: 0 of 6`, `drained the node: 6 pods evicted, 0 deleted, 1 exempt`,
	} {
		if !regexp.MustCompile(line).MatchString(said) {
			t.Errorf("nothing is said that matches %q:\n%s", line, said)
		}
	}
	for line := range strings.Lines(said) {
		if strings.ContainsAny(line, "\x1b\r\t") || len(line) > len("\n")+80 {
			t.Errorf("not for every terminal: %q", line)
		}
	}
}

func TestWhatTheSettingsDoNotAskForIsNotRehearsed(t *testing.T) {
	for _, c := range []struct{ settings, said string }{
		{"[events.spot-interruption]\naction = \"ignore\"\n", `Nothing would be done: events.spot-interruption.action is "ignore".`},
		{"[events.spot-interruption]\naction = \"notify\"\n", `The node is not drained, since the settings do not ask for it: events.spot-interruption.action is "notify".`},
		{"dry_run = true\n[events.spot-interruption]\naction = \"cordon\"\n", "The service would only log this: dry_run is true."},
		{"[events.spot-interruption]\naction = \"cordon\"\n", `The node is not drained, since the settings do not ask for it: events.spot-interruption.action is "cordon".`},
	} {
		t.Run(c.said, func(t *testing.T) {
			settings := file(t, c.settings)
			status, said, stderr := call(t, "rehearse --config "+settings)
			if status != 0 || stderr != "" || !strings.Contains(oneLine(said), c.said) || !strings.Contains(oneLine(said), "settings in effect: "+settings) {
				t.Errorf("status %d, on standard error %q, said\n%s", status, stderr, said)
			}
		})
	}
}

// oneLine undoes the breaks between lines.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// realCluster serves a cluster to which a kubeconfig leads. Its budget "web" allows no eviction. written returns what was asked that would change
// something.
func realCluster(t *testing.T) (cluster *rehearsal.Cluster, kubeconfig string, written func() []string) {
	t.Helper()
	cluster = rehearsal.New("00000000-0000-0000-0000-000000000001")
	var mu sync.Mutex
	var asked []string
	answer := func(w http.ResponseWriter, code int, body string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		fmt.Fprint(w, body)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Query().Get("dryRun") == "All" && strings.Contains(r.URL.Path, "/web-"):
			answer(w, http.StatusTooManyRequests, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":429,"reason":"TooManyRequests",
				"details":{"causes":[{"reason":"DisruptionBudget","message":"The disruption budget web needs 2 healthy pods and has 2 currently"}]}}`)
		case r.URL.Query().Get("dryRun") == "All":
			answer(w, http.StatusCreated, `{"kind":"Status","apiVersion":"v1","status":"Success"}`)
		case r.Method != http.MethodGet && !strings.HasSuffix(r.URL.Path, "/selfsubjectreviews"):
			mu.Lock()
			asked = append(asked, r.Method+" "+r.URL.Path)
			mu.Unlock()
			fallthrough
		default:
			cluster.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return cluster, file(t, string(rehearsal.Kubeconfig(server.URL))), func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(asked)
	}
}

// annotate sets the annotation on the cluster's node that says what may be done to it.
func annotate(cluster *rehearsal.Cluster, action string) {
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, drain.ActionAnnotation, action)
	cluster.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPatch, "/api/v1/nodes/"+rehearsal.Node, strings.NewReader(patch)))
}

func TestRehearse_RealNode(t *testing.T) {
	const forecast = "a drain of 6 pods takes up to 18 s of the 20 s of a spot notice"
	for name, c := range map[string]struct {
		action string
		said   []string
	}{
		"what each pod gets": {said: []string{
			"pod owner grace held by budget emptyDir", "! default/by-hand none 18 of 30 s ! default/cache-0 StatefulSet 18 of 30 s lost default/deaf-1 ReplicaSet 8 s",
			"! default/web-1 ReplicaSet 18 of 30 s web ! default/web-2", forecast,
			"A budget refuses an eviction now. nth deletes a pod that it still holds when only the pod's grace period is left.",
		}},
		"an opted-out node": {action: drain.OnlyCordon, said: []string{"Its pods would be left alone"}},
	} {
		t.Run(name, func(t *testing.T) {
			cluster, kubeconfig, written := realCluster(t)
			annotate(cluster, c.action)
			status, said, stderr := call(t, "rehearse --deadline 20s --config "+file(t, fmt.Sprintf("kubernetes.kubeconfig = %q", kubeconfig)))
			if status != 0 || stderr != "" {
				t.Errorf("status %d, on standard error: %s", status, stderr)
			}
			for _, words := range append(c.said, "Node "+rehearsal.Node+", at ") {
				if !strings.Contains(oneLine(said), words) {
					t.Errorf("%q is not said:\n%s", words, said)
				}
			}
			for line := range strings.Lines(said) {
				if len(line) > len("\n")+80 {
					t.Errorf("not for every terminal: %q", line)
				}
			}
			t.Log(said)
			if asked := written(); len(asked) > 0 {
				t.Errorf("written: %q", asked)
			}
		})
	}
}
