package targets

// DialWith makes all connections with dial.
func (t *Targets) DialWith(dial dialer) { t.dial = dial }
