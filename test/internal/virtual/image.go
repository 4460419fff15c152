package virtual

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/machine"
)

// packages are what a machine with a kernel of its own has beside the others: the kernel of Debian's cloud images, and
// an agent by which the test reaches it.
var packages = []string{"linux-image-cloud-amd64", "initramfs-tools", "udev", "qemu-guest-agent"}

//go:embed image.sh
var imageScript string

// An Image is what machines are booted from, one as good as the other.
type Image struct{ dir string }

func (i Image) file(name string) string { return filepath.Join(i.dir, name) }

// baking keeps two tests from doing it at once: it takes both of a small host's processors.
var baking sync.Mutex

// Bake makes an image of a suite of Debian with a package installed in it, as those who bake nth into their nodes'
// images do. It is gone when the test has ended.
func Bake(t lab.TB, suite, deb string) Image {
	t.Helper()
	machine.Need(t, tools)
	root := machine.Root(t, suite, packages...)
	dir, err := os.MkdirTemp("", "nth-baked-")
	if err != nil {
		t.Fatalf("baking an image: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // it may stay if it must
	scratch := filepath.Join(dir, "scratch")
	if err := os.Mkdir(scratch, 0o700); err != nil {
		t.Fatalf("baking an image: %v", err)
	}
	baking.Lock()
	defer baking.Unlock()
	t.Logf("baking an image of %s with %s", suite, filepath.Base(deb))
	command := exec.CommandContext(t.Context(), "/bin/sh", "-c", imageScript, "image.sh", root, deb, scratch, dir)
	// What is mounted goes with the namespace.
	command.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if said, err := command.CombinedOutput(); err != nil {
		t.Fatalf("baking an image: %v\n%s", err, said)
	}
	return Image{dir}
}

// copyDisk gives a machine a disk of its own.
func (i Image) copyDisk(to string) error {
	said, err := exec.Command("cp", "--reflink=auto", "--sparse=always", i.file("disk"), to).CombinedOutput()
	if err != nil {
		return fmt.Errorf("copying the disk: %w\n%s", err, said)
	}
	return nil
}
