package record_test

import (
	"testing"

	"github.com/nth-project/nth/pkg/record"
)

func TestThatTheMachineIsInServiceIsRememberedForTheBoot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := func(boot string) *record.Store {
		store, warnings := record.Open(dir, boot, noon)
		if len(warnings) > 0 {
			t.Fatal(warnings)
		}
		return store
	}
	first := open("boot-1")
	if first.WasInService() {
		t.Error("a new record says that the machine was in service")
	}
	written := make(chan error, 1)
	first.SetInService(func(err error) { written <- err })
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	if err := first.Flush(t.Context()); err != nil || !first.WasInService() {
		t.Errorf("%v, in service: %t", err, first.WasInService())
	}
	if !open("boot-1").WasInService() {
		t.Error("it is forgotten in the same boot")
	}
	if open("boot-2").WasInService() {
		t.Error("it is believed in another boot")
	}
}
