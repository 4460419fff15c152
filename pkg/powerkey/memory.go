package powerkey

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// memoryName is the memory's name in the service manager's file descriptor store. Those of devices begin with "event".
const memoryName = "power-key"

// pressMemory holds the first press in a memfd, which the next process gets from the service manager. Times are those of
// CLOCK_BOOTTIME, which nobody can set.
type pressMemory struct {
	mu   sync.Mutex
	file *os.File
	ours func() bool       // Options.Ours
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
		_ = m.file.Close() // nothing was written to it
		return nil, err
	}
	return m, nil
}

// sinceBoot is the time of CLOCK_BOOTTIME, the clock of the kernel's input events: the time since the boot, sleep included.
func sinceBoot() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) // every supported kernel has it
	return time.Duration(now.Nano())
}

// press is a press of the power key. The zero value is none.
type press struct {
	at   time.Duration // since the boot
	ours bool          // nobody else has answered it
}

// pressed returns the first press.
func (m *pressMemory) pressed() press {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.load()
}

// clear forgets the press.
func (m *pressMemory) clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.save(press{})
}

// claim notes that nobody else has answered the press.
func (m *pressMemory) claim() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.load(); p.at != 0 {
		p.ours = true
		m.save(p)
	}
}

// form is the format of the file, which always has the same width: a time in nanoseconds, and 1 if the press is ours.
const (
	form  = "%20d %d"
	width = 22
)

// load reads the press. m.mu is held.
func (m *pressMemory) load() (p press) {
	text := make([]byte, width)
	n, _ := m.file.ReadAt(text, 0) // a new memory is empty
	var ours int
	if _, err := fmt.Sscanf(string(text[:n]), form, &p.at, &ours); err != nil {
		return press{}
	}
	p.ours = ours == 1
	return p
}

// save writes the press; there is no disk that could fail. m.mu is held.
func (m *pressMemory) save(p press) {
	ours := 0
	if p.ours {
		ours = 1
	}
	_, _ = m.file.WriteAt(fmt.Appendf(nil, form, p.at, ours), 0)
}

// device is an input device with a power key.
type device struct {
	file    *os.File
	button  bool // it has no keys but a button's
	dropped bool // the kernel has dropped events, so that the state of the key is unknown
}

// read waits for events of a device, and returns the press if there was one. If the process is killed after the events were
// read, a press is in the memory.
func (m *pressMemory) read(d *device) (p press, err error) {
	raw, err := d.file.SyscallConn()
	if err != nil {
		return press{}, err
	}
	var got error
	err = raw.Read(func(fd uintptr) (done bool) {
		if !readable(int(fd)) { // file descriptors are small
			return false
		}
		p, done, got = m.take(int(fd), d) // file descriptors are small
		return done
	})
	return p, errors.Join(err, got)
}

// take reads the events that are there. done is false if there are none. To be safe, it saves a press before it reads.
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
		p.at = min(d.pressIn(text[:n]), sinceBoot()) // a time in the future is from another clock
		// EVIOCGKEY makes the kernel drop queued key events, so the queue must be empty.
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

// readable reports whether a read would return at once, be it with an error.
func readable(fd int) bool {
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}} // file descriptors are small
	n, err := unix.Poll(poll, 0)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Poll(poll, 0)
	}
	return n > 0 || err != nil
}
