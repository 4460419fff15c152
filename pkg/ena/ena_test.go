package ena_test

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nth-project/nth/pkg/ena"
)

// machine is a file system of a machine whose interfaces have these drivers; "" is an interface without a device.
func machine(t *testing.T, drivers map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, driver := range drivers {
		device := filepath.Join(root, "sys/class/net", name, "device")
		if driver == "" {
			device = filepath.Dir(device)
		}
		err := os.MkdirAll(device, 0o700)
		if err == nil && driver != "" {
			err = os.Symlink("../../../../bus/pci/drivers/"+driver, filepath.Join(device, "driver"))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestWhatEachInterfaceOfTheDriverCountsIsRead(t *testing.T) {
	t.Parallel()
	r := ena.NewReader(machine(t, map[string]string{"ens5": "ena", "ens6": "ena", "ens7": "ena", "ens8": "ena", "eth9": "virtio_net", "eni1": "", "lo": ""}))
	r.ReadWith(func(name string) (uint64, bool, error) {
		switch name {
		case "ens5":
			return 7, true, nil
		case "ens6":
			return 0, true, nil
		case "ens7":
			return 0, false, nil // an old driver
		case "ens8":
			return 0, false, unix.EPERM
		default:
			t.Errorf("asked for %s", name)
			return 1, true, nil
		}
	})
	for range 2 {
		if got := r.LinkLocalExceeded(); !maps.Equal(got, map[string]uint64{"ens5": 7, "ens6": 0}) {
			t.Errorf("got %v", got)
		}
	}
}

func TestAMachineWithoutSuchAnInterfaceHasNoCounter(t *testing.T) {
	t.Parallel()
	for _, root := range []string{machine(t, map[string]string{"eth0": "virtio_net"}), t.TempDir()} {
		r := ena.NewReader(root)
		r.ReadWith(func(string) (uint64, bool, error) { return 1, true, nil })
		if got := r.LinkLocalExceeded(); len(got) > 0 {
			t.Errorf("got %v", got)
		}
	}
}

func TestAKernelThatHangsIsNotWaitedForNorAskedAgain(t *testing.T) {
	root := machine(t, map[string]string{"ens5": "ena"})
	synctest.Test(t, func(t *testing.T) {
		r := ena.NewReader(root)
		var asked atomic.Int32
		free := make(chan struct{})
		r.ReadWith(func(string) (uint64, bool, error) {
			asked.Add(1)
			<-free
			return 3, true, nil
		})
		began := time.Now()
		for range 3 {
			if got := r.LinkLocalExceeded(); got != nil {
				t.Errorf("got %v of a kernel that hangs", got)
			}
		}
		if took := time.Since(began); took > 3*time.Second || asked.Load() != 1 {
			t.Errorf("waited for %s, asked %d times", took, asked.Load())
		}
		close(free)
		synctest.Wait()
		if got := r.LinkLocalExceeded(); got["ens5"] != 3 {
			t.Errorf("after it went on: got %v", got)
		}
	})
}

func TestTheCounterIsFoundAmongTheDriversOthers(t *testing.T) {
	t.Parallel()
	names := []string{"tx_timeout", "linklocal_allowance", "linklocal_allowance_exceeded", "conntrack_allowance_available"}
	counts := []uint64{1, 2, 1 << 40, 4}
	if got, found, err := ena.Find(names, counts, 4, 4); got != 1<<40 || !found || err != nil {
		t.Errorf("got %d, %v, %v", got, found, err)
	}
	if _, found, err := ena.Find(names[:2], counts[:2], 2, 2); found || err != nil {
		t.Errorf("of a driver without it: %v, %v", found, err)
	}
	for _, n := range [][2]uint32{{4, 3}, {3, 4}, {5, 5}, {1 << 30, 1 << 30}} {
		if _, found, err := ena.Find(names, counts, n[0], n[1]); found || err == nil {
			t.Errorf("with %d names and %d counts: %v, %v", n[0], n[1], found, err)
		}
	}
}

// The kernel has another driver whose statistics say something that can be known: veth counts nothing of the kind, and
// tells the number of the interface at the other end.
func TestTheKernelIsAskedAsItWantsToBe(t *testing.T) {
	done, missing := make(chan struct{}), ""
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread, which has a network of its own, ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			missing = fmt.Sprintf("a network of its own: %v", err)
			return
		}
		if said, err := exec.CommandContext(t.Context(), "ip", "link", "add", "here", "type", "veth", "peer", "name", "there").CombinedOutput(); err != nil {
			missing = fmt.Sprintf("a pair of interfaces: %v: %s", err, said)
			return
		}
		there, err := net.InterfaceByName("there")
		if err != nil {
			t.Error(err)
			return
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = unix.Close(fd) }()
		if got, found, err := ena.Statistic(fd, "here", "peer_ifindex"); err != nil || !found || int(got) != there.Index { // it is small
			t.Errorf("got %d, %v, %v; want %d", got, found, err, there.Index)
		}
		if _, found, err := ena.Statistic(fd, "here", "linklocal_allowance_exceeded"); err != nil || found {
			t.Errorf("of another driver: %v, %v", found, err)
		}
		if _, _, err := ena.Statistic(fd, "absent", "peer_ifindex"); !errors.Is(err, unix.ENODEV) {
			t.Errorf("of an interface that there is not: %v", err)
		}
	}()
	<-done
	if missing != "" {
		t.Skipf("what is needed is not to be had: %s", missing)
	}
}
