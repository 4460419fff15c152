// Package powerkey reads the machine's power button, which EC2 presses to stop or terminate an instance. The kernel reports
// presses to every process that reads the button's device in /dev/input: to logind, and to nth, which blocks logind's answer
// (pkg/logind) so that the node is drained before the shutdown begins.
//
// A press must not be lost, even if the process that has read it is killed. Therefore the service manager keeps two things
// for the next process: the open devices, with the events that nobody has read yet, and a memory with the press that was
// read. The memory is written before events are read, and cleared if they were no press.
//
// The times of presses are those of CLOCK_BOOTTIME, so that it does not matter if somebody sets the wall clock.
//
// What follows from a press is up to the caller.
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

// Store keeps open files for the next process of this service.
type Store interface {
	Keep(name string, file *os.File) error
	Forget(name string)
}

// Options configure Keys.
type Options struct {
	// Root is the machine's root directory; empty means "/".
	Root string
	// Store keeps files for the next process, and Kept has the files that earlier processes have stored, by name.
	Store Store
	Kept  map[string]*os.File
	// Wanted reports whether the devices are to be read. It is called again and again.
	Wanted func() bool
	// Listening is called at first, and when it changes whether all devices with a power key are being read.
	Listening func(bool)
	// Ours reports whether nth, and nobody else, would answer a press at the moment. The result is remembered with a press.
	Ours func() bool
	// Pressed is called for each press, with its time, which has a monotonic clock reading, and with what Ours returned then.
	// It must not block.
	Pressed func(at time.Time, ours bool)
}

// Keys reads the devices with a power key. Make one with New.
type Keys struct {
	opts   Options
	memory *pressMemory
	told   *bool // the last argument of Listening

	mu   sync.Mutex
	open map[string]*os.File // the devices that are read, by name
}

// scanInterval is how often the devices are listed. inotify would be faster, but on many nodes its instances are used up.
const scanInterval = time.Second

// New returns Keys that read no device yet. It fails if there can be no memory.
func New(opts Options) (*Keys, error) {
	m, err := newMemory(opts)
	if err != nil {
		return nil, err
	}
	return &Keys{opts: opts, memory: m, open: map[string]*os.File{}}, nil
}

// Recall calls Pressed for the press that an earlier process has read, if there was one.
func (k *Keys) Recall() { k.report(k.memory.pressed()) }

