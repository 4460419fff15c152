package ena

import "encoding/binary"

// Statistic reads a statistic of one interface, whatever its driver, by way of the kernel.
func Statistic(fd int, name, statistic string) (count uint64, found bool, err error) {
	return readStatistic(fd, name, statistic)
}

// ReadWith makes the reader read an interface with f.
func (r *Reader) ReadWith(f func(name string) (count uint64, found bool, err error)) {
	r.read = func(_ int, name, _ string) (uint64, bool, error) { return f(name) }
}

// Find looks for the counter in answers that name and count these, of which the kernel says that there are so many.
func Find(names []string, counts []uint64, nNames, nCounts uint32) (count uint64, found bool, err error) {
	first := make([]byte, 12, 12+32*len(names))
	binary.NativeEndian.PutUint32(first[8:], nNames)
	for _, name := range names {
		var padded [32]byte
		copy(padded[:], name)
		first = append(first, padded[:]...)
	}
	second := make([]byte, 8, 8+8*len(counts))
	binary.NativeEndian.PutUint32(second[4:], nCounts)
	for _, count := range counts {
		second = binary.NativeEndian.AppendUint64(second, count)
	}
	return find(first, second, statistic)
}
