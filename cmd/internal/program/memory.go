package program

import (
	"os"
	"runtime/debug"
)

// heapGrowth is how much garbage may gather before it is collected, in percent of what is in use. Go's own 100 comes with
// 4 MB at least, and nth needs half of that.
const heapGrowth = 50

// SpareMemory keeps a daemon's heap small, unless GOGC in the environment says how much it may grow. A collection takes about a
// millisecond in nth; the memory is that of the node's pods. nth-queue's heap grows with the cluster, and half of what it keeps is
// what is added to that as garbage, instead of as much again.
func SpareMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(heapGrowth)
	}
}
