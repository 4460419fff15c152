// Package ena reads what the driver of EC2's network interfaces, the Elastic Network Adapter, counts about traffic to the
// services beside the instance. EC2 lets an interface send so many packets a second to the metadata service, DNS and the
// time service together, and drops the others: pods that ask one of them too often make nth deaf. The driver tells how
// many were dropped, as "ethtool -S" shows: linklocal_allowance_exceeded.
//
// (AWS, "Monitor network performance for ENA settings on your EC2 instance"; include/uapi/linux/ethtool.h.)
package ena

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// statistic is the driver's name of what is read.
const statistic = "linklocal_allowance_exceeded"

// patience is how long a reading is waited for. The kernel takes a lock for it that is held for long where networks are
// set up and torn down for many pods, and the driver asks the device.
const patience = time.Second

// Reader reads the counter. Its methods may be called from any goroutine.
type Reader struct {
	classes string // /sys/class/net
	read    func(fd int, name, statistic string) (count uint64, found bool, err error)

	mu    sync.Mutex
	under *reading // way
}

// reading is one reading of all interfaces.
type reading struct {
	done   chan struct{}
	counts map[string]uint64
}

// NewReader returns a Reader that finds the machine's interfaces below root, which is "/" but for tests.
func NewReader(root string) *Reader {
	return &Reader{classes: filepath.Join(root, "sys/class/net"), read: readStatistic}
}

// LinkLocalExceeded returns for each of the machine's ENA interfaces, by name, how many packets to the link-local services
// EC2 has dropped since the interface is up. What cannot be read within a second is left out: an interface of another kind,
// a driver that does not count them, a kernel that takes its time.
func (r *Reader) LinkLocalExceeded() map[string]uint64 {
	r.mu.Lock()
	now := r.under
	if now == nil {
		now = &reading{done: make(chan struct{})}
		r.under = now
		go r.finish(now)
	}
	r.mu.Unlock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-now.done:
		return now.counts
	case <-timer.C:
		return nil
	}
}

// finish reads, and makes room for the next reading. One that hangs in the kernel is the last.
func (r *Reader) finish(now *reading) {
	now.counts = r.all()
	close(now.done)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.under = nil
}

func (r *Reader) all() map[string]uint64 {
	names := r.interfaces()
	if len(names) == 0 {
		return nil
	}
	// Any socket will do: it leads to the network namespace. The unit may not have one of netlink.
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = unix.Close(fd) }()
	counts := map[string]uint64{}
	for _, name := range names {
		if count, found, err := r.read(fd, name, statistic); err == nil && found {
			counts[name] = count
		}
	}
	return counts
}

// interfaces lists the interfaces whose driver is ENA's. A node has many others, one for each pod.
func (r *Reader) interfaces() []string {
	entries, err := os.ReadDir(r.classes)
	if err != nil {
		return nil
	}
	var names []string
	for _, entry := range entries {
		driver, err := os.Readlink(filepath.Join(r.classes, entry.Name(), "device/driver"))
		if err == nil && filepath.Base(driver) == "ena" {
			names = append(names, entry.Name())
		}
	}
	return names
}

// readStatistic asks an interface's driver for the names of what it counts, and for the counts. Neither needs a privilege.
func readStatistic(fd int, name, statistic string) (count uint64, found bool, err error) {
	info, err := unix.IoctlGetEthtoolDrvinfo(fd, name)
	if err != nil {
		return 0, false, fmt.Errorf("asking for the driver of %q: %w", name, err)
	}
	if info.N_stats == 0 {
		return 0, false, nil
	}
	// The kernel writes as many as the driver has by then, whatever it was told: with other queues there may be more.
	room := 2*int(info.N_stats) + 256
	names := make([]byte, 12+room*nameLength) // struct ethtool_gstrings: cmd, string_set, len, data
	binary.NativeEndian.PutUint32(names, unix.ETHTOOL_GSTRINGS)
	binary.NativeEndian.PutUint32(names[4:], ethSSStats)
	binary.NativeEndian.PutUint32(names[8:], info.N_stats)
	if err := ethtool(fd, name, names); err != nil {
		return 0, false, fmt.Errorf("asking for the names of the statistics of %q: %w", name, err)
	}
	counts := make([]byte, 8+room*8) // struct ethtool_stats: cmd, n_stats, data
	binary.NativeEndian.PutUint32(counts, unix.ETHTOOL_GSTATS)
	binary.NativeEndian.PutUint32(counts[4:], info.N_stats)
	if err := ethtool(fd, name, counts); err != nil {
		return 0, false, fmt.Errorf("asking for the statistics of %q: %w", name, err)
	}
	return find(names, counts, statistic)
}

// ETH_SS_STATS, the set of the names of statistics, and ETH_GSTRING_LEN, the length of each in bytes.
const (
	ethSSStats = 1
	nameLength = 32
)

// errMoved tells that the driver counts something else than it did a moment ago.
var errMoved = errors.New("the driver's statistics have changed while they were read")

// find looks for the statistic in what the kernel has answered.
func find(names, counts []byte, statistic string) (count uint64, found bool, err error) {
	n := int(binary.NativeEndian.Uint32(names[8:]))
	if n != int(binary.NativeEndian.Uint32(counts[4:])) || 12+n*nameLength > len(names) || 8+n*8 > len(counts) {
		return 0, false, errMoved
	}
	for i := range n {
		name, _, _ := bytes.Cut(names[12+i*nameLength:][:nameLength], []byte{0})
		if string(name) == statistic {
			return binary.NativeEndian.Uint64(counts[8+i*8:]), true, nil
		}
	}
	return 0, false, nil
}

// request is struct ifreq, with a pointer in its union.
type request struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte // what else the union may hold
}

// ethtool makes the request that buffer holds of the interface, and has the answer written there.
func ethtool(fd int, name string, buffer []byte) error {
	var r request
	copy(r.name[:len(r.name)-1], name)
	r.data = unsafe.Pointer(&buffer[0])
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&r)))
	runtime.KeepAlive(buffer)
	if errno != 0 {
		return errno
	}
	return nil
}
