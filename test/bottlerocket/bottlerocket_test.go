package bottlerocket_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/test/internal/bottlerocket"
	"github.com/nth-project/nth/test/internal/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m, 4)) }

// twoMinutes is the notice that EC2 gives; nth believes no longer one.
func twoMinutes() time.Time { return time.Now().Add(2 * time.Minute) }

// mustDrain announces an interruption, and waits until the node is cordoned and empty and nth has said so.
func mustDrain(t *testing.T, h *bottlerocket.Host) {
	t.Helper()
	h.Node.AddPods(t, "web", 3)
	h.IMDS.SetSpot("terminate", twoMinutes())
	h.Node.WaitCordoned(t)
	h.Node.WaitEmpty(t)
	h.WaitStatus(t, "is drained")
}

// mustCheck fails the test unless "nth check" finds everything as it should be, and the identity by what the text says.
func mustCheck(t *testing.T, h *bottlerocket.Host, identity string) {
	t.Helper()
	o := h.Inside(t, "check")
	if o.Status != 0 || !strings.Contains(o.Stdout, identity) || strings.Contains(o.Stdout, "  service  ") {
		t.Errorf("status %d\n%s%s", o.Status, o.Stdout, o.Stderr)
	}
}

// mustHavePriorities fails the test unless the journal knows how important each word of nth is, and nothing was written
// that is shown on the console.
func mustHavePriorities(t *testing.T, h *bottlerocket.Host) {
	t.Helper()
	for _, e := range h.Said(t, "") {
		if strings.HasPrefix(e.Message(), "<") || e["PRIORITY"] == "" {
			t.Errorf("priority %q: %s", e["PRIORITY"], e.Message())
		}
	}
	if said := h.Said(t, "EC2 will terminate this spot instance"); len(said) == 0 {
		t.Error("the journal has nothing about the interruption")
	}
	if text := h.Errors(t); text != "" {
		t.Errorf("on the console:\n%s", text)
	}
}

func TestContainer_DrainsItsNode(t *testing.T) {
	t.Parallel()
	h := bottlerocket.New(t, lab.Shared(t))
	h.JoinByCertificate(t)
	h.Start(t)
	mustCheck(t, h, "the client certificate ")
	mustDrain(t, h)
	t.Run("its words have their priorities in the journal", func(t *testing.T) { mustHavePriorities(t, h) })
	t.Run("so have those about wrong settings", func(t *testing.T) {
		h.UserData(t, "colour = \"blue\"")
		h.Run(t, "systemctl", "restart", "host-containers@nth.service")
		h.WaitSaid(t, "/.bottlerocket/host-containers/current/user-data: line 1: colour: unknown key", 1)
		if e := h.Said(t, "unknown key")[0]; e["PRIORITY"] != "3" {
			t.Errorf("priority %s: %s", e["PRIORITY"], e.Message())
		}
		mustHavePriorities(t, h)
	})
}
