package virtual

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/nth-project/nth/test/internal/lab"
)

// tools are the programs that a host needs, by the Debian package that has them.
var tools = map[string]string{"qemu-system-x86_64": "qemu-system-x86", "debugfs": "e2fsprogs", "mke2fs": "e2fsprogs"}

// kernelLine is the command line of the kernel. What protects processors from their own faults is dear where they are emulated.
const kernelLine = "root=/dev/vda rw rootfstype=ext4 console=ttyS0 net.ifnames=0 quiet mitigations=off nokaslr no_timer_check fsck.mode=skip"

// accelerators lists the ways of running a machine, the fastest first. A /dev/kvm that is there need not work: that of
// a machine which is virtual itself may lack what a kernel needs. An emulated kernel is booted again if it does not come up: now and then
// one crashes in code that it patches while its other processor runs it.
func accelerators() []string {
	if file, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0); err == nil {
		file.Close()
		return []string{"kvm", "tcg", "tcg"}
	}
	return []string{"tcg", "tcg"}
}

// A qemu is a process of that name.
type qemu struct {
	process *os.Process
	dir     string
	said    bytes.Buffer  // to be read when it has ended
	ended   chan struct{} // closed then
}

func (q *qemu) file(name string) string { return filepath.Join(q.dir, name) }

// start starts a machine. Its sockets and the file with the words of its console are in dir.
func start(image Image, dir, accelerator string, memory int) (*qemu, error) {
	q := &qemu{dir: dir, ended: make(chan struct{})}
	if err := image.copyDisk(q.file("disk")); err != nil {
		return nil, err
	}
	command := exec.Command("qemu-system-x86_64",
		"-machine", "q35,accel="+accelerator, "-cpu", "max", "-smp", "2", "-m", fmt.Sprint(memory),
		"-display", "none", "-nodefaults", "-no-reboot",
		"-kernel", image.file("vmlinuz"), "-initrd", image.file("initrd"), "-append", kernelLine,
		"-serial", "file:"+q.file("console"),
		"-drive", "file="+q.file("disk")+",format=raw,if=virtio,cache=unsafe",
		"-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile=",
		"-device", "virtio-serial", "-chardev", "socket,id=agent,server=on,wait=off,path="+q.file("agent"),
		"-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0",
		"-qmp", "unix:"+q.file("monitor")+",server=on,wait=off")
	command.Stdout, command.Stderr = &q.said, &q.said
	if err := lab.StartBound(command, func(error) { close(q.ended) }); err != nil {
		return nil, err
	}
	q.process = command.Process
	return q, nil
}

// end ends it, however it is.
func (q *qemu) end() {
	_ = q.process.Kill() // fails only if it has ended
	<-q.ended
}

// connect connects to one of its sockets, which is there a moment after the start.
func (q *qemu) connect(name string, event func(string)) (*line, error) {
	for limit := time.Now().Add(startLimit); ; time.Sleep(pollEvery) {
		l, err := dial(q.file(name), event)
		if err == nil {
			return l, nil
		}
		select {
		case <-q.ended:
			return nil, fmt.Errorf("connecting to its %s: it has ended: %s", name, bytes.TrimSpace(q.said.Bytes()))
		default:
		}
		if time.Now().After(limit) {
			return nil, fmt.Errorf("connecting to its %s: %w", name, err)
		}
	}
}

// awaitAgent waits until the agent in the machine answers.
func (q *qemu) awaitAgent(monitor, agent *line, limit time.Duration) error {
	up := make(chan error, 1)
	go func() { up <- agent.ask("guest-sync", map[string]any{"id": os.Getpid()}, nil) }()
	overdue := time.After(limit)
	for {
		select {
		case err := <-up:
			return err
		case <-overdue:
			return errors.New("it does not come up")
		case <-time.After(time.Second):
		}
		var state struct {
			Status string `json:"status"`
		}
		if err := monitor.ask("query-status", map[string]any{}, &state); err != nil {
			return err
		}
		if !slices.Contains([]string{"running", "prelaunch"}, state.Status) {
			return fmt.Errorf("its state is %s", state.Status)
		}
	}
}
