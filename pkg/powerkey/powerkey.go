// Package powerkey hears the machine's power button, which is all that EC2 presses to stop or terminate an instance. The
// kernel tells of it through a device in /dev/input, to whoever reads that: logind does, and so can nth, which holds
// logind off it (pkg/logind) to have the node drained before anybody else hears of the shutdown.
//
// A press must not be lost, whatever becomes of the process that has read it. Therefore two things outlive the process,
// in the hands of the service manager: the open devices, with what nobody has read yet, and a memory with the press that
// was read, and whose it was. It is written before anything is read, and taken back if that was no press.
//
// When a key was pressed is told by CLOCK_BOOTTIME: a wall clock that is set in between makes no press older or younger.
//
// The package knows nothing of what follows from a press.
package powerkey

import (
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Store holds open files for the next process of this service.
type Store interface {
	Keep(name string, file *os.File) error
	Forget(name string)
}

// Options say where presses are heard, and who is told.
type Options struct {
	// Root is where the machine's file system begins; "" is "/".
	Root string
	// Store holds what outlives the process, and Kept has what earlier ones have given it, by name.
	Store Store
	Kept  map[string]*os.File
	// Wanted tells whether the devices are to be read. It is asked again and again.
	Wanted func() bool
	// Listening is told whether there is a device that is being read, at first and when that changes.
	Listening func(bool)
	// Ours tells whether a press would be answered here, and by nobody else, as things stand. That is remembered with it.
	Ours func() bool
	// Pressed is told of each press: when it was, with the monotonic clock's reading, and whether it was ours then. It must
	// not block.
	Pressed func(at time.Time, ours bool)
}

// Keys hears presses. Make one with New.
type Keys struct {
	opts   Options
	memory *pressMemory
	told   *bool // what Listening was told last

	mu   sync.Mutex
	open map[string]*os.File // the devices that are read, by name
}

// lookEvery is the time between two looks at which devices there are. inotify would tell at once, and where its instances
// are used up, as they are on many a node, not at all.
const lookEvery = time.Second

// New returns what does not listen yet. The error says why nothing could be remembered.
func New(opts Options) (*Keys, error) {
	m, err := newMemory(opts)
	if err != nil {
		return nil, err
	}
	return &Keys{opts: opts, memory: m, open: map[string]*os.File{}}, nil
}

// Recall tells of the press that an earlier process has heard, if there was one, before it returns.
func (k *Keys) Recall() { k.tell(k.memory.pressed()) }

// Run listens until ctx ends.
func (k *Keys) Run(ctx context.Context) {
	var reading sync.WaitGroup
	defer reading.Wait()
	defer k.close(func(string) {})
	again := time.NewTicker(lookEvery)
	defer again.Stop()
	for {
		k.look(&reading)
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
	}
}

// tell tells of a press, if it was one.
func (k *Keys) tell(p press) {
	if p.at != 0 {
		k.opts.Pressed(time.Now().Add(-max(sinceBoot()-p.at, 0)), p.ours)
	}
}

// Claim says that nobody else has answered what was pressed so far: it is ours, also for the process after this one.
func (k *Keys) Claim() { k.memory.claim() }

// Over says that the machine will not go down for what was pressed so far.
func (k *Keys) Over() { k.memory.clear() }

// look opens the devices that have come, or lets all go if they are not wanted.
func (k *Keys) look(reading *sync.WaitGroup) {
	var found map[string]keys
	if !k.opts.Wanted() {
		k.close(k.opts.Store.Forget)
		k.forgetKept()
	} else {
		found = k.devices()
		for name, has := range found {
			k.listen(name, !has.others, reading)
		}
	}
	k.mu.Lock()
	// One that cannot be read would be answered by nobody.
	unread := slices.ContainsFunc(slices.Collect(maps.Keys(found)), func(name string) bool { return k.open[name] == nil })
	listening := len(k.open) > 0 && !unread
	k.mu.Unlock()
	if k.told == nil || *k.told != listening {
		k.told = &listening
		k.opts.Listening(listening)
	}
}

// close lets all devices go. The copies stay, for the next process to find, unless they are forgotten.
func (k *Keys) close(forget func(name string)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, file := range k.open {
		_ = file.Close() // nothing was written
		forget(name)
	}
	clear(k.open)
}

// forgetKept lets the devices of earlier processes go: what is pressed while they are not wanted is no business of a later one.
func (k *Keys) forgetKept() {
	for name, file := range k.opts.Kept {
		if name != memoryName {
			_ = file.Close() // nothing was written
			k.opts.Store.Forget(name)
			delete(k.opts.Kept, name)
		}
	}
}

// devices finds those that have a power key, by their names.
func (k *Keys) devices() map[string]keys {
	entries, _ := os.ReadDir(filepath.Join(k.opts.Root, "/dev/input")) // there is none where there are no keys
	found := map[string]keys{}
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), "event") {
			continue
		}
		if has := k.keys(entry); has.power {
			found[entry.Name()] = has
		}
	}
	return found
}

// keys are what a device has, as far as it matters here.
type keys struct{ power, others bool }

