package record

// Through puts a disk of the test's own before the store's: it is given each write, to let it happen or not.
func (s *Store) Through(disk func(write func() error) error) { s.save = through(disk, s.save) }

// Through does the same for an outbox.
func (o *Outbox) Through(disk func(write func() error) error) { o.save = through(disk, o.save) }

func through(disk func(write func() error) error, save func(any) error) func(any) error {
	return func(content any) error { return disk(func() error { return save(content) }) }
}
