package lab

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
)

// TB is a test that uses the lab.
type TB = testing.TB

// ForTest starts a control plane that belongs to t alone and ends with it.
func ForTest(t TB) *ControlPlane {
	t.Helper()
	return owned(t, followers)
}

// Bare starts an etcd and an API server alone, which belong to t. Nothing is
// done there but what t does: no kubelet is played, no Node is given up for
// lost, and a pod that asks for no grace is gone when it is deleted.
func Bare(t TB) *ControlPlane {
	t.Helper()
	return owned(t, nil)
}

func owned(t TB, beside []component) *ControlPlane {
	t.Helper()
	cp, err := start(t.Context(), beside)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		cp.keepIfFailed(t)
		if err := cp.Stop(); err != nil {
			t.Logf("stopping the control plane: %v", err)
		}
	})
	return cp
}

// keepIfFailed keeps the logs of a control plane with which t failed, and says
// where they are.
func (cp *ControlPlane) keepIfFailed(t TB) {
	if t.Failed() && !cp.kept.Swap(true) {
		t.Logf("the logs of the control plane are in %s", cp.Dir)
	}
}

// plane is the control plane of this test binary, once a test has asked for it.
var plane *ControlPlane

// shared starts it. It outlives the test that happens to be first.
var shared = sync.OnceValue(func() (err error) {
	if plane, err = start(context.Background(), followers); err == nil {
		plane.shared = true
	}
	return err
})

// Shared returns the control plane that all tests of a package use, and starts
// it for the first of them. It needs Main to end it.
func Shared(t TB) *ControlPlane {
	t.Helper()
	if err := shared(); err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { plane.keepIfFailed(t) })
	return plane
}

// Scratch is a directory for what the tests of a package make once and share. It needs Main to remove it.
var Scratch = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "nth-scratch-") })

// Main runs the tests of a package that uses Shared or Scratch, so many of those side by side that are parallel, and ends the control
// plane after them. They wait far more than they work, so that their number does not depend on that of processors; "-parallel"
// overrides it. A package calls it as
//
//	func TestMain(m *testing.M) { os.Exit(lab.Main(m, 8)) }
func Main(m *testing.M, sideBySide int) int {
	_ = flag.Set("test.parallel", strconv.Itoa(sideBySide)) // The command line is parsed later.
	status := m.Run()
	if plane != nil {
		if err := plane.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stopping the control plane:", err)
		}
	}
	if dir, err := Scratch(); err == nil {
		_ = os.RemoveAll(dir) // it may stay if it must
	}
	return status
}
