package drain

import (
	"maps"
	"slices"
)

// ReadClaim is how the annotation is read.
var ReadClaim = readClaim

// Remembered names the owners that a guard remembers, and counts the pods that have left.
func Remembered(of Guard) (owners []string, departed int) {
	g := of.(*guard)
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Sorted(maps.Keys(g.owners)), len(g.departed)
}
