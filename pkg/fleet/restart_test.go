package fleet_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/fleet"
)

const (
	restartedAt = "kubectl.kubernetes.io/restartedAt"
	revision    = "deployment.kubernetes.io/revision"
)

// workloads are the Deployments, ReplicaSets and StatefulSets of a cluster, as its API server answers who asks for one.
type workloads struct {
	cluster *cluster
	byPath  map[string]runtime.Object // such as "deployments/web"
	// restarted is called with the path of what has been restarted.
	restarted func(path string)
	// patched are the paths of what has been, in turn.
	patched []string
}

// serve adds what workloads are asked to the cluster: "look" at one, and "restart" one.
func (w *workloads) serve(mux *http.ServeMux) {
	const one = "/apis/apps/v1/namespaces/shop/{kind}/{name}"
	path := func(r *http.Request) string { return r.PathValue("kind") + "/" + r.PathValue("name") }
	mux.HandleFunc("GET "+one, func(to http.ResponseWriter, r *http.Request) {
		if !w.cluster.begins(to, "look") {
			w.cluster.mu.Lock()
			o, err := w.get(path(r))
			w.cluster.mu.Unlock()
			answer(to, o, err)
		}
	})
	mux.HandleFunc("PATCH "+one, func(to http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || w.cluster.begins(to, "restart") {
			return
		}
		if kind := r.Header.Get("Content-Type"); kind != string(types.StrategicMergePatchType) {
			w.cluster.t.Errorf("patched as %s", kind)
		}
		o, err := w.patch(path(r), body)
		answer(to, o, err)
		if err == nil && w.restarted != nil {
			w.restarted(path(r))
		}
	})
}

// get finds a workload. The cluster's mutex is held.
func (w *workloads) get(path string) (runtime.Object, error) {
	if o, there := w.byPath[path]; there {
		return o, nil
	}
	kind, name, _ := strings.Cut(path, "/")
	return nil, apierrors.NewNotFound(appsv1.Resource(kind), name)
}

// patch changes a workload if it has the version that the patch is for.
func (w *workloads) patch(path string, body []byte) (runtime.Object, error) {
	w.cluster.mu.Lock()
	defer w.cluster.mu.Unlock()
	old, err := w.get(path)
	if err != nil {
		return nil, err
	}
	var of struct{ Metadata metav1.ObjectMeta }
	accessor, _ := meta.Accessor(old)
	if json.Unmarshal(body, &of) != nil || of.Metadata.ResourceVersion != accessor.GetResourceVersion() {
		return nil, apierrors.NewConflict(appsv1.Resource("deployments"), path, errors.New("the object has been modified"))
	}
	before, err := json.Marshal(old)
	if err != nil {
		return nil, err
	}
	after, err := strategicpatch.StrategicMergePatch(before, body, old)
	if err != nil {
		return nil, err
	}
	changed := old.DeepCopyObject()
	if err := json.Unmarshal(after, changed); err != nil {
		return nil, err
	}
	w.keep(path, changed)
	w.patched = append(w.patched, path)
	return changed, nil
}

// keep makes a workload the next version. The cluster's mutex is held.
func (w *workloads) keep(path string, o runtime.Object) {
	w.cluster.version++
	accessor, _ := meta.Accessor(o)
	accessor.SetResourceVersion(strconv.Itoa(w.cluster.version))
	w.byPath[path] = o
}

func (w *workloads) add(objects ...runtime.Object) {
	w.cluster.mu.Lock()
	defer w.cluster.mu.Unlock()
	for _, o := range objects {
		kind := ""
		switch o.(type) {
		case *appsv1.Deployment:
			kind = "deployments"
		case *appsv1.ReplicaSet:
			kind = "replicasets"
		case *appsv1.StatefulSet:
			kind = "statefulsets"
		}
		accessor, _ := meta.Accessor(o)
		w.keep(kind+"/"+accessor.GetName(), o)
	}
}

// all are the paths of what has been restarted.
func (w *workloads) all() []string {
	w.cluster.mu.Lock()
	defer w.cluster.mu.Unlock()
	return slices.Clone(w.patched)
}

