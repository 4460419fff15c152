package record

import (
	"time"

	"golang.org/x/sys/unix"
)

// Uptime returns how long the machine has run since it was booted, and slept, by the kernel's clock that nobody can set
// (CLOCK_BOOTTIME, clock_gettime(2)).
func Uptime() time.Duration {
	var since unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &since) // every supported kernel has it
	return time.Duration(since.Nano())
}

// Now is the time by the clock of this boot: what the wall clock said when the boot's first process opened the record, and
// Uptime from there on. Nobody can set it, it continues while the machine sleeps, and the next process continues with it. All
// times in entries are read from it.
func (s *Store) Now() time.Time { return s.booted.Add(Uptime()) }

// Booted returns when this boot began, by the clock of this boot.
func (s *Store) Booted() time.Time { return s.booted }
