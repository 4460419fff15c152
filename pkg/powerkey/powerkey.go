// Package powerkey reads the machine's power key, which EC2 presses to stop or terminate an instance. The kernel reports presses to
// every process that reads the key's device in /dev/input: to logind, and to nth, which blocks logind's answer (pkg/logind) so that
// the node is drained before the shutdown begins. What follows from a press is up to the caller.
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

// Keys reads the devices with a power key. All exported fields but Root are required. Newcomers begin with Run.
type Keys struct {
	// Root is the machine's root directory; empty means "/".
	Root string
	// Listening is called once at the start and after each change. It gets true if there is a power key, and all devices with one are being
	// read.
	Listening func(bool)
	// Pressed is called for each press, with its time, which has a monotonic clock reading. It must not block.
	Pressed func(at time.Time)

	mu   sync.Mutex
	open map[string]*os.File // the devices that are read, by name
}

// scanInterval is how often the devices are listed. inotify would be faster, but on many nodes its instances are used up.
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

// scan starts to read the devices that are new. listening is true if the machine has devices with a power key, and all of them are being read. If one cannot be read, nth must leave the key to logind: nobody would answer a press on that device.
func (k *Keys) scan(reading *sync.WaitGroup) (listening bool) {
	entries, _ := os.ReadDir(filepath.Join(k.Root, "/dev/input")) // It does not exist on a machine without keys.
	found, read := 0, 0
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

// close closes all devices.
func (k *Keys) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, file := range k.open {
		_ = file.Close() // It was only read.
		delete(k.open, name)
	}
}

// hasPowerKey reports whether a device has a power key, according to the kernel. A named pipe in /dev/input counts as such a device:
// containers have no other, and tests run there. Only root can create a pipe in that directory.
func (k *Keys) hasPowerKey(device fs.DirEntry) bool {
	if device.Type()&fs.ModeNamedPipe != 0 {
		return true
	}
	text, err := os.ReadFile(filepath.Join(k.Root, "/sys/class/input", device.Name(), "device/capabilities/key"))
	return err == nil && namesPowerKey(string(text)) // After an error, the device is not an input device, or was just removed.
}

// keyPower is the code of the power key, from include/uapi/linux/input-event-codes.h.
const keyPower = 116

// namesPowerKey reports whether a bitmap of key codes contains the power key. The kernel prints the bitmap as hexadecimal words of 64 bits, the
// most significant one first, and leaves out leading zeros.
func namesPowerKey(text string) bool {
	words := strings.Fields(text)
	i := len(words) - 1 - keyPower/64
	if i < 0 {
		return false
	}
	bits, _ := strconv.ParseUint(words[i], 16, 64) // The kernel prints nothing else.
	return bits>>(keyPower%64)&1 == 1
}

// listen starts to read a device in a goroutine of reading, unless that is done already. It returns false if the device cannot be opened.
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

// follow reads a device and reports each press to Pressed, until the device is removed or closed.
func (k *Keys) follow(name string, device *os.File) {
	e := make([]byte, eventSize)
	for {
		if _, err := io.ReadFull(device, e); err != nil {
			break // The device was removed, or close has closed it.
		}
		kind, code := binary.NativeEndian.Uint16(e[16:]), binary.NativeEndian.Uint16(e[18:])
		if kind == typeKey && code == keyPower && binary.NativeEndian.Uint32(e[20:]) == keyDown {
			k.Pressed(time.Now())
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.open[name] == device { // The device was removed. Otherwise close has closed it.
		delete(k.open, name)
		_ = device.Close()
	}
}