// replaces has the pods of those names end some time after a restart, as others stand in their place.
func (w *workloads) replaces(after time.Duration, pods ...string) {
	w.restarted = func(string) {
		time.AfterFunc(after, func() {
			for _, name := range pods {
				_ = w.cluster.store.CoreV1().Pods("shop").Delete(w.cluster.t.Context(), name, metav1.DeleteOptions{}) // it may have been evicted
			}
		})
	}
}

// controlled is an object that a controller has made.
func controlled[O metav1.Object](o O, kind, name string) O {
	o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: name, UID: types.UID(kind + name), Controller: new(true)}})
	return o
}

func named(kind, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(kind + name)}
}

// deployment is one with the ReplicaSet web-1 of its template.
func deployment(change func(*appsv1.Deployment)) []runtime.Object {
	d := &appsv1.Deployment{ObjectMeta: named("Deployment", "web")}
	d.Annotations = map[string]string{revision: "1"}
	set := controlled(&appsv1.ReplicaSet{ObjectMeta: named("ReplicaSet", "web-1")}, "Deployment", "web")
	set.Annotations = map[string]string{revision: "1"}
	if change != nil {
		change(d)
	}
	return []runtime.Object{d, set}
}

func statefulSet(change func(*appsv1.StatefulSet)) []runtime.Object {
	s := &appsv1.StatefulSet{ObjectMeta: named("StatefulSet", "db")}
	s.Status.UpdateRevision = "db-1"
	if change != nil {
		change(s)
	}
	return []runtime.Object{s}
}

// asksFor makes a pod one that is to be replaced before it is evicted.
func asksFor(pod *corev1.Pod) *corev1.Pod {
	pod.Annotations = map[string]string{drain.EvictAnnotation: drain.AfterRestart}
	return pod
}

// ofWeb and ofDB are pods of those workloads that ask for it.
func ofWeb(node, name string) *corev1.Pod {
	return controlled(asksFor(podOn(node, name)), "ReplicaSet", "web-1")
}

func ofDB(node, name string) *corev1.Pod {
	pod := controlled(asksFor(podOn(node, name)), "StatefulSet", "db")
	pod.Labels = map[string]string{appsv1.ControllerRevisionHashLabelKey: "db-1"}
	return pod
}

// restarting drains for everything, and waits so long for workloads that are restarted.
func restarting(wait time.Duration) func(*fleet.Options) {
	return func(o *fleet.Options) {
		draining(o)
		o.Drain.RestartWait = wait
	}
}

func TestThePodsOfAWorkloadAreReplacedByOneRestartBeforeTheyAreEvicted(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		objects []runtime.Object
		pod     func(node, name string) *corev1.Pod
		path    string
	}{
		"of a Deployment":  {deployment(nil), ofWeb, "deployments/web"},
		"of a StatefulSet": {statefulSet(nil), ofDB, "statefulsets/db"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.workloads.add(row.objects...)
				c.workloads.replaces(40*time.Second, "one", "two")
				c.add(nodeOf("a", instance, nil), row.pod("a", "one"), row.pod("a", "two"), podOn("a", "other"))
				r, began := c.run(restarting(10*time.Minute)), time.Now()
				m := newParcel()
				r.Take(endless(instance), 1, m)
				m.want(t, "done")
				if took := time.Since(began); took < 40*time.Second || took > 50*time.Second || c.times("evict") != 1 {
					t.Errorf("drained after %s with %d evictions, want only that of the pod which asks for nothing", took, c.times("evict"))
				}
				if all := c.workloads.all(); !slices.Equal(all, []string{row.path}) {
					t.Errorf("restarted were %q", all)
				}
				text := c.workloads.annotation(row.path)
				if at, err := time.Parse(time.RFC3339, text); err != nil || at.Sub(began).Abs() > 5*time.Second {
					t.Errorf("the annotation of the template is %q", text)
				}
			})
		})
	}
}

// annotation is when a workload was last restarted, as its template says.
func (w *workloads) annotation(path string) string {
	w.cluster.mu.Lock()
	defer w.cluster.mu.Unlock()
	switch o := w.byPath[path].(type) {
	case *appsv1.Deployment:
		return o.Spec.Template.Annotations[restartedAt]
	case *appsv1.StatefulSet:
		return o.Spec.Template.Annotations[restartedAt]
	}
	return ""
}

