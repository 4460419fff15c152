package faults_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/pkg/systemd"
)

// metadataFaults are all the ways in which the metadata service can break. nth holds a token for hours; a token
// endpoint that is broken hurts when the service has forgotten the tokens that it gave.
var metadataFaults = map[string][]imdstest.Fault{
	"reset":                {{Kind: imdstest.Reset}},
	"hang":                 {{Kind: imdstest.Hang}},
	"slow":                 {{Kind: imdstest.Slow}},
	"500":                  {{Kind: imdstest.Status, Status: 500}},
	"503":                  {{Kind: imdstest.Status, Status: 503}},
	"401":                  {unauthorized},
	"garbage":              {{Kind: imdstest.Garbage}},
	"oversized":            {{Kind: imdstest.Oversized}},
	"token endpoint down":  {unauthorized, {Kind: imdstest.Status, Path: "/latest/api/token"}},
	"token endpoint hangs": {unauthorized, {Kind: imdstest.Hang, Path: "/latest/api/token"}},
}

// unauthorized refuses every token, and has new ones handed out.
var unauthorized = imdstest.Fault{Kind: imdstest.Status, Status: 401, Path: "meta-data"}

const (
	// manyTimes is how many requests a fault has to break before it has been held for long enough. The two urgent
	// documents are polled about five times a second together while they fail. A service that answers nothing is asked
	// less, the longer that lasts: fewTimes are enough.
	manyTimes, fewTimes = 12, 4
	// memoryLimit is far above what nth needs, and far below an answer of a gibibyte.
	memoryLimit = 100 << 20
)

// hasty lets a spot notice that is missing count as withdrawn sooner than a fault is lifted.
const hasty = "[imds]\nwithdrawn_after = \"100ms\"\n"

// underMetadataFaults runs a test for each of them, on a scene on which nth does not run yet.
func underMetadataFaults(t *testing.T, test func(t *testing.T, s *scene, fault string)) {
	t.Helper()
	t.Parallel()
	for fault := range metadataFaults {
		t.Run(fault, func(t *testing.T) { test(t, newScene(t, hasty), fault) })
	}
}

func TestANoticeIsFoundWhenAFaultOfTheMetadataServiceEndsThatWasThereFromTheStart(t *testing.T) {
	underMetadataFaults(t, func(t *testing.T, s *scene, fault string) {
		s.node.AddPods(t, "work", 3)
		s.breakMetadata(fault)
		s.start(t)
		s.survive(t, fault)
	})
}

func TestANoticeIsFoundWhenAFaultOfTheMetadataServiceEndsThatCameLater(t *testing.T) {
	underMetadataFaults(t, func(t *testing.T, s *scene, fault string) {
		s.node.AddPods(t, "work", 3)
		s.watch(t)
		s.breakMetadata(fault)
		s.survive(t, fault)
	})
}

func TestAFaultOfTheMetadataServiceIsNoAllClear(t *testing.T) {
	underMetadataFaults(t, func(t *testing.T, s *scene, fault string) {
		s.node.AddPods(t, "work", 1)
		s.watch(t)
		s.imds.SetSpot("terminate", twoMinutes())
		s.waitDrained(t)
		s.breakMetadata(fault)
		s.hold(t, fault)
		s.nth.Stop(t)
		node := s.node.Object(t)
		if _, ours := node.Annotations[cordonAnnotation]; !ours || !node.Spec.Unschedulable {
			t.Errorf("unschedulable=%t, annotations %v; want nth's cordon to stay", node.Spec.Unschedulable, node.Annotations)
		}
		for _, e := range s.nth.Logged(systemd.EventWithdrawn) {
			t.Errorf("nth said %q", e.Message)
		}
	})
}

// timesOf is how many requests a fault has to break.
func timesOf(fault string) int {
	if strings.Contains(fault, "hang") {
		return fewTimes
	}
	return manyTimes
}

func (s *scene) breakMetadata(fault string) {
	for _, f := range metadataFaults[fault] {
		s.imds.Fault(f)
	}
}

// survive judges nth from the time at which the fault is in force.
func (s *scene) survive(t *testing.T, fault string) {
	t.Helper()
	s.hold(t, fault)
	s.imds.SetSpot("terminate", twoMinutes())
	s.met.await(t, timesOf(fault)/2)
	s.mustBeUntouched(t)
	s.nth.MustRun(t)

	s.imds.Lift()
	lifted := time.Now()
	s.node.WaitCordoned(t)
	late := time.Since(lifted)
	s.waitDrained(t)
	s.mustTellOnce(t)
	peak := s.nth.PeakMemory(t)
	t.Logf("cordoned %v after the fault ended; at most %.1f MB of resident memory", late.Round(time.Millisecond), float64(peak)/1e6)
	if peak > memoryLimit {
		t.Errorf("nth took %d bytes of memory, want at most %d", peak, memoryLimit)
	}
	s.nth.Stop(t)
}

// urgent are the kinds that are asked for again soon, whatever happens.
var urgent = []event.Kind{event.SpotInterruption, event.ASGTermination}

// hold returns when nth has met the fault many times and tells of it.
func (s *scene) hold(t *testing.T, fault string) {
	t.Helper()
	s.met.await(t, timesOf(fault))
	for _, kind := range urgent {
		s.nth.WaitSays(t, "cannot read "+string(kind))
	}
	s.nth.WaitStatus(t, "metadata service unreachable since")
}

// mustTellOnce waits until nth has told that the trouble is over, and fails the test unless it told of each trouble,
// and of each recovery, in one line.
func (s *scene) mustTellOnce(t *testing.T) {
	t.Helper()
	for _, kind := range urgent {
		s.nth.WaitSays(t, string(kind)+" is readable again")
	}
	told := map[string]int{}
	for _, e := range s.nth.Logged(systemd.SourceTrouble) {
		told[e.Message]++
	}
	for _, e := range s.nth.Logged(systemd.SourceRecovered) {
		told[e.Fields[systemd.FieldEventKind]+" is well again"]++
	}
	for message, times := range told {
		if times != 1 {
			t.Errorf("nth said %d times %q, want once", times, message)
		}
	}
}
