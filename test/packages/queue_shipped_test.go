package packages

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/systemd"
)

func shipped(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile("../../" + file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// onlyNTH are messages of nth on a node: nth-queue has no kubelet's identity and no record, and hears of hooks from the queue.
var onlyNTH = []string{"IdentityWaiting", "IdentityFound", "HookFound", "PowerButton", "TargetStateUnknown", "Stalled", "StateTrouble"}

func TestTheCatalogOfNTHQueueExplainsItsMessages(t *testing.T) {
	t.Parallel()
	explained := map[string]bool{}
	for _, entry := range strings.Split(shipped(t, "systemd/nth-queue.catalog"), "\n-- ")[1:] {
		id, rest, _ := strings.Cut(entry, "\n")
		if explained[id] {
			t.Errorf("%s is explained twice", id)
		}
		explained[id] = true
		if head, body, _ := strings.Cut(rest, "\n\n"); !strings.HasPrefix(head, "Subject: ") || len(strings.Split(strings.TrimSpace(body), "\n\n")) < 2 {
			t.Errorf("%s is not explained, or what to do is not told:\n%s", id, rest)
		}
	}
	for name, id := range systemd.Messages() {
		if explained[id] == slices.Contains(onlyNTH, name) {
			t.Errorf("the message %s, %s, is explained: %t", name, id, explained[id])
		}
		delete(explained, id)
	}
	for id := range explained {
		t.Errorf("there is no message %s", id)
	}
}