// keys looks at what the kernel says of a device. A pipe in its place, which only root can put there, stands for a button:
// a container has no other, and a rehearsal needs none.
func (k *Keys) keys(device fs.DirEntry) keys {
	if device.Type()&fs.ModeNamedPipe != 0 {
		return keys{power: true}
	}
	text, err := os.ReadFile(filepath.Join(k.opts.Root, "/sys/class/input", device.Name(), "device/capabilities/key"))
	if err != nil {
		return keys{} // no device of the kernel's, or one that has just gone
	}
	return parseKeys(string(text))
}

// The numbers of keys, and what else is on a panel with a power key, in include/uapi/linux/input-event-codes.h.
const (
	keyPower  = 116
	keySleep  = 142
	keyWakeUp = 143
	keyPower2 = 0x164
)

// parseKeys reads a bitmap as the kernel prints it: words in hexadecimal digits, the highest first.
func parseKeys(text string) (found keys) {
	words := strings.Fields(text)
	for i, word := range words {
		bits, _ := strconv.ParseUint(word, 16, 64) // what the kernel prints are such words
		for bit := range 64 {
			if bits>>bit&1 == 0 {
				continue
			}
			switch (len(words)-1-i)*64 + bit {
			case keyPower, keyPower2:
				found.power = true
			case keySleep, keyWakeUp:
			default:
				found.others = true
			}
		}
	}
	return found
}

// listen reads a device, which may have no other keys but a button's, unless that is being done.
func (k *Keys) listen(name string, button bool, reading *sync.WaitGroup) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.open[name] != nil {
		return
	}
	path := filepath.Join(k.opts.Root, "/dev/input", name)
	file := k.kept(name, path)
	if file == nil {
		// Without O_NONBLOCK the opening of some devices, and of a pipe, waits.
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
		if err != nil {
			return // it has gone, or may not be opened: the next look tries again
		}
		file = os.NewFile(uintptr(fd), path)
		_ = k.opts.Store.Keep(name, file) // then what nobody has read ends with the process
	}
	tellSinceBoot(file)
	k.open[name] = file
	reading.Go(func() { k.follow(name, &device{file: file, button: button}) })
}

// setClock is the kernel's EVIOCSCLOCKID, in include/uapi/linux/input.h.
const setClock = 0x400445a0

// tellSinceBoot has a device tell its times by CLOCK_BOOTTIME. A pipe is written to by one who does so.
func tellSinceBoot(device *os.File) {
	raw, err := device.SyscallConn()
	if err != nil {
		return // it will not be read either
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.IoctlSetPointerInt(int(fd), setClock, unix.CLOCK_BOOTTIME) // descriptors are small
	})
}

// kept is the device as an earlier process had opened it, with what nobody has read; nil if it is not there, or is
// another device by now.
func (k *Keys) kept(name, path string) *os.File {
	file := k.opts.Kept[name]
	if file == nil {
		return nil
	}
	delete(k.opts.Kept, name)
	before, err := file.Stat()
	now, gone := os.Stat(path)
	if err == nil && gone == nil && os.SameFile(before, now) {
		return file
	}
	_ = file.Close() // it is of no use
	k.opts.Store.Forget(name)
	return nil
}

// follow reads a device until it has gone, or is closed.
func (k *Keys) follow(name string, d *device) {
	for {
		p, err := k.memory.read(d)
		if err != nil {
			break
		}
		k.tell(p)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.open[name] == d.file { // it has not been closed, so it has gone
		delete(k.open, name)
		_ = d.file.Close()
		k.opts.Store.Forget(name)
	}
}

// Of the kernel's struct input_event, on machines of 64 bits: two words of time, the type, the code and the value.
const (
	eventSize  = 24
	typeSyn    = 0
	typeKey    = 1
	synDropped = 3
	keyDown    = 1
)

// pressIn finds the first press in what a device told at once. Where the kernel had to drop events, those of a button with
// no other keys were presses; of another device it remains to be asked.
func (d *device) pressIn(text []byte) (at time.Duration) {
	for ; len(text) >= eventSize; text = text[eventSize:] {
		kind, code := binary.NativeEndian.Uint16(text[16:]), binary.NativeEndian.Uint16(text[18:])
		pressed := kind == typeKey && (code == keyPower || code == keyPower2) && binary.NativeEndian.Uint32(text[20:]) == keyDown
		dropped := kind == typeSyn && code == synDropped
		d.dropped = d.dropped || dropped && !d.button
		if pressed || dropped && d.button {
			seconds, micros := binary.NativeEndian.Uint64(text), binary.NativeEndian.Uint64(text[8:])
			return time.Duration(seconds)*time.Second + time.Duration(micros)*time.Microsecond // what the kernel's clock says fits
		}
	}
	return 0
}

// getKeys is the kernel's EVIOCGKEY for as many keys as there are.
const (
	keyBytes = 96
	getKeys  = 2<<30 | keyBytes<<16 | 'E'<<8 | 0x18
)

// down asks the kernel whether the power key of a device is down.
func down(fd int) bool {
	var keys [keyBytes]byte
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), getKeys, uintptr(unsafe.Pointer(&keys[0]))); errno != 0 { // the kernel writes no more than it is asked for
		return false // a pipe, or a device that has gone
	}
	return isDown(keys[:])
}

// isDown looks for the power key in a bitmap of keys, the first one first.
func isDown(keys []byte) bool {
	return keys[keyPower/8]>>(keyPower%8)&1 == 1 || keys[keyPower2/8]>>(keyPower2%8)&1 == 1
}

var errGone = errors.New("the device has gone")
