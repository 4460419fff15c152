package soak_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nth-project/nth/test/internal/lab"
)

// manyPods is how many pods are too many; then those that are left are removed.
const manyPods = 12

// prepare is what people do while all is quiet, before the round's happenings.
func (l *life) prepare(t *testing.T) {
	t.Helper()
	if l.chance(30) {
		l.tidy()
	}
	if len(l.node.Pods(t)) > manyPods {
		l.clean(t)
	}
	if l.chance(15) {
		l.yield(t)
	}
	if l.chance(10) {
		l.limit(t)
	}
	if l.chance(25) {
		l.administrate(t)
	}
	if l.chance(30) {
		l.comeLate(t)
	}
	l.takeStock(t)
}

// takeStock puts the pods that are on the node into the model.
func (l *life) takeStock(t *testing.T) {
	t.Helper()
	known := l.model.pods
	l.model.pods = map[types.UID]*pod{}
	for _, object := range l.node.Pods(t) {
		p := known[object.UID]
		if p == nil {
			p = &pod{name: object.Name, spared: !lab.Evictable(&object), returning: strings.HasPrefix(object.Name, stubborn)}
		}
		p.born = 0
		l.model.pods[object.UID] = p
	}
}

// clean removes pods, as those to whom they belong.
func (l *life) clean(t *testing.T) {
	t.Helper()
	l.note("all pods of the node are removed")
	var names []string
	for _, object := range l.node.Pods(t) {
		if !lab.Evictable(&object) || strings.HasPrefix(object.Name, "web") || strings.HasPrefix(object.Name, stubborn) {
			continue
		}
		names = append(names, object.Name)
		if err := l.cp.Admin.CoreV1().Pods(object.Namespace).Delete(t.Context(), object.Name, *metav1.NewDeleteOptions(0)); err != nil {
			t.Fatalf("removing pod %s: %v", object.Name, err)
		}
	}
	l.node.WaitGone(t, names...)
}

// yield removes all disruption budgets. A drain that they hold comes to its end.
func (l *life) yield(t *testing.T) {
	t.Helper()
	budgets := l.cp.Admin.PolicyV1().PodDisruptionBudgets(l.node.Namespace)
	if err := budgets.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatalf("removing the budgets: %v", err)
	}
	for _, p := range l.model.pods {
		p.guarded = false
	}
	l.note("all budgets yield")
}
