package powerkey_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nth-project/nth/pkg/powerkey"
)

// patience bounds every wait.
const patience = 30 * time.Second

// A rig is a machine's devices, a service manager that keeps files, and what hears.
type rig struct {
	root   string
	store  *store
	wanted atomic.Bool
	holds  atomic.Bool // a press is ours
	down   func() bool // the kernel's answer, whether the power key is

	keys      *powerkey.Keys
	pressed   chan time.Time
	ours      chan bool // of each press
	listening chan bool
	stop      func()
}

// A store keeps copies, as the service manager does.
type store struct {
	mu    sync.Mutex
	files map[string]*os.File
}

func (s *store) Keep(name string, file *os.File) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[name] = duplicate(file)
	return nil
}

func (s *store) Forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.files, name)
}

// kept are copies for another process.
func (s *store) kept() map[string]*os.File {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := map[string]*os.File{}
	for name, file := range s.files {
		kept[name] = duplicate(file)
	}
	return kept
}

func duplicate(file *os.File) (copied *os.File) {
	raw, err := file.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			if second, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); err == nil {
				copied = os.NewFile(uintptr(second), file.Name())
			}
		})
	}
	if err != nil {
		return nil
	}
	return copied
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{root: t.TempDir(), store: &store{files: map[string]*os.File{}}}
	r.wanted.Store(true)
	if err := os.MkdirAll(filepath.Join(r.root, "dev/input"), 0o700); err != nil {
		t.Fatal(err)
	}
	return r
}

// device makes one that is not there yet, and returns what is to press it.
func (r *rig) device(t *testing.T, name string) *os.File {
	t.Helper()
	path := filepath.Join(r.root, "dev/input", name)
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() }) // it may be closed already
	return file
}

