package powerkey

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// memoryName is by which the service manager knows the memory. The devices have names that begin with "event".
const memoryName = "power-key"

// A memory holds the first press, in a file that has no place on any disk and that the next process finds again. Times are
// by the clock that has run since the boot, of which nobody sets the hands.
type memory struct {
	mu   sync.Mutex
	file *os.File
	down func(fd int) bool // whether the power key of a device is down
}

func newMemory(kept map[string]*os.File, store Store) (*memory, error) {
	if file := kept[memoryName]; file != nil {
		return &memory{file: file, down: down}, nil
	}
	fd, err := unix.MemfdCreate("nth-"+memoryName, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("making a memory for the power key: %w", err)
	}
	m := &memory{file: os.NewFile(uintptr(fd), memoryName), down: down}
	if err := store.Keep(memoryName, m.file); err != nil {
		_ = m.file.Close() // nothing was written
		return nil, err
	}
	return m, nil
}

// sinceBoot is the time that the kernel gives presses, too: how long ago the machine was booted, also if it has slept.
func sinceBoot() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) // every kernel has it
	return time.Duration(now.Nano())
}

// pressed is when the power key was pressed first; zero if it was not.
func (m *memory) pressed() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.load()
}

// clear forgets it.
func (m *memory) clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.save(0)
}

// width is that of what is written, always in one piece.
const width = 20

// load reads what was written. m.mu is held.
func (m *memory) load() time.Duration {
	text := make([]byte, width)
	n, _ := m.file.ReadAt(text, 0)                                          // a new memory is empty
	nanos, _ := strconv.ParseInt(string(bytes.TrimSpace(text[:n])), 10, 64) // and says nothing
	return time.Duration(nanos)
}

// save writes it; there is no disk that could fail. m.mu is held.
func (m *memory) save(at time.Duration) {
	_, _ = m.file.WriteAt(fmt.Appendf(nil, "%*d", width, at), 0)
}

// A device is one that has a power key.
type device struct {
	file    *os.File
	button  bool // and no others but its like
	dropped bool // the kernel had to drop events, and how the key stands is not known
}

// read waits for what a device tells, and returns when it was a press; zero if it was none. Whoever is ended in here,
// with the press in hand, has remembered one.
func (m *memory) read(d *device) (at time.Duration, err error) {
	raw, err := d.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	var got error
	err = raw.Read(func(fd uintptr) (done bool) {
		if !readable(int(fd)) { //nolint:gosec // descriptors are small
			return false
		}
		at, done, got = m.take(int(fd), d) //nolint:gosec // descriptors are small
		return done
	})
	return at, errors.Join(err, got)
}

// take reads what is there to be read.
func (m *memory) take(fd int, d *device) (at time.Duration, done bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.load()
	if before == 0 {
		m.save(sinceBoot())
	}
	text := make([]byte, 64*eventSize)
	n, err := unix.Read(fd, text)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Read(fd, text)
	}
	if n > 0 {
		at = min(d.pressIn(text[:n]), sinceBoot()) // one that is yet to come is by a clock of its own
		// What is asked for has the kernel drop what it has to tell of keys, so that comes when there is no more.
		if d.dropped && n < len(text) {
			d.dropped = false
			if at == 0 && m.down(fd) {
				at = sinceBoot()
			}
		}
	}
	if before == 0 {
		m.save(at)
	}
	switch {
	case errors.Is(err, unix.EAGAIN):
		return 0, false, nil
	case err == nil && n == 0:
		err = errGone
	}
	return at, true, err
}

// readable tells whether there is something to read, or that there never will be.
func readable(fd int) bool {
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}} //nolint:gosec // descriptors are small
	n, err := unix.Poll(poll, 0)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Poll(poll, 0)
	}
	return n > 0 || err != nil
}
