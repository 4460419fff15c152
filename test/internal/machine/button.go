package machine

import (
	"fmt"
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

// press writes what the kernel reports of a press, by linux/input.h and its event codes: EV_KEY and KEY_POWER, down and up.
const press = `
import struct, sys
with open(sys.argv[1], "wb") as button:
    for kind, code, value in (1, 116, 1), (0, 0, 0), (1, 116, 0), (0, 0, 0):
        button.write(struct.pack("llHHi", int(sys.argv[2]), 0, kind, code, value))
`

// PressPower presses the power button.
func (m *Machine) PressPower(t lab.TB) {
	t.Helper()
	m.Run(t, "python3", "-c", press, button, fmt.Sprint(time.Now().Unix()))
}
