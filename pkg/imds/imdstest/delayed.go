package imdstest

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// delayed are the changes that wait for their time.
type delayed struct {
	mu      sync.Mutex
	last    int
	waiting map[int]waiting
}

type waiting struct {
	text  string
	timer *time.Timer
}

// add runs change after a while. text describes it meanwhile.
func (d *delayed) add(after time.Duration, text string, change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.waiting == nil {
		d.waiting = map[int]waiting{}
	}
	d.last++
	number := d.last
	timer := time.AfterFunc(after, func() {
		if d.take(number) {
			change()
		}
	})
	d.waiting[number] = waiting{text: text, timer: timer}
}

// take removes a change from those that wait, and returns whether it was one of them.
func (d *delayed) take(number int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, waits := d.waiting[number]
	delete(d.waiting, number)
	return waits
}

// stop forgets all changes that wait.
func (d *delayed) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range d.waiting {
		w.timer.Stop()
	}
	clear(d.waiting)
}

// list describes the changes that wait, in the order in which they were asked for.
func (d *delayed) list() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var texts []string
	for _, number := range slices.Sorted(maps.Keys(d.waiting)) {
		texts = append(texts, d.waiting[number].text)
	}
	return texts
}
