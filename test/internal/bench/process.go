package bench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nth-project/nth/test/internal/lab"
)

// resident is what a process occupies, in megabytes (of 10⁶ bytes).
type resident struct {
	now, peak float64
	own       float64 // of now, what is not the program's file, whose pages the kernel can drop and read again
}

func memory(t lab.TB, pid int) resident {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatalf("reading the memory of nth: %v", err)
	}
	var r resident
	for name, value := range map[string]*float64{"VmRSS": &r.now, "VmHWM": &r.peak, "RssAnon": &r.own} {
		if *value, err = field(string(status), name); err != nil {
			t.Fatalf("reading the memory of nth: %v", err)
		}
	}
	return r
}

// field reads a size from the text of /proc/PID/status, in megabytes.
func field(status, name string) (float64, error) {
	for line := range strings.Lines(status) {
		value, found := strings.CutPrefix(line, name+":")
		if !found {
			continue
		}
		kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
		if err != nil {
			return 0, fmt.Errorf("reading %s: %w", name, err)
		}
		return kib * 1024 / 1e6, nil
	}
	return 0, fmt.Errorf("there is no %s", name)
}

// processor returns how much processor time a process has used, its ended threads included. /proc counts in hundredths
// of a second, which is too coarse for a process that sleeps; the process's own clock counts in nanoseconds.
func processor(t lab.TB, pid int) time.Duration {
	t.Helper()
	const scheduler = 2 // CPUCLOCK_SCHED, see clock_getcpuclockid(3)
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduler), &used); err != nil {
		t.Fatalf("reading the processor time of nth: %v", err)
	}
	return time.Duration(used.Nano())
}
