package metrics

import "sync"

// Troubles are why the listener and the file do not work at present, one line each; none if they do.
func (m *Metrics) Troubles() []string {
	var texts []string
	for _, t := range []*trouble{&m.serving, &m.writing} {
		if text := t.now(); text != "" {
			texts = append(texts, text)
		}
	}
	return texts
}

// trouble tells of errors, each once for as long as it is followed by no other.
type trouble struct {
	tell func(error)

	mu   sync.Mutex
	last string
}

// of takes in what became of an attempt.
func (t *trouble) of(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	t.mu.Lock()
	news := text != t.last
	t.last = text
	t.mu.Unlock()
	if news && err != nil && t.tell != nil {
		t.tell(err)
	}
}

func (t *trouble) now() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}
