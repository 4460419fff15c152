package main

import (
	"os"
	"runtime/debug"
)

// heapGrowth is how much garbage may gather before it is collected, in percent of what is in use. Go's own 100 comes with
// 4 MB at least, and nth needs half of that.
const heapGrowth = 50

// sparing keeps the heap small, unless the environment says how large it may grow. A collection takes about a
// millisecond; the memory is that of the node's pods.
func sparing() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(heapGrowth)
	}
}
