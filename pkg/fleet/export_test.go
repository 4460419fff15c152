package fleet

// Instances is how many instances the Fleet has in memory.
func (f *Fleet) Instances() int {
	t := f.term.Load()
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.instances)
}
