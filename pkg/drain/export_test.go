package drain

import (
	"maps"
	"slices"
)

// ReadClaim is how the annotation is read.
var ReadClaim = readClaim

// Remembered names the owners that a guard remembers, and counts those that bring pods back, and the pods that have left.
func Remembered(of Guard) (owners []string, returning, departed int) {
	g := of.(*guard)
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Sorted(maps.Keys(g.owners)), len(g.returning), len(g.departed)
}
