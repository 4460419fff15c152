package bottlerocket_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/test/internal/bottlerocket"
	"github.com/nth-project/nth/test/internal/lab"
)

func TestMain(m *testing.M) { os.Exit(bottlerocket.Main(m, 4)) }

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

func TestNormal_DrainsItsNode(t *testing.T) {
	t.Parallel()
	h := bottlerocket.New(t, lab.Shared(t), bottlerocket.Normal)
	h.Start(t)

	t.Run("it sees nothing of the host and says so once", func(t *testing.T) {
		if said := h.Said(t, "no advance notice of shutdowns: a host container that is not superpowered"); len(said) != 1 {
			t.Errorf("said %d times", len(said))
		}
		if o := h.Try(t, "runc", "exec", "nth", "/usr/bin/nth", "config"); !strings.Contains(o.Stdout, "host_root = \"\"\n") {
			t.Errorf("the settings are\n%s%s", o.Stdout, o.Stderr)
		}
	})
	t.Run("it is known by a token of the instance's role", func(t *testing.T) {
		if h.EKS.Accepted() == 0 || h.EKS.Refused() != nil {
			t.Errorf("%d requests let in, one refused: %v", h.EKS.Accepted(), h.EKS.Refused())
		}
	})
	t.Run("all is well with it", func(t *testing.T) { mustCheck(t, h, "token for the EKS cluster production") })
	h.Run(t, "kill", "-KILL", h.Daemon(t))
	h.WaitSaid(t, "(signal: killed); starting it again in 500ms", 1)
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

func TestSuperpowered_DrainsItsNodeByTheKubeletsCredential(t *testing.T) {
	for name, test := range map[string]struct {
		join               func(*bottlerocket.Host, lab.TB)
		settings, identity string
	}{
		"its certificate":                     {(*bottlerocket.Host).JoinByCertificate, "", "the client certificate "},
		"a token in place of one of a plugin": {(*bottlerocket.Host).JoinByToken, "kubernetes.token = \"eks\"", "token for the EKS cluster production"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := bottlerocket.New(t, lab.Shared(t), bottlerocket.Superpowered)
			test.join(h, t)
			h.UserData(t, test.settings)
			h.Start(t)
			mustCheck(t, h, test.identity)
			mustDrain(t, h)
		})
	}
}
