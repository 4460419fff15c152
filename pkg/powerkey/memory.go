package powerkey

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// memoryName is by which the service manager knows the memory. The devices have names that begin with "event".
const memoryName = "power-key"

// A memory holds the first press, in a file that has no place on any disk and that the next process finds again. Times are
// by the clock that has run since the boot, of which nobody sets the hands.
type pressMemory struct {
	mu   sync.Mutex
	file *os.File
	ours func() bool       // whether a press is nobody else's as things stand
	down func(fd int) bool // whether the power key of a device is down
}

func newMemory(opts Options) (*pressMemory, error) {
	if file := opts.Kept[memoryName]; file != nil {
		return &pressMemory{file: file, ours: opts.Ours, down: down}, nil
	}
	fd, err := unix.MemfdCreate("nth-"+memoryName, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("making a memory for the power key: %w", err)
	}
	m := &pressMemory{file: os.NewFile(uintptr(fd), memoryName), ours: opts.Ours, down: down}
	if err := opts.Store.Keep(memoryName, m.file); err != nil {
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

// A press is what is to be known of one.
type press struct {
	at   time.Duration // when it was, since the boot; zero if there was none
	ours bool          // nobody else has answered it
}

// pressed is the first press.
func (m *pressMemory) pressed() press {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.load()
}

// clear forgets it.
func (m *pressMemory) clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.save(press{})
}

// claim remembers that nobody else has answered the press.
func (m *pressMemory) claim() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.load(); p.at != 0 {
		p.ours = true
		m.save(p)
	}
}

// form is that of what is written, in a piece whose width is always the same: a time in nanoseconds, and 1 for what is ours.
const (
	form  = "%20d %d"
	width = 22
)

// load reads what was written. m.mu is held.
func (m *pressMemory) load() (p press) {
	text := make([]byte, width)
	n, _ := m.file.ReadAt(text, 0) // a new memory is empty
	var ours int
	if _, err := fmt.Sscanf(string(text[:n]), form, &p.at, &ours); err != nil {
		return press{} // and says nothing
	}
	p.ours = ours == 1
	return p
}

// save writes it; there is no disk that could fail. m.mu is held.
func (m *pressMemory) save(p press) {
	ours := 0
	if p.ours {
		ours = 1
	}
	_, _ = m.file.WriteAt(fmt.Appendf(nil, form, p.at, ours), 0)
}

// A device is one that has a power key.
type device struct {
	file    *os.File
	button  bool // and no others but its like
	dropped bool // the kernel had to drop events, and how the key stands is not known
}

// read waits for what a device tells, and returns the press if it was one. Whoever is ended in here, with the press in
// hand, has remembered one.
func (m *pressMemory) read(d *device) (p press, err error) {
	raw, err := d.file.SyscallConn()
	if err != nil {
		return press{}, err
	}
	var got error
	err = raw.Read(func(fd uintptr) (done bool) {
		if !readable(int(fd)) { // descriptors are small
			return false
		}
		p, done, got = m.take(int(fd), d) // descriptors are small
		return done
	})
	return p, errors.Join(err, got)
}

// take reads what is there to be read.
func (m *pressMemory) take(fd int, d *device) (p press, done bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before, ours := m.load(), m.ours()
	if before.at == 0 {
		m.save(press{sinceBoot(), ours})
	}
	text := make([]byte, 64*eventSize)
	n, err := unix.Read(fd, text)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Read(fd, text)
	}
	if n > 0 {
		p.at = min(d.pressIn(text[:n]), sinceBoot()) // one that is yet to come is by a clock of its own
		// What is asked for has the kernel drop what it has to tell of keys, so that comes when there is no more.
		if d.dropped && n < len(text) {
			d.dropped = false
			if p.at == 0 && m.down(fd) {
				p.at = sinceBoot()
			}
		}
	}
	p.ours = ours && p.at != 0
	if before.at == 0 {
		m.save(p)
	}
	switch {
	case errors.Is(err, unix.EAGAIN):
		return press{}, false, nil
	case err == nil && n == 0:
		err = errGone
	}
	return p, true, err
}

// readable tells whether there is something to read, or that there never will be.
func readable(fd int) bool {
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}} // descriptors are small
	n, err := unix.Poll(poll, 0)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Poll(poll, 0)
	}
	return n > 0 || err != nil
}
