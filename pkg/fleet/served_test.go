package fleet_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	coordination "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
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
		stream(w, r, events, err, ours)
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
	return []byte(runtime.EncodeOrDie(scheme.Codecs.LegacyCodec(corev1.SchemeGroupVersion, coordination.SchemeGroupVersion), o))
}

// stream writes the events of objects that are wanted until nobody reads them any more.
func stream(w http.ResponseWriter, r *http.Request, events watch.Interface, err error, of func(runtime.Object) bool) {
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
	for {
		if flush() != nil {
			return
		}
		select {
		case e := <-events.ResultChan():
			if !of(e.Object) {
				continue
			}
			line, _ := json.Marshal(map[string]any{"type": e.Type, "object": json.RawMessage(encoded(e.Object))}) //nolint:errchkjson // text and JSON encode
			if _, err := w.Write(append(line, '\n')); err != nil {
				return
			}
		case <-r.Context().Done():
			return
		}
	}
}
