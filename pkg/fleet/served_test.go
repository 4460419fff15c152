package fleet_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordination "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
)

// podOn is a pod on a node.
func podOn(node, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)},
		Spec:       corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

func (c *cluster) pods(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	ours := func(o runtime.Object) bool {
		pod, is := o.(*corev1.Pod)
		return is && "spec.nodeName="+pod.Spec.NodeName == query.Get("fieldSelector")
	}
	pods := c.store.CoreV1().Pods("")
	if query.Get("watch") != "" {
		events, err := pods.Watch(r.Context(), metav1.ListOptions{ResourceVersion: query.Get("resourceVersion")})
		stream(w, r, events, err, ours, c.gone()...)
		return
	}
	list, err := pods.List(r.Context(), metav1.ListOptions{})
	if err != nil {
		answer(w, nil, err)
		return
	}
	found := &corev1.PodList{ListMeta: list.ListMeta}
	for _, pod := range list.Items {
		if ours(&pod) {
			found.Items = append(found.Items, pod)
		}
	}
	answer(w, found, nil)
}

// ends keeps a pod in mind that is about to be deleted.
func (c *cluster) ends(a clienttesting.Action) (handled bool, result runtime.Object, err error) {
	deleted, is := a.(clienttesting.DeleteAction)
	if !is {
		return false, nil, nil
	}
	if pod, err := c.objects.Get(a.GetResource(), a.GetNamespace(), deleted.GetName()); err == nil {
		c.mu.Lock()
		c.ended = append(c.ended, pod)
		c.mu.Unlock()
	}
	return false, nil, nil
}

// gone are the pods that have ended and are not there again.
func (c *cluster) gone() []runtime.Object {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.ended), func(o runtime.Object) bool {
		pod, is := o.(*corev1.Pod)
		if !is {
			return true
		}
		_, err := c.objects.Get(corev1.SchemeGroupVersion.WithResource("pods"), pod.Namespace, pod.Name)
		return err == nil
	})
}

// evict begins the end of a pod.
func (c *cluster) evict(w http.ResponseWriter, r *http.Request) {
	if c.begins(w, "evict") {
		return
	}
	pods, name := c.store.CoreV1().Pods(r.PathValue("namespace")), r.PathValue("name")
	pod, err := pods.Get(r.Context(), name, metav1.GetOptions{})
	if err == nil {
		pod.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		_, err = pods.Update(r.Context(), pod, metav1.UpdateOptions{})
	}
	if err == nil {
		c.mu.Lock()
		time.AfterFunc(c.ending, func() { _ = pods.Delete(context.Background(), name, metav1.DeleteOptions{}) })
		c.mu.Unlock()
	}
	answer(w, &metav1.Status{Status: metav1.StatusSuccess}, err)
}

// answer writes an object, or what is wrong, as the API server does.
func answer(w http.ResponseWriter, o runtime.Object, err error) {
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		var known apierrors.APIStatus
		status := apierrors.NewInternalError(err).Status()
		if errors.As(err, &known) {
			status = known.Status()
		}
		w.WriteHeader(int(status.Code))
		o = &status
	}
	_, _ = w.Write(encoded(o)) // who does not read the answer has left
}

func encoded(o runtime.Object) []byte {
	o = o.DeepCopyObject() // To encode it is to write its kind into it, and the store and all watches share it.
	return []byte(runtime.EncodeOrDie(scheme.Codecs.LegacyCodec(corev1.SchemeGroupVersion, coordination.SchemeGroupVersion, appsv1.SchemeGroupVersion), o))
}

// stream writes that objects are gone, and then the events of those that are wanted until nobody reads them any more.
func stream(w http.ResponseWriter, r *http.Request, events watch.Interface, err error, of func(runtime.Object) bool, gone ...runtime.Object) {
	if err == nil {
		defer func() {
			events.Stop()
			for range events.ResultChan() { // A filter ends only when what it is about to tell has been taken.
			}
		}()
	}
	if err != nil || r.URL.Query().Get("sendInitialEvents") != "" {
		answer(w, nil, apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("ListOptions").GroupKind(), "", nil))
		return
	}
	flush := http.NewResponseController(w).Flush
	tell := func(e watch.Event) error {
		if !of(e.Object) {
			return nil
		}
		line, _ := json.Marshal(map[string]any{"type": e.Type, "object": json.RawMessage(encoded(e.Object))}) // text and JSON encode
		_, err := w.Write(append(line, '\n'))
		return err
	}
	for _, o := range gone {
		if tell(watch.Event{Type: watch.Deleted, Object: o}) != nil {
			return
		}
	}
	for {
		if flush() != nil {
			return
		}
		select {
		case e := <-events.ResultChan():
			if tell(e) != nil {
				return
			}
		case <-r.Context().Done():
			return
		}
	}
}
