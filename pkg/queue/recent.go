package queue

// recent remembers the last few thousand strings.
type recent struct {
	there map[string]bool
	order []string
}

const mostRecent = 8192

func newRecent() recent { return recent{there: map[string]bool{}} }

func (r *recent) has(s string) bool { return r.there[s] }

func (r *recent) add(s string) {
	if r.there[s] {
		return
	}
	if len(r.order) >= mostRecent {
		delete(r.there, r.order[0])
		r.order = r.order[1:]
	}
	r.there[s] = true
	r.order = append(r.order, s)
}
