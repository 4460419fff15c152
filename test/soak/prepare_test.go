package soak_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nth-project/nth/test/lab"
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
	if l.chance(20) {
		l.administrate(t)
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
			p = &pod{name: object.Name, spared: !lab.Evictable(&object)}
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
		if !lab.Evictable(&object) || strings.HasPrefix(object.Name, "web") {
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

// administrate has an administrator interfere.
func (l *life) administrate(t *testing.T) {
	t.Helper()
	switch l.model.owner {
	case nobody: // nth's annotation may still be there
		l.node.Cordon(t)
		l.model.admin(admin)
	case admin:
		l.node.Uncordon(t)
		l.model.admin(nobody)
	case nth:
		if l.chance(50) {
			l.takeOver(t)
			l.model.admin(admin)
		} else {
			l.node.Uncordon(t)
			l.model.admin(nobody)
		}
	}
	l.did("interferences of an administrator", "the cordon is now that of %s", l.model.owner)
}

// takeOver makes nth's cordon the administrator's, as docs/node-contract.md has it.
func (l *life) takeOver(t *testing.T) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null}}}`, cordonAnnotation)
	_, err := l.cp.Admin.CoreV1().Nodes().Patch(t.Context(), l.node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		t.Fatalf("taking the cordon over: %v", err)
	}
}

// cordonedByNTH tells whether it was nth that has made the node unschedulable, as the API server remembers it.
func cordonedByNTH(node *corev1.Node) bool {
	return slices.ContainsFunc(node.ManagedFields, func(m metav1.ManagedFieldsEntry) bool {
		return m.Manager == "nth" && strings.Contains(m.FieldsV1.String(), `"f:unschedulable"`)
	})
}