// Each has looked before the other one has written.
func TestOneRestartServesAllNodesThatAreDrainedBesideEachOther(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.workloads.add(deployment(nil)...)
		c.workloads.replaces(40*time.Second, "one", "two", "three")
		c.before("look", func(int) error { time.Sleep(time.Second); return nil })
		c.add(nodeOf("a", instance, nil), ofWeb("a", "one"), nodeOf("b", other, nil), ofWeb("b", "two"), nodeOf("c", "i-00000000000000000", nil), ofWeb("c", "three"))
		first, second := c.run(restarting(10*time.Minute)), c.run(restarting(10*time.Minute))
		m, n, late := newParcel(), newParcel(), newParcel()
		first.Take(endless(instance), 1, m)
		second.Take(endless(other), 1, n)
		time.Sleep(20 * time.Second)
		first.Take(endless("i-00000000000000000"), 1, late)
		m.want(t, "done")
		n.want(t, "done")
		late.want(t, "done")
		if all := c.workloads.all(); len(all) != 1 || c.times("evict") > 0 {
			t.Errorf("restarted were %q, and %d pods evicted", all, c.times("evict"))
		}
	})
}

func TestAPodWhoseWorkloadIsNotRestartedIsEvictedAtOnce(t *testing.T) {
	t.Parallel()
	unhappy := func(what string, do func(times int) error) func(c *cluster) {
		return func(c *cluster) { c.before(what, do) }
	}
	now := metav1.Now()
	for name, row := range map[string]struct {
		objects []runtime.Object
		pod     *corev1.Pod
		prepare func(c *cluster)
		wait    time.Duration // 10 minutes if it is zero
		within  time.Duration
		says    string
	}{
		"nobody wants that":       {objects: deployment(nil), pod: ofWeb("a", "one"), wait: -1},
		"it is paused":            {objects: deployment(func(d *appsv1.Deployment) { d.Spec.Paused = true }), pod: ofWeb("a", "one"), says: "is paused"},
		"it is being deleted":     {objects: deployment(func(d *appsv1.Deployment) { d.DeletionTimestamp = &now }), pod: ofWeb("a", "one"), says: "is being deleted"},
		"it has another UID":      {objects: deployment(func(d *appsv1.Deployment) { d.UID = "other" }), pod: ofWeb("a", "one"), says: "is another one by now"},
		"it ends all pods first":  {objects: deployment(func(d *appsv1.Deployment) { d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType }), pod: ofWeb("a", "one"), says: "has the strategy Recreate"},
		"its rollout is stuck":    {objects: deployment(isStuck), pod: ofWeb("a", "one"), says: "makes no progress"},
		"people restart its pods": {objects: statefulSet(func(s *appsv1.StatefulSet) { s.Spec.UpdateStrategy.Type = appsv1.OnDeleteStatefulSetStrategyType }), pod: ofDB("a", "one"), says: "has the update strategy OnDelete"},
		"it is updated in parts": {objects: statefulSet(func(s *appsv1.StatefulSet) {
			s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: new(int32(1))}
		}), pod: ofDB("a", "one"), says: "is updated by a partition"},
		"it is made anew":             {objects: statefulSet(func(s *appsv1.StatefulSet) { s.UID = "other" }), pod: ofDB("a", "one"), says: "is another one by now"},
		"it ends":                     {objects: statefulSet(func(s *appsv1.StatefulSet) { s.DeletionTimestamp = &now }), pod: ofDB("a", "one"), says: "is being deleted"},
		"there is no workload":        {pod: ofWeb("a", "one"), says: "not found"},
		"there is no controller":      {pod: asksFor(podOn("a", "one")), says: "it has no controller"},
		"it is of a Job":              {pod: controlled(asksFor(podOn("a", "one")), "Job", "task"), says: "is neither a Deployment nor a StatefulSet"},
		"no Deployment is behind":     {objects: []runtime.Object{&appsv1.ReplicaSet{ObjectMeta: named("ReplicaSet", "web-1")}}, pod: ofWeb("a", "one"), says: "is no Deployment's"},
		"nobody may look at it":       {objects: deployment(nil), pod: ofWeb("a", "one"), prepare: unhappy("look", forbidden), says: "not for you"},
		"nobody may restart it":       {objects: deployment(nil), pod: ofWeb("a", "one"), prepare: unhappy("restart", forbidden), says: "not for you"},
		"its latest rollout is stuck": {objects: deployment(func(d *appsv1.Deployment) { isStuck(d); d.Annotations[revision] = "1" }), pod: ofWeb("a", "one"), says: "makes no progress"},
		"admission refuses it":        {objects: deployment(nil), pod: ofWeb("a", "one"), prepare: unhappy("restart", invalid), says: "is invalid"},
		"the API server is broken":    {objects: deployment(nil), pod: ofWeb("a", "one"), prepare: unhappy("look", fails), within: 21 * time.Second, says: "not now"},
		"the API server hangs":        {objects: deployment(nil), pod: ofWeb("a", "one"), prepare: unhappy("restart", func(int) error { return hang(nil) }), within: 21 * time.Second, says: "without a restart"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				log, said := logtest.NewNullLogger()
				log.SetLevel(logrus.InfoLevel)
				c.workloads.add(row.objects...)
				c.add(nodeOf("a", instance, nil), row.pod)
				if row.prepare != nil {
					row.prepare(c)
				}
				evicted := time.Time{}
				c.before("evict", func(int) error { evicted = time.Now(); return nil })
				wait := max(row.wait, 0)
				if row.wait == 0 {
					wait = 10 * time.Minute
				}
				r, began := c.run(func(o *fleet.Options) { restarting(wait)(o); o.Log = logrus.NewEntry(log) }), time.Now()
				m := newParcel()
				r.Take(endless(instance), 1, m)
				m.want(t, "done")
				if took := evicted.Sub(began); took < 0 || took > max(row.within, time.Second) {
					t.Errorf("evicted after %s", took)
				}
				if all := c.workloads.all(); len(all) > 0 {
					t.Errorf("restarted were %q", all)
				}
				if n := timesSaid(said, row.says); row.says != "" && n != 1 {
					t.Errorf("that it %s was said %d times, in %q", row.says, n, texts(said))
				}
			})
		})
	}
}

