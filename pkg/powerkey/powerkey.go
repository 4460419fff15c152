// Package powerkey reads the machine's power key, which EC2 presses to stop or terminate an instance.
//
// The kernel keeps presses for every process that has the key's device in /dev/input open: for logind, and for nth. pkg/logind keeps logind from
// acting on a press, and decides what nth does about it. Start with Keys.Read.
package powerkey

import (
	"encoding/binary"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Keys reads the devices with a power key. One goroutine uses it.
type Keys struct {
	// Root is the machine's root directory; empty means "/".
	Root string

	open map[string]int // the descriptors of the devices, by their names in /dev/input
}

// Read looks at all devices. listening is true if the machine has devices with a power key, and all of them are open. If one cannot be opened, nth
// must leave the key to logind: otherwise, neither would see a press on that device and act on it.
//
// pressed is the time now if the key was pressed since the last Read, and zero if it was not.
func (k *Keys) Read() (listening bool, pressed time.Time) {
	for name, device := range k.open { // They are read even if they are not in the directory any more.
		isPressed, isGone := readDevice(device)
		if isPressed {
			pressed = time.Now()
		}
		if isGone {
			_ = unix.Close(device)
			delete(k.open, name)
		}
	}
	entries, _ := os.ReadDir(filepath.Join(k.Root, "/dev/input")) // A machine without keys does not have the directory.
	found, opened := 0, 0                                         // how many devices have a power key, and are open
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), "event") || !k.hasPowerKey(entry) {
			continue
		}
		found++
		if k.listen(entry.Name()) { // Otherwise the next Read tries again.
			opened++
		}
	}
	return found > 0 && opened == found, pressed
}

// Close closes all devices.
func (k *Keys) Close() {
	for _, device := range k.open {
		_ = unix.Close(device)
	}
	k.open = nil
}

// keyPower is the code of the power key, from include/uapi/linux/input-event-codes.h.
const keyPower = 116

// hasPowerKey reports whether a device has a power key, according to the kernel. A named pipe in /dev/input counts as such a device:
// tests use one, since a container has no input devices. Only root can create a pipe in that directory.
//
// The kernel prints a bitmap of key codes, in hexadecimal words of 64 bits. The most significant word is the first, and leading words that are zero
// are left out.
func (k *Keys) hasPowerKey(device fs.DirEntry) bool {
	if device.Type()&fs.ModeNamedPipe != 0 {
		return true
	}
	// Without such a file, the entry is no input device, or the device was just removed.
	bitmap, _ := os.ReadFile(filepath.Join(k.Root, "/sys/class/input", device.Name(), "device/capabilities/key"))
	words := strings.Fields(string(bitmap))
	i := len(words) - 1 - keyPower/64
	if i < 0 { // The word was left out: it is zero.
		return false
	}
	bits, _ := strconv.ParseUint(words[i], 16, 64) // The kernel prints only such words.
	return bits>>(keyPower%64)&1 == 1
}

// listen opens a device, unless it is open already. From then on, the kernel keeps the device's events for the next Read. It returns false if the
// device cannot be opened.
func (k *Keys) listen(name string) bool {
	if _, isOpen := k.open[name]; isOpen {
		return true
	}
	// Without O_NONBLOCK, opening some devices, and a pipe, blocks.
	device, err := unix.Open(filepath.Join(k.Root, "/dev/input", name), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	if k.open == nil {
		k.open = map[string]int{}
	}
	k.open[name] = device
	return true
}

// The kernel's struct input_event on 64-bit machines: two words of time, the type, the code and the value.
const (
	eventSize = 24
	typeKey   = 1
	keyDown   = 1
)

// readDevice reads the events that the kernel has kept. gone is true if the device was removed.
func readDevice(device int) (pressed, gone bool) {
	e := make([]byte, eventSize)
	for {
		n, err := unix.Read(device, e)
		if n != eventSize {
			return pressed, err != unix.EAGAIN && err != unix.EINTR
		}
		kind, code, value := binary.NativeEndian.Uint16(e[16:]), binary.NativeEndian.Uint16(e[18:]), binary.NativeEndian.Uint32(e[20:])
		isPowerKey := kind == typeKey && code == keyPower
		pressed = pressed || isPowerKey && value == keyDown
	}
}
