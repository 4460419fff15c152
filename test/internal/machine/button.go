package machine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/nth-project/nth/test/internal/lab"
)

// button is where the machine has its power button. A container shares the kernel of its host, and has no devices of its
// own: in place of one there is a pipe, that has what the kernel would report. The machines of package virtual have a real one. logind, which finds devices by udev, hears of this one nothing, whoever has its lock.
const button = "/dev/input/event0"

// AddPowerButton gives the machine a power button, which is there until the machine goes down.
func (m *Machine) AddPowerButton(t lab.TB) {
	t.Helper()
	m.Run(t, "mkdir", "-p", "/dev/input")
	m.Run(t, "mkfifo", button)
	// A pipe that nobody has open for writing is one that has gone.
	m.Run(t, "systemd-run", "--quiet", "--unit=power-button", "--property=DefaultDependencies=no", "sh", "-c", "exec sleep infinity 3<>"+button)
}

// PressPower presses the power button, and returns when that was.
func (m *Machine) PressPower(t lab.TB) time.Time {
	t.Helper()
	const syn, key, power = 0, 1, 116 // EV_SYN, EV_KEY and KEY_POWER of linux/input-event-codes.h
	pressed := time.Now()
	var text bytes.Buffer
	for _, event := range [][3]int{{key, power, 1}, {syn, 0, 0}, {key, power, 0}, {syn, 0, 0}} {
		for _, field := range []any{pressed.Unix(), int64(pressed.Nanosecond() / 1000), uint16(event[0]), uint16(event[1]), int32(event[2])} { // they are small
			_ = binary.Write(&text, binary.LittleEndian, field) // a buffer takes everything
		}
	}
	var escaped strings.Builder
	for _, b := range text.Bytes() {
		fmt.Fprintf(&escaped, `\%03o`, b)
	}
	m.Run(t, "sh", "-c", "printf '"+escaped.String()+"' >"+button)
	return pressed
}
