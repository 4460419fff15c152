package daemon

// Follow calls tell with every message of the daemon, those too that it has written already, in order and from one
// goroutine. The channel that it returns is closed when the daemon has ended and its last message has been told.
func (d *Daemon) Follow(tell func(Entry)) (told <-chan struct{}) {
	end := make(chan struct{})
	go func() {
		defer close(end)
		next := 0
		tellNew := func() <-chan struct{} {
			entries, changed := d.log.from(next)
			next += len(entries)
			for _, e := range entries {
				tell(e)
			}
			return changed
		}
		for {
			select {
			case <-tellNew():
			case <-d.done: // its output has been read to the end by now
				tellNew()
				return
			}
		}
	}()
	return end
}

// from returns the messages from the one with that number on, and a channel that is closed when there are more.
func (j *journal) from(number int) ([]Entry, <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.entries[number:len(j.entries):len(j.entries)], j.changed
}
