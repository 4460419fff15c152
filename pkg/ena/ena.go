// Package ena reads a counter of the driver of EC2's network interfaces, the Elastic Network Adapter. EC2 limits how many packets a
// second an interface may send to the metadata service, DNS and the time service together, and drops the others: pods that ask one of
// them too often keep nth from hearing of interruptions. The driver counts the dropped packets as linklocal_allowance_exceeded, which
// "ethtool -S" shows.
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

// statistic is the driver's name of the counter.
const statistic = "linklocal_allowance_exceeded"

// timeout bounds a reading. The kernel takes the RTNL lock for it, which is held for long while the networks of many pods are
// set up, and the driver asks the device.
const timeout = time.Second

// Reader reads the counter. Its methods may be called from any goroutine.
type Reader struct {
	classes string // /sys/class/net
	read    func(fd int, name, statistic string) (count uint64, found bool, err error)

	mu      sync.Mutex
	current *reading // nil if none is under way
}

// reading is one reading of all interfaces.
type reading struct {
	done   chan struct{}
	counts map[string]uint64
}

// NewReader returns a Reader that finds the machine's interfaces below root, which is "/" except in tests.
func NewReader(root string) *Reader {
	return &Reader{classes: filepath.Join(root, "sys/class/net"), read: readStatistic}
}

// LinkLocalExceeded returns for each of the machine's ENA interfaces, by name, how many packets to link-local services
// EC2 has dropped since the interface came up. Interfaces whose driver does not count them are left out. It returns nil if the reading
// takes longer than a second.
func (r *Reader) LinkLocalExceeded() map[string]uint64 {
	r.mu.Lock()
	now := r.current
	if now == nil {
		now = &reading{done: make(chan struct{})}
		r.current = now
		go r.finish(now)
	}
	r.mu.Unlock()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-now.done:
		return now.counts
	case <-timer.C:
		return nil
	}
}

// finish reads, and lets the next reading begin. If it hangs in the kernel, there is no other one.
func (r *Reader) finish(now *reading) {
	now.counts = r.all()
	close(now.done)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.current = nil
}

func (r *Reader) all() map[string]uint64 {
	names := r.interfaces()
	if len(names) == 0 {
		return nil
	}
	// Any socket will do, as it stands for the network namespace. The unit does not allow netlink sockets.
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

// readStatistic asks an interface's driver for the names of its statistics, and for their values. Neither needs a privilege.
func readStatistic(fd int, name, statistic string) (count uint64, found bool, err error) {
	info, err := unix.IoctlGetEthtoolDrvinfo(fd, name)
	if err != nil {
		return 0, false, fmt.Errorf("asking for the driver of %q: %w", name, err)
	}
	if info.N_stats == 0 {
		return 0, false, nil
	}
	// The kernel writes as many as the driver has at that time, whatever the request says: there may be more if the queues have changed.
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

// errMoved means that the number of statistics has changed between the requests.
var errMoved = errors.New("the driver's statistics have changed while they were read")

// find finds the statistic in the kernel's answers.
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

// ethtool makes the request in buffer for an interface. The kernel writes the answer there.
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
