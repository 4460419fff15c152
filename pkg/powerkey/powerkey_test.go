package powerkey_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/powerkey"
)

// patience bounds every wait.
const patience = 30 * time.Second

// rig is a machine's devices, and what is heard of them.
type rig struct {
	root      string
	pressed   chan time.Time
	listening chan bool
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{root: t.TempDir(), pressed: make(chan time.Time, 10), listening: make(chan bool, 10)}
	if err := os.MkdirAll(filepath.Join(r.root, "dev/input"), 0o700); err != nil {
		t.Fatal(err)
	}
	return r
}

// start reads the devices again and again.
func (r *rig) start(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		keys := &powerkey.Keys{Root: r.root}
		defer keys.Close()
		for first, before := true, false; ctx.Err() == nil; first = false {
			listening, pressed := keys.Read()
			if first || listening != before {
				before = listening
				r.listening <- listening
			}
			if !pressed.IsZero() {
				r.pressed <- pressed
			}
			time.Sleep(time.Millisecond)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
}

func (r *rig) mustListen(t *testing.T, want bool) {
	t.Helper()
	if got := next(t, r.listening); got != want {
		t.Errorf("all devices are read: %t, want %t", got, want)
	}
}

// device makes one that was not there, and returns what presses it.
func (r *rig) device(t *testing.T, name string) *os.File {
	t.Helper()
	path := filepath.Join(r.root, "dev/input", name)
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() }) // It may be closed already.
	return file
}

// describe has the kernel say which keys a device has.
func (r *rig) describe(t *testing.T, name, keys string) {
	t.Helper()
	directory := filepath.Join(r.root, "sys/class/input", name, "device/capabilities")
	if err := os.MkdirAll(directory, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(directory, "key"), []byte(keys+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// report writes what a device reports of a key.
func report(t *testing.T, device *os.File, kind, code uint16, value int32) {
	t.Helper()
	var text bytes.Buffer
	for _, field := range []any{int64(0), int64(0), kind, code, value} {
		if err := binary.Write(&text, binary.NativeEndian, field); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := device.Write(text.Bytes()); err != nil {
		t.Fatal(err)
	}
}

const power = 116

// press presses the power key and lets it go.
func press(t *testing.T, device *os.File) {
	t.Helper()
	for _, value := range []int32{1, 0} {
		report(t, device, 1, power, value)
		report(t, device, 0, 0, 0)
	}
}

func next[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(patience):
		t.Fatal("it does not come")
		panic("unreachable")
	}
}

func TestPress_IsNoOtherKeyAndNoRelease(t *testing.T) {
	r := newRig(t)
	device := r.device(t, "event0")
	r.start(t)
	report(t, device, 1, 30, 1)
	report(t, device, 1, power, 0)
	report(t, device, 1, power, 2) // It is held.
	report(t, device, 4, power, 1)
	press(t, device)
	next(t, r.pressed)
}

// A pipe that nobody writes to cannot be opened by one who waits, and neither can some devices.
func TestDevice_WithoutWriterHoldsNothingUp(t *testing.T) {
	r := newRig(t)
	if err := syscall.Mkfifo(filepath.Join(r.root, "dev/input/event0"), 0o600); err != nil {
		t.Fatal(err)
	}
	device := r.device(t, "event1")
	r.start(t)
	press(t, device)
	next(t, r.pressed)
}

func TestDevice_AddedLaterOrAgainIsHeard(t *testing.T) {
	r := newRig(t)
	device := r.device(t, "event0")
	r.start(t)
	r.mustListen(t, true)
	if err := os.Remove(device.Name()); err != nil {
		t.Fatal(err)
	}
	_ = device.Close()
	r.mustListen(t, false)
	again := r.device(t, "event0")
	r.mustListen(t, true)
	for _, device := range []*os.File{again, r.device(t, "event1")} {
		press(t, device)
		next(t, r.pressed)
	}
}

// Its name is gone before the device is: it is read until then, and closed.
func TestDevice_RemovedIsReadToItsEndAndClosed(t *testing.T) {
	r := newRig(t)
	device := r.device(t, "event0")
	keys := &powerkey.Keys{Root: r.root}
	t.Cleanup(keys.Close)
	keys.Read()
	press(t, device)
	if err := os.Remove(device.Name()); err != nil {
		t.Fatal(err)
	}
	if _, pressed := keys.Read(); pressed.IsZero() {
		t.Error("the press is lost")
	}
	_ = device.Close()
	keys.Read()
	open, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, descriptor := range open {
		if to, _ := os.Readlink(descriptor); strings.HasPrefix(to, r.root) { // The list has a descriptor of its own, which is closed.
			t.Errorf("%s is still open", to)
		}
	}
}

// The lock silences logind for all devices. Nobody would answer a press on one that cannot be opened.
func TestDevice_UnreadableMeansThatNotAllAreRead(t *testing.T) {
	r := newRig(t)
	r.describe(t, "event0", "10000000000000 0")
	t.Chdir(filepath.Join(r.root, "dev/input"))
	unreadable, err := net.Listen("unix", "event0") // Nobody can open it: ENXIO.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unreadable.Close() })
	r.device(t, "event1")
	r.start(t)
	r.mustListen(t, false)
}

// Only what the kernel says has a power key is opened: keyboards are read by others.
func TestDevice_HasAPowerKeyIfTheKernelSaysSo(t *testing.T) {
	for name, c := range map[string]struct {
		keys string
		want bool
	}{
		"an ACPI button":              {"10000000000000 0", true},
		"one that sleeps and wakes":   {"8000 10000000000000 0", true},
		"a keyboard with a power key": {"7 ff9f207ac14057ff febeffdfffefffff fffffffffffffffe", true},
		"a keyboard without":          {"7 ff9f207ac14057ff feaeffdfffefffff fffffffffffffffe", false},
		"a sleep button":              {"4000 0 0", false},
		"no keys":                     {"0", false},
		"nothing":                     {"", false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.describe(t, "event0", c.keys)
			elsewhere := r.device(t, "target") // A pipe that is where devices are has a power key in any case.
			if err := os.Symlink("target", filepath.Join(r.root, "dev/input/event0")); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = elsewhere.Close() }()
			r.start(t)
			r.mustListen(t, c.want)
		})
	}
}
