// Package powerkey reads the machine's power key, which EC2 presses to stop or terminate an instance.
//
// The kernel reports presses to every process that reads the key's device in /dev/input: to logind, and to nth. pkg/logind keeps logind from
// acting on a press, and decides what nth does about it. Start with Keys.Run.
package powerkey

import (
	"context"
	"encoding/binary"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Keys reads the devices with a power key. All exported fields but Root are required. Call Run.
type Keys struct {
	// Root is the machine's root directory; empty means "/".
	Root string
	// Listening is called once at the start and after each change. listening is true if the machine has a power key, and Keys reads all
	// devices with one.
	Listening func(listening bool)
	// Pressed is called for each press. at is when the key was pressed, with a reading of the monotonic clock. Pressed must not block.
	Pressed func(at time.Time)

	mu   sync.Mutex
	open map[string]*os.File // the devices that are being read, by their names in /dev/input
}

// scanInterval is the pause between two lists of the devices. inotify would be faster, but on many nodes all its instances are in use.
const scanInterval = time.Second

// Run lists the devices every scanInterval and reads those with a power key, until ctx ends. It closes the devices before it returns.
func (k *Keys) Run(ctx context.Context) {
	k.open = map[string]*os.File{}
	var reading sync.WaitGroup
	defer reading.Wait()
	defer k.close()
	ticker := time.NewTicker(scanInterval)
	defer ticker.Stop()
	for first, before := true, false; ; first = false {
		if listening := k.scan(&reading); first || listening != before {
			before = listening
			k.Listening(listening)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// scan lists the devices, and starts to read those with a power key that are new, in goroutines of reading.
//
// listening is true if the machine has devices with a power key, and all of them are being read. If one cannot be read, nth must leave the key to
// logind: otherwise, neither would see a press on that device and act on it.
func (k *Keys) scan(reading *sync.WaitGroup) (listening bool) {
	entries, _ := os.ReadDir(filepath.Join(k.Root, "/dev/input")) // A machine without keys does not have the directory.
	found, read := 0, 0                                           // how many devices have a power key, and are being read
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), "event") && k.hasPowerKey(entry) {
			found++
			if k.listen(entry.Name(), reading) {
				read++
			}
		}
	}
	return found > 0 && read == found
}

// close closes all devices, which ends the goroutines that read them.
func (k *Keys) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, file := range k.open {
		_ = file.Close()
		delete(k.open, name)
	}
}

// hasPowerKey reports whether a device has a power key, according to the kernel. A named pipe in /dev/input counts as such a device:
// tests use one, since a container has no input devices. Only root can create a pipe in that directory.
func (k *Keys) hasPowerKey(device fs.DirEntry) bool {
	if device.Type()&fs.ModeNamedPipe != 0 {
		return true
	}
	bitmap, err := os.ReadFile(filepath.Join(k.Root, "/sys/class/input", device.Name(), "device/capabilities/key"))
	if err != nil { // The entry is no input device, or the device was just removed.
		return false
	}
	return hasKey(string(bitmap), keyPower)
}

// keyPower is the code of the power key, from include/uapi/linux/input-event-codes.h.
const keyPower = 116

// hasKey reports whether a bitmap of key codes, as the kernel prints it, has the bit of a key set. The kernel prints hexadecimal words of 64 bits,
// the most significant word first, and leaves out leading words that are zero.
func hasKey(bitmap string, code int) bool {
	words := strings.Fields(bitmap)
	i := len(words) - 1 - code/64
	if i < 0 { // The word was left out: it is zero.
		return false
	}
	bits, _ := strconv.ParseUint(words[i], 16, 64) // The kernel prints only such words.
	return bits>>(code%64)&1 == 1
}

// listen starts to read a device in a goroutine of reading, unless the device is being read already. It returns false if the device cannot be
// opened.
func (k *Keys) listen(name string, reading *sync.WaitGroup) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.open[name] != nil {
		return true
	}
	path := filepath.Join(k.Root, "/dev/input", name)
	// Without O_NONBLOCK, opening some devices, and a pipe, blocks.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return false // The next scan tries again.
	}
	file := os.NewFile(uintptr(fd), path)
	k.open[name] = file
	reading.Go(func() { k.follow(name, file) })
	return true
}

// The kernel's struct input_event on 64-bit machines: two words of time, the type, the code and the value.
const (
	eventSize = 24
	typeKey   = 1
	keyDown   = 1
)

// follow reads a device and calls Pressed for each press, until the device is removed or closed.
func (k *Keys) follow(name string, device *os.File) {
	e := make([]byte, eventSize)
	for {
		if _, err := io.ReadFull(device, e); err != nil {
			break // The device was removed, or close has closed it.
		}
		kind, code, value := binary.NativeEndian.Uint16(e[16:]), binary.NativeEndian.Uint16(e[18:]), binary.NativeEndian.Uint32(e[20:])
		if isPress := kind == typeKey && value == keyDown; isPress && code == keyPower {
			k.Pressed(time.Now())
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.open[name] == device { // The device was removed, and close has not closed it.
		delete(k.open, name)
		_ = device.Close()
	}
}
