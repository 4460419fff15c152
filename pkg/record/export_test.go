package record

// Through puts a disk of the test's own before the store's: it is given each write, to let it happen or not.
func (s *Store) Through(disk func(write func() error) error) {
	save := s.save
	s.save = func(content any) error { return disk(func() error { return save(content) }) }
}
