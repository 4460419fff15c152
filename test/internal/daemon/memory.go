package daemon

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"github.com/nth-project/nth/test/internal/lab"
)

// PeakMemory is the most resident memory that the daemon has had so far, in bytes. The daemon must run.
func (d *Daemon) PeakMemory(t lab.TB) int64 {
	t.Helper()
	status, err := os.Open(fmt.Sprintf("/proc/%d/status", d.PID()))
	if err != nil {
		t.Fatalf("reading nth's memory: %v", err)
	}
	defer status.Close()
	for lines := bufio.NewScanner(status); lines.Scan(); {
		if peak, ours := strings.CutPrefix(lines.Text(), "VmHWM:"); ours {
			var kib int64
			if _, err := fmt.Sscan(peak, &kib); err != nil {
				t.Fatalf("reading nth's memory from %q: %v", peak, err)
			}
			return kib << 10
		}
	}
	t.Fatalf("reading nth's memory: process %d tells none", d.PID())
	return 0
}
