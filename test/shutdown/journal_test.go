package shutdown

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/host"
)

// fill writes to the journal's socket until it takes no more, from many sockets, each of which may write so much.
const fill = `
import socket
while True:
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    s.setblocking(False)
    taken = 0
    try:
        while True:
            s.sendto(b"MESSAGE=full\nSYSLOG_IDENTIFIER=fill\n", "/run/systemd/journal/socket")
            taken += 1
    except BlockingIOError:
        pass
    if taken == 0:
        break
`

func TestAJournalThatHangsDoesNotHoldADrain(t *testing.T) {
	onEverySuite(t, func(t *testing.T, h *host.Host) {
		h.Node.AddPods(t, "web", pods)
		journald := h.Hang(t, "systemd-journald")
		h.Run(t, "python3", "-c", fill)
		h.IMDS.SetSpot("terminate", time.Now().Add(2*time.Minute))
		h.Node.WaitEmpty(t)
		h.WaitStatus(t, "is drained")
		h.Run(t, "kill", "-CONT", journald)
		h.WaitLogged(t, systemd.Drained)
		if said := h.Logged(t, systemd.PodGone); len(said) != pods {
			t.Errorf("the journal has %d pods that are gone, want %d", len(said), pods)
		}
	})
}