// Run reads the devices until ctx ends.
func (k *Keys) Run(ctx context.Context) {
	var reading sync.WaitGroup
	defer reading.Wait()
	defer k.close(func(string) {})
	ticker := time.NewTicker(scanInterval)
	defer ticker.Stop()
	for {
		k.scan(&reading)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// report calls Pressed, if there was a press.
func (k *Keys) report(p press) {
	if p.at != 0 {
		k.opts.Pressed(time.Now().Add(-max(sinceBoot()-p.at, 0)), p.ours)
	}
}

// Claim makes the last press ours, also for the next process: nobody else has answered it.
func (k *Keys) Claim() { k.memory.claim() }

// Over forgets the last press: the machine will not shut down because of it.
func (k *Keys) Over() { k.memory.clear() }

// scan opens the devices that are new, or closes all if they are not wanted.
func (k *Keys) scan(reading *sync.WaitGroup) {
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
	// Nobody would answer a press on a device that cannot be read.
	unread := slices.ContainsFunc(slices.Collect(maps.Keys(found)), func(name string) bool { return k.open[name] == nil })
	listening := len(k.open) > 0 && !unread
	k.mu.Unlock()
	if k.told == nil || *k.told != listening {
		k.told = &listening
		k.opts.Listening(listening)
	}
}

// close closes all devices. The service manager's copies remain for the next process, unless forget removes them.
func (k *Keys) close(forget func(name string)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, file := range k.open {
		_ = file.Close() // it was only read
		forget(name)
	}
	clear(k.open)
}

// forgetKept closes the devices of earlier processes: presses while the devices are not wanted are not for a later process.
func (k *Keys) forgetKept() {
	for name, file := range k.opts.Kept {
		if name != memoryName {
			_ = file.Close() // it was only read
			k.opts.Store.Forget(name)
			delete(k.opts.Kept, name)
		}
	}
}

// devices returns the devices that have a power key, by name.
func (k *Keys) devices() map[string]keys {
	entries, _ := os.ReadDir(filepath.Join(k.opts.Root, "/dev/input")) // it does not exist on a machine without keys
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

// keys says whether a device has a power key, and keys other than those of a button.
type keys struct{ power, others bool }

// keys reads which keys a device has. A named pipe, which only root can create there, counts as a button: tests in containers
// have no other.
func (k *Keys) keys(device fs.DirEntry) keys {
	if device.Type()&fs.ModeNamedPipe != 0 {
		return keys{power: true}
	}
	text, err := os.ReadFile(filepath.Join(k.opts.Root, "/sys/class/input", device.Name(), "device/capabilities/key"))
	if err != nil {
		return keys{} // it is not an input device, or was just removed
	}
	return parseKeys(string(text))
}

// The codes of the power keys, and of other keys of a power button, from include/uapi/linux/input-event-codes.h.
const (
	keyPower  = 116
	keySleep  = 142
	keyWakeUp = 143
	keyPower2 = 0x164
)

// parseKeys parses a bitmap as the kernel prints it: hexadecimal words, the most significant one first.
func parseKeys(text string) (found keys) {
	words := strings.Fields(text)
	for i, word := range words {
		bits, _ := strconv.ParseUint(word, 16, 64) // the kernel prints nothing else
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

// listen starts to read a device, unless it is being read. button is set if it has no keys but a button's.
func (k *Keys) listen(name string, button bool, reading *sync.WaitGroup) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.open[name] != nil {
		return
	}
	path := filepath.Join(k.opts.Root, "/dev/input", name)
	file := k.kept(name, path)
	if file == nil {
		// Without O_NONBLOCK, opening some devices, and a pipe, blocks.
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
		if err != nil {
			return // the next scan tries again
		}
		file = os.NewFile(uintptr(fd), path)
		_ = k.opts.Store.Keep(name, file) // if that fails, unread events are lost with this process
	}
	useBootTime(file)
	k.open[name] = file
	reading.Go(func() { k.follow(name, &device{file: file, button: button}) })
}

// setClock is the kernel's EVIOCSCLOCKID, in include/uapi/linux/input.h.
const setClock = 0x400445a0

// useBootTime makes the kernel use CLOCK_BOOTTIME for a device's events. It has no effect on a pipe.
func useBootTime(device *os.File) {
	raw, err := device.SyscallConn()
	if err != nil {
		return // reading it will fail, too
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.IoctlSetPointerInt(int(fd), setClock, unix.CLOCK_BOOTTIME) // file descriptors are small
	})
}

// kept returns a device that an earlier process has opened, with its unread events; nil if there is none, or if path is
// another device now.
func (k *Keys) kept(name, path string) *os.File {
	file := k.opts.Kept[name]
	if file == nil {
		return nil
	}
	delete(k.opts.Kept, name)
	before, err := file.Stat()
	now, pathErr := os.Stat(path)
	if err == nil && pathErr == nil && os.SameFile(before, now) {
		return file
	}
	_ = file.Close() // it was only read
	k.opts.Store.Forget(name)
	return nil
}

// follow reads a device until it is removed or closed.
func (k *Keys) follow(name string, d *device) {
	for {
		p, err := k.memory.read(d)
		if err != nil {
			break
		}
		k.report(p)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.open[name] == d.file { // it was removed
		delete(k.open, name)
		_ = d.file.Close()
		k.opts.Store.Forget(name)
	}
}

// The kernel's struct input_event on 64-bit machines: two words of time, the type, the code and the value.
const (
	eventSize  = 24
	typeSyn    = 0
	typeKey    = 1
	synDropped = 3
	keyDown    = 1
)

// pressIn returns the time of the first press among a device's events; 0 if there is none. If the kernel has dropped events,
// those of a button must have been presses, while another device has to be queried.
func (d *device) pressIn(text []byte) (at time.Duration) {
	for ; len(text) >= eventSize; text = text[eventSize:] {
		kind, code := binary.NativeEndian.Uint16(text[16:]), binary.NativeEndian.Uint16(text[18:])
		pressed := kind == typeKey && (code == keyPower || code == keyPower2) && binary.NativeEndian.Uint32(text[20:]) == keyDown
		dropped := kind == typeSyn && code == synDropped
		d.dropped = d.dropped || dropped && !d.button
		if pressed || dropped && d.button {
			seconds, micros := binary.NativeEndian.Uint64(text), binary.NativeEndian.Uint64(text[8:])
			return time.Duration(seconds)*time.Second + time.Duration(micros)*time.Microsecond // times since the boot fit
		}
	}
	return 0
}

// getKeys is the kernel's EVIOCGKEY, with room for all keys.
const (
	keyBytes = 96
	getKeys  = 2<<30 | keyBytes<<16 | 'E'<<8 | 0x18
)

// down queries whether the power key of a device is down.
func down(fd int) bool {
	var keys [keyBytes]byte
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), getKeys, uintptr(unsafe.Pointer(&keys[0]))); errno != 0 { // the kernel writes at most keyBytes
		return false // it is a pipe, or was removed
	}
	return isDown(keys[:])
}

// isDown reports whether a power key is set in a bitmap, which begins with key 0.
func isDown(keys []byte) bool {
	return keys[keyPower/8]>>(keyPower%8)&1 == 1 || keys[keyPower2/8]>>(keyPower2%8)&1 == 1
}

var errGone = errors.New("the device has gone")
