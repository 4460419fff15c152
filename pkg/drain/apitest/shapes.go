package apitest

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/kube"
)

// What tests of drains are made of: pods of all shapes, and what is done with the server's requests.

// RunningPod is a running pod of a ReplicaSet in the namespace default with a second of grace, with changes.
func RunningPod(name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.PodSpec{TerminationGracePeriodSeconds: new(int64(1))},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	OwnedBy("ReplicaSet", "apps/v1")(p)
	for _, change := range changes {
		change(p)
	}
	return p
}

// Grace gives a pod a grace period.
func Grace(seconds int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &seconds }
}

// OwnedBy gives a pod a controller.
func OwnedBy(kind, version string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: version, Kind: kind, Name: "owner", UID: "owner-uid", Controller: new(true)}}
	}
}

// Unmanaged takes a pod's controller away.
func Unmanaged(p *corev1.Pod) { p.OwnerReferences = nil }

// Mirror makes a pod the image of one that its kubelet runs by itself.
func Mirror(p *corev1.Pod) { Annotated(corev1.MirrorPodAnnotationKey, "hash")(p) }

// EmptyDir gives a pod a volume that ends with it.
func EmptyDir(p *corev1.Pod) {
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
}

// Critical makes a pod one that others may need.
func Critical(p *corev1.Pod) { p.Spec.PriorityClassName = "system-cluster-critical" }

// Phase puts a pod into a phase.
func Phase(phase corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = phase }
}

// Terminating is a pod whose deletion began now, with so many seconds of grace.
func Terminating(seconds int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		at := metav1.NewTime(time.Now().Add(time.Duration(seconds) * time.Second))
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &at, &seconds
	}
}

// Annotated gives a pod an annotation.
func Annotated(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { metav1.SetMetaDataAnnotation(&p.ObjectMeta, key, value) }
}

// Claiming gives a pod a volume with a claim, and Scratching one with a claim that ends with it.
func Claiming(claim string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: claim, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
	}
}

// Scratching is for Claiming.
func Scratching(volume string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}})
	}
}

// AddHeld adds a pod that a budget holds, until free is called.
func (s *Server) AddHeld(p *corev1.Pod) (free func()) {
	s.AddPod(p, 0)
	eviction := "evict " + p.Namespace + "/" + p.Name
	s.Always(eviction, HeldBy("budget", 0))
	return func() { s.Always(eviction, nil) }
}

// Gaps are how long after the one before each request came.
func Gaps(asked []Request) []time.Duration {
	var found []time.Duration
	for i := range asked[1:] {
		found = append(found, asked[i+1].At.Sub(asked[i].At))
	}
	return found
}

// Pass lets the server answer by itself.
func Pass(http.ResponseWriter, *http.Request) bool { return false }

// Slowly has the server answer by itself after a while, unless the client has left by that time.
func Slowly(by time.Duration) Answer {
	return func(_ http.ResponseWriter, r *http.Request) bool {
		select {
		case <-r.Context().Done():
			return true
		case <-time.After(by):
			return false
		}
	}
}

// Accepted answers an eviction or a deletion as the API server does, and does nothing.
func Accepted(w http.ResponseWriter, _ *http.Request) bool {
	success(w)
	return true
}

// Enter takes a place at a gate, or waits for one until the test ends. The function that leaves it comes when it has one.
func Enter(t *testing.T, gate *kube.Gate, precedence kube.Precedence) <-chan func() {
	t.Helper()
	entered := make(chan func(), 1)
	go func() {
		if leave, err := gate.Enter(t.Context(), precedence); err == nil {
			entered <- leave
		}
	}()
	synctest.Wait()
	return entered
}

// Await lets the time of a test's bubble continue until cond holds: it looks whenever all else has come to rest. The test fails if that
// takes longer than an hour.
func Await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for began := time.Now(); time.Since(began) <= time.Hour; time.Sleep(max(time.Millisecond, time.Since(began)/1000)) {
		if synctest.Wait(); cond() {
			return
		}
	}
	t.Fatalf("waited in vain for: %s", what)
}

// Requested fails the test unless there were so many requests of a kind.
func (s *Server) Requested(t *testing.T, n int, words ...string) {
	t.Helper()
	if requests := s.Requests(words...); len(requests) != n {
		t.Errorf("%q is asked for as %+v; want %d times", words, requests, n)
	}
}