// invalid is what a ValidatingAdmissionPolicy says.
func invalid(int) error {
	return apierrors.NewInvalid(appsv1.SchemeGroupVersion.WithKind("Deployment").GroupKind(), "web", nil)
}

// isStuck is a Deployment whose rollout to a second template was given up.
func isStuck(d *appsv1.Deployment) {
	d.Annotations[revision] = "2"
	d.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse}}
}

func texts(said *logtest.Hook) (all []string) {
	for _, e := range said.AllEntries() {
		all = append(all, e.Message)
	}
	return all
}

// timesSaid is how often something was said.
func timesSaid(said *logtest.Hook, what string) (n int) {
	for _, text := range texts(said) {
		if strings.Contains(text, what) {
			n++
		}
	}
	return n
}

func TestThatWorkloadsMayNotBeRestartedIsSaidOnceUntilTheyMay(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		log, said := logtest.NewNullLogger()
		c.workloads.add(slices.Concat(deployment(nil), statefulSet(nil))...)
		c.workloads.replaces(time.Second, "four")
		c.before("restart", forbidden)
		c.add(nodeOf("a", instance, nil), ofWeb("a", "one"), ofDB("a", "two"), nodeOf("b", other, nil), ofWeb("b", "three"),
			nodeOf("c", "i-00000000000000000", nil), ofWeb("c", "four"), nodeOf("d", "i-00000000000000001", nil), ofDB("d", "five"))
		r := c.run(func(o *fleet.Options) { restarting(time.Minute)(o); o.Log = logrus.NewEntry(log) })
		drained := func(id string) {
			m := newParcel()
			r.Take(endless(id), 1, m)
			m.want(t, "done")
			time.Sleep(20 * time.Second) // What was found out is looked at anew.
		}
		const what = "pods are evicted without a restart of their workload before"
		drained(instance)
		drained(other)
		if n := timesSaid(said, what); n != 1 {
			t.Errorf("it was said %d times, in %q", n, texts(said))
		}
		c.before("restart", nil)
		drained("i-00000000000000000")
		c.before("restart", forbidden)
		drained("i-00000000000000001")
		if n := timesSaid(said, what); n != 2 || c.times("evict") != 4 {
			t.Errorf("it was said %d times, and %d pods evicted", n, c.times("evict"))
		}
	})
}