// keyboard makes a device that has a power key among many others.
func (r *rig) keyboard(t *testing.T, name string) *os.File {
	t.Helper()
	has := filepath.Join(r.root, "sys/class/input", name, "device/capabilities")
	if err := os.MkdirAll(has, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(has, "key"), []byte("7 ff9f207ac14057ff febeffdfffefffff fffffffffffffffe\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	elsewhere := r.device(t, "keyboard") // a pipe that stands where devices do is a button
	if err := os.Symlink("keyboard", filepath.Join(r.root, "dev/input", name)); err != nil {
		t.Fatal(err)
	}
	return elsewhere
}

// start begins another process, with what was kept of those before.
func (r *rig) start(t *testing.T) {
	t.Helper()
	r.pressed, r.ours, r.listening = make(chan time.Time, 10), make(chan bool, 10), make(chan bool, 10)
	keys, err := powerkey.New(powerkey.Options{
		Root: r.root, Store: r.store, Kept: r.store.kept(), Wanted: r.wanted.Load,
		Ours:    r.holds.Load,
		Pressed: func(at time.Time, ours bool) { r.pressed <- at; r.ours <- ours }, Listening: func(is bool) { r.listening <- is },
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.down != nil {
		keys.AnswerFor(r.down)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	keys.Recall()
	go func() { defer close(done); keys.Run(ctx) }()
	r.keys, r.stop = keys, func() { cancel(); <-done }
	t.Cleanup(func() { r.stop() })
}

// sinceBoot is a time by the clock that has run since the boot, as the kernel tells it.
func sinceBoot(t *testing.T, at time.Time) time.Duration {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		t.Fatal(err)
	}
	return time.Duration(now.Nano()) + time.Until(at)
}

// tell writes what a device tells of a key.
func tell(t *testing.T, device *os.File, at time.Time, kind, code uint16, value int32) {
	t.Helper()
	stamp := sinceBoot(t, at)
	var text bytes.Buffer
	for _, field := range []any{int64(stamp / time.Second), int64(stamp % time.Second / time.Microsecond), kind, code, value} {
		if err := binary.Write(&text, binary.NativeEndian, field); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := device.Write(text.Bytes()); err != nil {
		t.Fatal(err)
	}
}

const power = 116

// press presses a power key and lets it go.
func press(t *testing.T, device *os.File, at time.Time) {
	t.Helper()
	for _, value := range []int32{1, 0} {
		tell(t, device, at, 1, power, value)
		tell(t, device, at, 0, 0, 0)
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

// mustBe fails the test unless a press is the one of that time, of those that are minutes apart.
func mustBe(t *testing.T, got, want time.Time) {
	t.Helper()
	if got.Sub(want).Abs() > patience {
		t.Errorf("it was pressed at %s, want %s", got, want)
	}
}

func TestAPressIsHeardOnEachDeviceAlsoIfItComesLater(t *testing.T) {
	r := newRig(t)
	first := r.device(t, "event0")
	r.start(t)
	if !next(t, r.listening) {
		t.Error("it does not listen")
	}
	at := time.Now().Add(-2 * time.Minute)
	press(t, first, at)
	mustBe(t, next(t, r.pressed), at)
	at = at.Add(time.Minute)
	press(t, r.device(t, "event1"), at)
	mustBe(t, next(t, r.pressed), at)
}

func TestOtherKeysAndLettingGoAreNoPress(t *testing.T) {
	r := newRig(t)
	device := r.device(t, "event0")
	r.start(t)
	at := time.Now().Add(-2 * time.Minute)
	tell(t, device, at, 1, 30, 1)
	tell(t, device, at, 1, power, 0)
	tell(t, device, at, 1, power, 2) // it is held
	tell(t, device, at, 4, power, 1)
	press(t, device, at.Add(time.Minute))
	mustBe(t, next(t, r.pressed), at.Add(time.Minute))
}

func TestAButtonOfWhichEventsWereDroppedWasPressed(t *testing.T) {
	r := newRig(t)
	device := r.device(t, "event0")
	r.start(t)
	at := time.Now()
	tell(t, device, at, 0, 3, 0)
	mustBe(t, next(t, r.pressed), at)
}

// A keyboard with a power key tells of many others. Of what the kernel had to drop, only whether the key is down is to be known.
func TestAKeyboardOfWhichEventsWereDroppedIsAskedWhetherThePowerKeyIsDown(t *testing.T) {
	r := newRig(t)
	device := r.keyboard(t, "event0")
	asked, down := make(chan struct{}, 10), &atomic.Bool{}
	r.down = func() bool { asked <- struct{}{}; return down.Load() }
	r.start(t)
	at := time.Now()
	tell(t, device, at, 0, 3, 0)
	next(t, asked)
	down.Store(true)
	tell(t, device, at.Add(-2*time.Minute), 0, 3, 0)
	next(t, asked)
	mustBe(t, next(t, r.pressed), at)
	tell(t, device, at, 1, 30, 1) // nothing is missing
	tell(t, device, at.Add(-2*time.Minute), 1, power, 1)
	mustBe(t, next(t, r.pressed), at.Add(-2*time.Minute))
	if len(asked) > 0 {
		t.Error("it was asked again")
	}
}

func TestThePowerKeyIsFoundAmongTheKeysThatAreDown(t *testing.T) {
	for name, c := range map[string]struct {
		bytes map[int]byte
		want  bool
	}{
		"none":                {nil, false},
		"the power key":       {map[int]byte{14: 0x10}, true},
		"the other power key": {map[int]byte{44: 0x10}, true},
		"those beside them":   {map[int]byte{14: 0xef, 44: 0xef, 13: 0xff, 45: 0xff}, false},
	} {
		t.Run(name, func(t *testing.T) {
			keys := make([]byte, 96)
			for i, b := range c.bytes {
				keys[i] = b
			}
			if got := powerkey.IsDown(keys); got != c.want {
				t.Errorf("it is down: %t, want %t", got, c.want)
			}
		})
	}
}

func TestAPressOutlivesTheProcess(t *testing.T) {
	at := time.Now().Add(-2 * time.Minute)
	for name, step := range map[string]func(*testing.T, *rig, *os.File){
		"that has heard it": func(t *testing.T, r *rig, device *os.File) {
			r.start(t)
			press(t, device, at)
			press(t, device, at.Add(time.Minute)) // says nothing new
			next(t, r.pressed)
			next(t, r.listening)
			r.stop()
		},
		"that has not read it": func(t *testing.T, r *rig, device *os.File) {
			r.start(t)
			next(t, r.listening)
			r.stop()
			press(t, device, at)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			device := r.device(t, "event0")
			step(t, r, device)
			for range 2 {
				r.start(t)
				mustBe(t, next(t, r.pressed), at)
				r.stop()
			}
			r.start(t)
			next(t, r.pressed)
			r.keys.Over()
			r.stop()
			later := at.Add(time.Minute)
			press(t, device, later)
			r.start(t)
			mustBe(t, next(t, r.pressed), later)
		})
	}
}

// The wall clock may be set between the press and the process that hears of it; what the kernel and the memory say of the time since the
// boot stays true. A device of a kernel that knows only the wall clock tells of a time far ahead.
func TestWhenAKeyWasPressedIsNotToldByTheWallClock(t *testing.T) {
	r := newRig(t)
	device := r.device(t, "event0")
	r.start(t)
	wall := time.Since(time.Unix(0, 0)) // since the boot
	tell(t, device, time.Now().Add(wall), 1, power, 1)
	mustBe(t, next(t, r.pressed), time.Now())
	at := time.Now().Add(-2 * time.Minute)
	press(t, device, at)
	got := next(t, r.pressed)
	mustBe(t, got, at)
	if got == got.Round(0) { // They are the same time, and one of them may have a reading of the monotonic clock.
		t.Errorf("%s has no reading of the monotonic clock", got)
	}
	r.stop()
	file := r.store.kept()["power-key"]
	text := make([]byte, 20)
	if _, err := file.ReadAt(text, 0); err != nil {
		t.Fatal(err)
	}
	nanos, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if latest := sinceBoot(t, time.Now()); err != nil || time.Duration(nanos) > latest {
		t.Errorf("remembered is %q, %v, and the machine was booted %s ago", text, err, latest)
	}
}

// The process that has heard it held the lock, and the one after it does not yet.
func TestThatAPressWasOursOutlivesTheProcess(t *testing.T) {
	for name, c := range map[string]struct{ held, claimed, want bool }{
		"as it was held then":                 {held: true, want: true},
		"as nobody has answered it meanwhile": {claimed: true, want: true},
		"and it was not":                      {},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			device := r.device(t, "event0")
			r.holds.Store(c.held)
			r.start(t)
			press(t, device, time.Now())
			next(t, r.pressed)
			if next(t, r.ours) != c.held {
				t.Errorf("it was ours: %t, want %t", !c.held, c.held)
			}
			if c.claimed {
				r.keys.Claim()
			}
			r.stop()
			r.holds.Store(false)
			r.start(t)
			if got := <-r.ours; got != c.want {
				t.Errorf("in the next process it was ours: %t, want %t", got, c.want)
			}
			r.keys.Over()
			r.keys.Claim() // of nothing
			r.stop()
			r.start(t)
			next(t, r.listening)
			if len(r.pressed) > 0 {
				t.Errorf("it is over, and told again: %s", <-r.pressed)
			}
		})
	}
}

// A pipe that nobody writes to cannot be opened by one who waits, and neither can some devices.
func TestADeviceThatCannotBeReadHoldsNothingUp(t *testing.T) {
	r := newRig(t)
	if err := unix.Mkfifo(filepath.Join(r.root, "dev/input/event0"), 0o600); err != nil {
		t.Fatal(err)
	}
	device := r.device(t, "event1")
	r.start(t)
	at := time.Now()
	press(t, device, at)
	mustBe(t, next(t, r.pressed), at)
}

func TestADeviceThatHasGoneAndComesAgainIsHeardAgain(t *testing.T) {
	r := newRig(t)
	device := r.device(t, "event0")
	r.start(t)
	if !next(t, r.listening) {
		t.Fatal("it does not listen")
	}
	if err := os.Remove(device.Name()); err != nil {
		t.Fatal(err)
	}
	_ = device.Close()
	if next(t, r.listening) {
		t.Error("it listens to what is not there")
	}
	at := time.Now()
	again := r.device(t, "event0")
	if !next(t, r.listening) {
		t.Error("it does not listen")
	}
	press(t, again, at)
	mustBe(t, next(t, r.pressed), at)
}

func TestWhatIsNotWantedIsNotListenedTo(t *testing.T) {
	r := newRig(t)
	r.wanted.Store(false)
	device := r.device(t, "event0")
	r.start(t)
	if next(t, r.listening) {
		t.Error("it listens")
	}
	r.wanted.Store(true)
	if !next(t, r.listening) {
		t.Error("it does not listen")
	}
	at := time.Now()
	press(t, device, at)
	mustBe(t, next(t, r.pressed), at)
	r.wanted.Store(false)
	if next(t, r.listening) {
		t.Error("it listens on")
	}
	r.stop()
	press(t, device, at.Add(time.Minute)) // is somebody else's
	r.keys.Over()
	r.wanted.Store(true)
	if _, kept := r.store.kept()["event0"]; kept {
		t.Error("what was not wanted is kept for the next process")
	}
}

// Only what the kernel says has a power key is opened: keyboards are read by others.
func TestADeviceHasAPowerKeyIfTheKernelSaysSo(t *testing.T) {
	for name, c := range map[string]struct {
		keys string
		want powerkey.KeySet
	}{
		"an ACPI button":             {"10000000000000 0", powerkey.KeySet{Power: true}},
		"one that sleeps and wakes":  {"8000 10000000000000 0", powerkey.KeySet{Power: true}},
		"a common keyboard":          {"7 ff9f207ac14057ff febeffdfffefffff fffffffffffffffe", powerkey.KeySet{Power: true, Others: true}},
		"a keyboard with such a key": {"3f000301ff 0 0 483ffff17aff32d bfd4444600000000 1 130ff38b17c000 677bfad9415fed 19ed68000004400 10000002", powerkey.KeySet{Power: true, Others: true}},
		"a mouse":                    {"ff0000 0 0 0 0", powerkey.KeySet{Others: true}},
		"nothing":                    {"0", powerkey.KeySet{}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := powerkey.ParseKeys(c.keys + "\n"); got != c.want {
				t.Errorf("it has %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestWithoutAServiceManagerNothingIsHeard(t *testing.T) {
	if _, err := powerkey.New(powerkey.Options{Store: nobody{}}); err == nil {
		t.Error("a press would be lost with the process")
	}
}

type nobody struct{}

func (nobody) Keep(string, *os.File) error { return errors.New("nobody is there") }
func (nobody) Forget(string)               {}
