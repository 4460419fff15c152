package logind_test

import (
	"testing"

	"github.com/nth-project/nth/pkg/logind"
)

// A container has no bus of its own, and finds the host's below the directory with the host's file system.
func TestTheHostsLogindIsSpokenToFromAContainer(t *testing.T) {
	r := newRig(t)
	r.bus.start(t)
	r.logind.join(t)
	host := r.rooted(t)
	if got, err := host.Delay(t.Context()); err != nil || got != delay {
		t.Errorf("the host's logind grants %s, %v", got, err)
	}
	if got, err := logind.Host("").Delay(t.Context()); err == nil {
		t.Errorf("the container's own logind grants %s", got)
	}
	if host.GoingDown(t.Context()) {
		t.Error("a host without a service manager goes down")
	}
	r.source = r.newSource(host)
	r.run(t)
	r.nothing(t)
	r.mustHaveLocks(t, 1, 1)
	r.logind.prepare(t, true)
	r.announced(t)
}