func TestARestartThatFailsAtFirstIsTriedAgain(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"the API server is away": apierrors.NewServiceUnavailable("not now"),
		"its controller writes":  apierrors.NewConflict(appsv1.Resource("deployments"), "web", errors.New("the object has been modified")),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.workloads.add(deployment(nil)...)
				c.workloads.replaces(10*time.Second, "one")
				c.before("restart", func(times int) error {
					if times < 3 {
						return err
					}
					return nil
				})
				c.add(nodeOf("a", instance, nil), ofWeb("a", "one"))
				m := newParcel()
				c.run(restarting(time.Minute)).Take(endless(instance), 1, m)
				m.want(t, "done")
				if all := c.workloads.all(); len(all) != 1 || c.times("evict") > 0 {
					t.Errorf("restarted were %q, and %d pods evicted", all, c.times("evict"))
				}
			})
		})
	}
}

// People have changed its image or restarted it a moment ago, and its controller may not have counted that yet.
func TestAPodThatIsBeingReplacedAnywayNeedsNoRestart(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		objects []runtime.Object
		pod     *corev1.Pod
	}{
		"a Deployment has another template": {deployment(func(d *appsv1.Deployment) { d.Annotations[revision] = "2" }), ofWeb("a", "one")},
		"a Deployment was restarted": {deployment(func(d *appsv1.Deployment) {
			d.Spec.Template.Annotations = map[string]string{restartedAt: "2026-01-31T12:00:00Z"}
		}), ofWeb("a", "one")},
		"a StatefulSet has another template": {statefulSet(func(s *appsv1.StatefulSet) { s.Status.UpdateRevision = "db-2" }), ofDB("a", "one")},
		"a StatefulSet was restarted": {statefulSet(func(s *appsv1.StatefulSet) {
			s.Spec.Template.Annotations = map[string]string{restartedAt: "2026-01-31T12:00:00Z"}
		}), ofDB("a", "one")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.workloads.add(row.objects...)
				c.add(nodeOf("a", instance, nil), row.pod)
				r, began := c.run(restarting(45*time.Second)), time.Now()
				m := newParcel()
				r.Take(endless(instance), 1, m)
				m.want(t, "done")
				if took := time.Since(began); len(c.workloads.all()) > 0 || took < 45*time.Second || took > 50*time.Second {
					t.Errorf("restarted were %q; drained after %s", c.workloads.all(), took)
				}
			})
		})
	}
}

// They tolerate the cordon: each restart would bring about one more there, of another ReplicaSet.
func TestAWorkloadIsRestartedOncePerDrain(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.workloads.add(deployment(nil)...)
		c.add(nodeOf("a", instance, nil), ofWeb("a", "one"))
		c.workloads.restarted = func(string) {
			c.mu.Lock()
			at := c.workloads.byPath["deployments/web"].(*appsv1.Deployment).Spec.Template.Annotations
			c.mu.Unlock()
			n := len(c.workloads.all()) + 1
			set := controlled(&appsv1.ReplicaSet{ObjectMeta: named("ReplicaSet", fmt.Sprintf("web-%d", n))}, "Deployment", "web")
			set.Annotations, set.Spec.Template.Annotations = map[string]string{revision: "1"}, at
			c.workloads.add(set)
			time.AfterFunc(20*time.Second, func() {
				c.add(controlled(asksFor(podOn("a", fmt.Sprintf("new-%d", n))), "ReplicaSet", set.Name))
				_ = c.store.CoreV1().Pods("shop").Delete(t.Context(), "one", metav1.DeleteOptions{})
			})
		}
		m := newParcel()
		c.run(restarting(time.Minute)).Take(endless(instance), 1, m)
		m.want(t, "done")
		if all := c.workloads.all(); len(all) != 1 || c.times("evict") != 1 {
			t.Errorf("restarted were %q, and %d pods evicted", all, c.times("evict"))
		}
	})
}
