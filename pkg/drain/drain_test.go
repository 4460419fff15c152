package drain_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
)

// TestMain fails if client-go said anything by itself in any test: what is to be told is told through the journal.
func TestMain(m *testing.M) {
	var mu sync.Mutex
	var said []string
	klog.SetLogger(funcr.New(func(prefix, args string) {
		mu.Lock()
		defer mu.Unlock()
		said = append(said, prefix+" "+args)
	}, funcr.Options{}))
	flag.Parse()
	if err := flag.Set("test.parallel", "16"); err != nil { // they wait more than they work
		panic(err)
	}
	code := m.Run()
	mu.Lock()
	defer mu.Unlock()
	if len(said) > 0 {
		fmt.Fprintf(os.Stderr, "FAIL: client-go printed %d lines, the first: %s\n", len(said), said[0])
		code = 1
	}
	os.Exit(code)
}

// plenty is a deadline that no test comes near unless it fails.
const plenty = 40 * time.Second

var claim = drain.Claim{Event: "event-1", Kind: "spot-interruption", BootID: "boot-1", Since: time.Unix(1700000000, 0).UTC()}

// trial is one drain of the server's node, under way or ended.
type trial struct {
	t      *testing.T
	cancel context.CancelFunc
	done   chan struct{}
	result drain.Result
	err    error

	mu   sync.Mutex
	told []drain.Progress
}

// begin starts a drain with plenty of time, and a deadline that is not hard.
func begin(t *testing.T, s *apitest.Server, opts drain.Options) *trial {
	t.Helper()
	return beginWithin(t, s, opts, false, plenty)
}

// beginWithin starts a drain with so much time; with 0, it has no deadline.
func beginWithin(t *testing.T, s *apitest.Server, opts drain.Options, hard bool, limit time.Duration) *trial {
	t.Helper()
	return start(t, s, opts, drain.Plan{Claim: claim, Hard: hard}, limit)
}

// resume starts a drain that was begun before.
func resume(t *testing.T, s *apitest.Server) *trial {
	t.Helper()
	return start(t, s, drain.Options{}, drain.Plan{Claim: resumed}, plenty)
}

func start(t *testing.T, s *apitest.Server, opts drain.Options, plan drain.Plan, limit time.Duration) *trial {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	if limit == 0 {
		ctx, cancel = context.WithCancel(t.Context())
	}
	r := &trial{t: t, cancel: cancel, done: make(chan struct{})}
	plan.Tell = r.tell
	node := drain.New(s.Client(), apitest.Node, opts)
	go func() {
		defer close(r.done)
		r.result, r.err = node.Drain(ctx, plan)
	}()
	t.Cleanup(func() { cancel(); <-r.done })
	return r
}

// drained drains with plenty of time and fails unless nothing is left.
func drained(t *testing.T, s *apitest.Server, opts drain.Options) *trial {
	t.Helper()
	r := begin(t, s, opts)
	r.succeed()
	return r
}

func (r *trial) tell(p drain.Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, p)
}

// wait waits for the end.
func (r *trial) wait() (drain.Result, error) {
	<-r.done
	return r.result, r.err
}

func (r *trial) succeed() drain.Result {
	r.t.Helper()
	result, err := r.wait()
	if err != nil || len(result.Left) > 0 {
		r.t.Fatalf("drain ended with %+v, %v", result, err)
	}
	return result
}

// of returns what was told of a kind, and of a pod if one is given.
func (r *trial) of(what drain.What, pod ...string) []drain.Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []drain.Progress
	for _, p := range r.told {
		if p.What == what && (len(pod) == 0 || p.Pod == pod[0]) {
			found = append(found, p)
		}
	}
	return found
}

// await waits until something has been told, or fails when the drain ends without it.
func (r *trial) await(what drain.What, pod ...string) {
	r.t.Helper()
	await(r.t, fmt.Sprintf("%s %s", what, strings.Join(pod, "")), func() bool { return len(r.of(what, pod...)) > 0 })
}

func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(plenty); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for: %s", what)
		}
	}
}

// pod is a running pod of a ReplicaSet, with changes.
func pod(name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, OwnerReferences: []metav1.OwnerReference{owner("ReplicaSet", "apps/v1")}},
		Spec:       corev1.PodSpec{TerminationGracePeriodSeconds: new(int64(1))},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, change := range changes {
		change(p)
	}
	return p
}

func owner(kind, version string) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: version, Kind: kind, Name: "owner", UID: "owner-uid", Controller: new(true)}
}

func grace(seconds int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &seconds }
}

func ownedBy(kind, version string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.OwnerReferences = []metav1.OwnerReference{owner(kind, version)} }
}

func unmanaged(p *corev1.Pod) { p.OwnerReferences = nil }
func mirror(p *corev1.Pod)    { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"} }
func critical(p *corev1.Pod)  { p.Spec.PriorityClassName = "system-cluster-critical" }

func withEmptyDir(p *corev1.Pod) {
	p.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
}

func phase(ph corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = ph }
}

// ending is a pod whose deletion began with so many seconds of grace.
func ending(seconds int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		at := metav1.NewTime(time.Now().Add(time.Duration(seconds) * time.Second))
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &at, &seconds
	}
}

// addHeld adds a pod that a budget holds, until free is called.
func addHeld(s *apitest.Server, p *corev1.Pod) (free func()) {
	s.AddPod(p, 0)
	eviction := "evict " + p.Namespace + "/" + p.Name
	s.Always(eviction, apitest.HeldBy("budget", 0))
	return func() { s.Always(eviction, nil) }
}

// count is the number of requests of a kind so far.
func count(s *apitest.Server, words ...string) int { return len(s.Requests(words...)) }
