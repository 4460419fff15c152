package drain

// ReadClaim is how the annotation is read.
var ReadClaim = readClaim

// Remembered is how many owners and pods that have left a guard remembers.
func Remembered(of Guard) (owners, departed int) {
	g := of.(*guard)
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.owners), len(g.departed)
}
