package soak_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// What people and nth-queue do to the node, all by the contract in docs/node-contract.md.

const (
	// cordonAnnotation is the key under which a program says that a cordon is its own, and why.
	cordonAnnotation = "nth-project.github.io/cordon"
	// actionAnnotation is the key under which people say what may be done to the node at most.
	actionAnnotation = "nth-project.github.io/action"
	// excludeLabel takes a node out of load balancers.
	excludeLabel = "node.kubernetes.io/exclude-from-external-load-balancers"
)

// administrate has somebody interfere.
func (l *life) administrate(t *testing.T) {
	t.Helper()
	switch before := l.model.owner; {
	case before == nobody && l.chance(50):
		l.closeAsQueue(t)
	case before == nobody: // nth's annotation may still be there
		l.node.Cordon(t)
		l.model.owner, l.model.cordons = admin, l.model.cordons+1
	case before == queue:
		l.openAsQueue(t)
	case before == nth && l.chance(40):
		l.patchNode(t, "", fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, cordonAnnotation))
		l.model.owner = admin
	default:
		l.uncordon(t)
	}
	l.did("interferences", "the cordon is now that of %s", l.model.owner)
}

// uncordon has an administrator let the node take pods, which is an order to nth. Mostly what follows happens after nth has
// heard of it.
func (l *life) uncordon(t *testing.T) {
	t.Helper()
	l.node.Uncordon(t)
	l.model.owner, l.model.uncordons = nobody, l.model.uncordons+1
	if l.chance(30) {
		l.model.opened(perhaps)
		return
	}
	l.awaitOrder(t)
	l.model.opened(given)
}

// heardWithin is how soon nth must have heard what people do to the node: it looks every five seconds.
const heardWithin = 15 * time.Second

// awaitOrder waits until nth has noted, for all notices that want the node closed, that somebody has opened it.
func (l *life) awaitOrder(t *testing.T) {
	t.Helper()
	for give := time.Now().Add(heardWithin); ; <-time.After(cadence) {
		entries := l.machine.Record(t)
		unheard := l.model.any(func(n *notice) bool {
			e, _ := n.entry(entries)
			return n.obeys() && !e.Released()
		})
		if !unheard {
			return
		}
		if time.Now().After(give) {
			t.Fatalf("an administrator has uncordoned the node, and after %v nth has not heard of it", heardWithin)
		}
	}
}

// closeAsQueue cordons the node as nth-queue does.
func (l *life) closeAsQueue(t *testing.T) {
	t.Helper()
	l.claim = fmt.Sprintf(`{"writer":"nth-queue","event":%q,"kind":"spot-interruption","boot_id":"","since":%q}`,
		l.name("queue"), time.Now().UTC().Format(time.RFC3339))
	l.patchNode(t, "nth-queue", fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}},"spec":{"unschedulable":true}}`, cordonAnnotation, l.claim))
	l.model.owner, l.model.cordons = queue, l.model.cordons+1
}

// openAsQueue lifts the cordon of nth-queue, as nth-queue does. It is no order: nth-queue needs the cordon no longer, and nth may.
func (l *life) openAsQueue(t *testing.T) {
	t.Helper()
	l.patchNode(t, "nth-queue", fmt.Sprintf(`{"metadata":{"annotations":{%q:null}},"spec":{"unschedulable":null}}`, cordonAnnotation))
	l.model.owner, l.model.uncordons, l.model.mayCordon = nobody, l.model.uncordons+1, true
}

func (l *life) patchNode(t *testing.T, manager, patch string) {
	t.Helper()
	_, err := l.cp.Admin.CoreV1().Nodes().Patch(t.Context(), l.node.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: manager})
	if err != nil {
		t.Fatalf("patching the node with %s: %v", patch, err)
	}
}

// limit has people say that the node's pods are to be left alone, or that they need not be any more.
func (l *life) limit(t *testing.T) {
	t.Helper()
	l.model.limited, l.model.limitedNow = !l.model.limited, !l.model.limited
	value := "null"
	if l.model.limited {
		value = `"cordon"`
	}
	l.patchNode(t, "", fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, actionAnnotation, value))
	l.model.limitedAt = time.Now()
	l.did("wishes of people", "the annotation %s is %s", actionAnnotation, value)
}

// evictedWithin is how soon a pod must be on its way that has come to a node which is to be drained, while nothing is broken.
const evictedWithin = 10 * time.Second

// comeLate binds a pod to a node that is being drained, or has been, while all is quiet.
func (l *life) comeLate(t *testing.T) {
	t.Helper()
	drains, _ := l.model.drains()
	if !drains || l.model.limitedNow || l.model.owner == nobody {
		return
	}
	w := workload{name: l.name("late"), count: 1, grace: int64(grace.Seconds())}
	if l.chance(50) {
		w.owners = l.controller(t, w.name)
	}
	began := time.Now()
	l.put(t, w)
	name := w.pod(0).Name
	for {
		object, err := l.cp.Admin.CoreV1().Pods(l.node.Namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || object.DeletionTimestamp != nil {
			break
		}
		if time.Since(began) > evictedWithin {
			t.Fatalf("pod %s has come to a node that is to be drained, and is still left alone after %v", name, evictedWithin)
		}
		<-time.After(cadence / 4)
	}
	l.node.WaitGone(t, name)
	l.did("pods that came late", "%s, told to go after %v", name, time.Since(began).Round(time.Millisecond))
}

// cordonedByNTH tells whether it was nth that has made the node unschedulable, as the API server remembers it.
func cordonedByNTH(node *corev1.Node) bool {
	for _, m := range node.ManagedFields {
		if m.Manager == "nth" && m.FieldsV1 != nil && strings.Contains(m.FieldsV1.String(), `"f:unschedulable"`) {
			return true
		}
	}
	return false
}
