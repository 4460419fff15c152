package daemon

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/nth-project/nth/test/internal/lab"
)

// Usage is what a process has used so far.
type Usage struct {
	// Processor is time on processors, Memory the most that was resident, in bytes.
	Processor time.Duration
	Memory    int64
}

// tick is the kernel's unit of processor time.
const tick = 10 * time.Millisecond

// UsageOf reads what a process has used.
func UsageOf(t lab.TB, pid int) Usage {
	t.Helper()
	var u Usage
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatalf("reading what process %d has used: %v", pid, err)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	var user, system int64
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		t.Fatalf("reading what process %d has used: %v", pid, err)
	}
	u.Processor = time.Duration(user+system) * tick
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatalf("reading what process %d has used: %v", pid, err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, found := strings.CutPrefix(line, "VmHWM:"); found {
			if _, err := fmt.Sscan(rest, &u.Memory); err != nil {
				t.Fatalf("reading what process %d has used: %v", pid, err)
			}
		}
	}
	u.Memory <<= 10
	return u
}
