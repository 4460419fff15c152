package faults_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/faultproxy"
)

// notices are the calls by which nth tells the cluster what it does.
var notices = []faultproxy.Call{faultproxy.WriteEvent, faultproxy.PatchStatus}

// A latency of an hour is an answer that never comes.
var noticeFaults = map[string]faultproxy.Fault{
	"never answered": {Kind: faultproxy.Latency, Delay: time.Hour},
	"refused":        {Kind: faultproxy.Status, Status: 403, Message: "not in this cluster"},
	"500":            {Kind: faultproxy.Status, Status: 500},
	"throttled":      {Kind: faultproxy.Status, Status: 429, RetryAfter: time.Second},
	"garbage":        {Kind: faultproxy.Garbage},
}

// The fault is in force to the end: a drain that waited for any notice would not come to its own.
func TestADrainDoesNotWaitForNoticesThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	for name, fault := range noticeFaults {
		t.Run(name, func(t *testing.T) {
			s := newProxied(t, "")
			s.node.AddPods(t, "quick", 10)
			s.watch(t)
			for _, call := range notices {
				fault.Call = call
				s.proxy.Fault(fault)
			}
			s.imds.SetSpot("terminate", twoMinutes())
			s.waitDrained(t)
			s.awaitFaulted(t)
			s.nth.Stop(t)
			for _, id := range []string{systemd.DrainIncomplete, systemd.PodHeld} {
				for _, e := range s.nth.Logged(id) {
					t.Errorf("nth said %q", e.Message)
				}
			}
			if said := s.nth.Logged(systemd.NoticeTrouble); len(said) > 3 {
				t.Errorf("nth said %d times that it cannot write, want once for each thing: %+v", len(said), said)
			}
		})
	}
}

func TestEvents_AreFewAndNoneBeforeTheCordon(t *testing.T) {
	const pods = 110
	s := newProxied(t, "")
	s.node.AddPods(t, "web", pods)
	s.watch(t)
	s.imds.SetSpot("terminate", twoMinutes())
	s.waitDrained(t)
	s.awaitEvent(t, "CordonAndDrain")
	s.nth.Stop(t)

	var cordoned time.Time
	writes := 0
	for _, r := range s.proxy.Requests() {
		switch r.Call {
		case faultproxy.PatchNode:
			if cordoned.IsZero() {
				cordoned = r.Ended
			}
		case faultproxy.WriteEvent, faultproxy.PatchStatus:
			if cordoned.IsZero() || r.Began.Before(cordoned) {
				t.Errorf("%s was asked for before the node was cordoned", r.Call)
			}
			if r.Call == faultproxy.WriteEvent {
				writes++
			}
		}
	}
	// Fifty pods, the others in one, and three about the node.
	if writes != 54 {
		t.Errorf("%d writes of Events, want 54", writes)
	}
	if more := s.awaitEvent(t, "PodEviction"); !strings.HasPrefix(more.Message, fmt.Sprintf("spot-interruption: and %d pods more: ", pods-50)) {
		t.Errorf("the others are told as %q", more.Message)
	}
}

// awaitFaulted waits until a request has met a fault since the start.
func (s *scene) awaitFaulted(t *testing.T) {
	t.Helper()
	end := time.After(time.Minute)
	for {
		for _, r := range s.proxy.Requests() {
			if r.Fault != "" {
				return
			}
		}
		select {
		case <-end:
			t.Fatal("waiting for a request to meet the fault")
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// awaitEvent waits for an Event about the node with that reason.
func (s *scene) awaitEvent(t *testing.T, reason string) corev1.Event {
	t.Helper()
	end := time.After(time.Minute)
	for {
		list, err := s.cp.Admin.CoreV1().Events("default").List(t.Context(),
			metav1.ListOptions{FieldSelector: "involvedObject.uid=" + s.node.Name + ",reason=" + reason})
		if err != nil {
			t.Fatalf("listing Events: %v", err)
		}
		if len(list.Items) > 0 {
			return list.Items[0]
		}
		select {
		case <-end:
			t.Fatalf("waiting for an Event with the reason %s", reason)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
