// Package virtual boots a real kernel, in qemu, and presses the power button of the machine.
//
//	m := virtual.Boot(t, "trixie", virtual.Image{Package: "dist/nth.deb"})
//	m.WaitSays(t, "by pressing its virtual power button, nth drains the node")
//	m.PressPower(t)
//	m.WaitOff(t)
//	entries := m.Journal(t, "--unit=nth")
//
// The processor is the host's where the host's kernel lends it (KVM), and else emulated, which makes a boot take some
// 20 s. The machine reaches what listens at 127.0.0.1 of the host under the address Gateway. Nothing is typed on it: what
// it needs is in its image, its journal is written to its console, too, and can be read from its disk when it is off.
//
// Package machine boots a systemd alone, which is a hundred times faster. What it cannot show is here: the button.
package virtual

import (
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/machine"
)

// Gateway is the host, seen from a machine.
const Gateway = "10.0.2.2"

const (
	// patience bounds every wait for a machine, which may be an emulated one on a busy host, and bootLimit that for its kernel.
	patience  = 8 * time.Minute
	bootLimit = patience / 4
	// pollEvery is the pause between two looks at its console.
	pollEvery = 200 * time.Millisecond
)

// tools are the programs that a host needs, by the Debian package that has them.
var tools = map[string]string{"qemu-system-x86_64": "qemu-system-x86", "debugfs": "e2fsprogs", "mke2fs": "e2fsprogs"}

// packages are what a machine with a kernel of its own has more than the others: the kernel of Debian's cloud images.
var packages = []string{"linux-image-cloud-amd64", "initramfs-tools", "udev"}

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

// An Image is what a machine has on its disk more than Debian's packages.
type Image struct {
	// Package is the path of a package that is installed, as those do who bake nth into their nodes' images.
	Package string
	// Files are texts by their paths.
	Files map[string]string
}

//go:embed image.sh
var imageScript string

// bake makes the disk of a suite of Debian and returns the directory that has it, beside the kernel.
func (i Image) bake(t lab.TB, suite string) (dir string) {
	t.Helper()
	machine.Need(t, tools)
	root := machine.Root(t, suite, packages...)
	dir = t.TempDir()
	for name, text := range i.Files {
		file := filepath.Join(dir, "files", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatalf("baking an image: %v", err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatalf("baking an image: %v", err)
		}
	}
	t.Logf("baking an image of %s with %s", suite, filepath.Base(i.Package))
	command := exec.CommandContext(t.Context(), "/bin/sh", "-c", imageScript, "image.sh", root, i.Package, dir)
	// What is mounted goes with the namespace.
	command.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if said, err := command.CombinedOutput(); err != nil {
		t.Fatalf("baking an image: %v\n%s", err, said)
	}
	return dir
}

// A Machine is a virtual one: a process of qemu.
type Machine struct {
	dir     string // has its disk and the words of its console
	monitor io.Writer
	said    bytes.Buffer  // by qemu itself, to be read when it has ended
	ended   chan struct{} // closed then
	off     time.Time     // when it has ended
	err     error
}

// Boot bakes an image, and boots a machine from it. It returns when the kernel has started process 1. The machine is gone when the test
// has ended.
func Boot(t lab.TB, suite string, image Image) *Machine {
	t.Helper()
	baked, began := image.bake(t, suite), time.Now()
	for _, accelerator := range accelerators() {
		m, err := start(t, baked, accelerator)
		if err != nil {
			t.Fatalf("starting qemu: %v", err)
		}
		if m.says("systemd[1]: ", bootLimit) {
			t.Logf("a machine by %s has booted after %.0f s", accelerator, time.Since(began).Seconds())
			return m
		}
		t.Logf("a machine by %s does not boot; the console said:\n%s", accelerator, m.console())
	}
	t.Fatalf("this host runs no virtual machine")
	return nil
}

// start starts a machine with a disk of its own.
func start(t lab.TB, baked, accelerator string) (*Machine, error) {
	dir, err := os.MkdirTemp(baked, "machine-")
	if err != nil {
		return nil, err
	}
	m := &Machine{dir: dir, ended: make(chan struct{})}
	if said, err := exec.Command("cp", "--reflink=auto", "--sparse=always", filepath.Join(baked, "disk"), m.file("disk")).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("copying the disk: %w\n%s", err, said)
	}
	command := exec.Command("qemu-system-x86_64",
		"-machine", "q35,accel="+accelerator, "-cpu", "max", "-smp", "2", "-m", "768",
		"-display", "none", "-nodefaults", "-no-reboot", "-monitor", "stdio",
		"-kernel", filepath.Join(baked, "vmlinuz"), "-initrd", filepath.Join(baked, "initrd"), "-append", kernelLine,
		"-serial", "file:"+m.file("console"),
		"-drive", "file="+m.file("disk")+",format=raw,if=virtio,cache=unsafe",
		"-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile=")
	command.Stdout, command.Stderr = &m.said, &m.said
	if m.monitor, err = command.StdinPipe(); err != nil {
		return nil, err
	}
	err = lab.StartBound(command, func(err error) { m.off, m.err = time.Now(), err; close(m.ended) })
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the console said:\n%s", m.console())
		}
		_ = command.Process.Kill() // fails only if it has ended
		<-m.ended
	})
	return m, nil
}

func (m *Machine) file(name string) string { return filepath.Join(m.dir, name) }

// console is the end of what the machine has written to its console; nothing, if it has not begun.
func (m *Machine) console() []byte {
	text, _ := os.ReadFile(m.file("console"))
	return text[max(0, len(text)-32<<10):]
}

// says reports whether the console says the text within that time.
func (m *Machine) says(text string, within time.Duration) bool {
	for limit := time.Now().Add(within); time.Now().Before(limit); time.Sleep(pollEvery) {
		if bytes.Contains(m.console(), []byte(text)) {
			return true
		}
		select {
		case <-m.ended:
			return false
		default:
		}
	}
	return false
}

// WaitSays waits until the console says the text.
func (m *Machine) WaitSays(t lab.TB, text string) {
	t.Helper()
	if !m.says(text, patience) {
		t.Fatalf("waiting until the machine says %q: it does not come", text)
	}
}

// PressPower presses the power button, which is all that EC2 does to stop or to terminate a machine, and returns when.
func (m *Machine) PressPower(t lab.TB) time.Time {
	t.Helper()
	pressed := time.Now()
	if _, err := io.WriteString(m.monitor, "system_powerdown\n"); err != nil {
		t.Fatalf("pressing the power button: %v", err)
	}
	return pressed
}

// WaitOff waits until the machine has switched itself off, and returns when it did.
func (m *Machine) WaitOff(t lab.TB) time.Time {
	t.Helper()
	select {
	case <-m.ended:
	case <-time.After(patience):
		t.Fatalf("waiting until the machine is off: it does not come")
	}
	if m.err != nil {
		t.Fatalf("the machine did not switch itself off: %v\n%s", m.err, m.said.Bytes())
	}
	return m.off
}

// Journal returns the entries that journalctl shows with the arguments, of a machine that is off.
func (m *Machine) Journal(t lab.TB, args ...string) []machine.Entry {
	t.Helper()
	said, err := exec.Command("debugfs", "-R", "rdump /var/log/journal "+m.dir, m.file("disk")).CombinedOutput()
	if err != nil {
		t.Fatalf("reading the disk: %v\n%s", err, said)
	}
	return machine.JournalIn(t, m.file("journal"), args...)
}
