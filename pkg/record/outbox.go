package record

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	// outboxVersion is the format of the outbox.
	outboxVersion = 1
	// keepNotices and keepText bound what waits: so many notices, of so many bytes each. 8 MiB are a long outage.
	keepNotices = 64
	keepText    = 128 << 10
	// keepTold is how many notices are known to have been made, so that none is made twice.
	keepTold = 256
	// keepBytes and keepToldBytes bound both as they are written, so that the file can be read again: together they stay below
	// longest, whatever Allow says.
	keepBytes     = 24 << 20
	keepToldBytes = 4 << 20
	// mostWritten is what the longest notice can come to: JSON has no more than six bytes for one, and the rest of it is short.
	mostWritten = 6*keepText + 4<<10
)

// Notice is a message that somebody outside the cluster is to get. Notices are values.
type Notice struct {
	// ID is the same however often the notice is sent, and no other notice's.
	ID string `json:"id"`
	// Event is the ID of the event that it is about; what is about one event is kept in order. Node is the node's name, if it
	// was known.
	Event string `json:"event"`
	Node  string `json:"node,omitempty"`
	// What says in a word what it tells.
	What string `json:"what"`
	// Made is when, by wall time.
	Made time.Time `json:"made"`
	// Text is what is sent, whole.
	Text string `json:"text"`
}

// Outbox keeps notices until they are delivered, over restarts. It holds neither addresses nor credentials. What changes is in
// memory at once and on disk after Sync, so that a disk that hangs keeps nobody from telling. Its methods may be called from
// several goroutines; the file belongs to one process.
type Outbox struct {
	// save puts the content in the place of what is on disk.
	save func(content any) error
	// most is how many notices wait at most.
	most int

	// writing is held over a write, and never taken while mu is held: nobody else waits for the disk.
	writing sync.Mutex

	mu      sync.Mutex
	waiting shelf[Notice]
	told    shelf[told] // the newest last
	unsaved bool        // the disk does not know yet
}

// shelf holds things in their order, and knows how much they come to in the file.
type shelf[T any] struct {
	things []T
	sizes  []int // bytes
	bytes  int
}

// add puts a thing behind the others.
func (s *shelf[T]) add(of T) {
	text, _ := json.MarshalIndent(of, "    ", "  ") // texts and a time always encode
	size := len(text) + len(",\n    ")
	s.things, s.sizes, s.bytes = append(s.things, of), append(s.sizes, size), s.bytes+size
}

// remove takes out those that are so.
func (s *shelf[T]) remove(so func(T) bool) {
	left := shelf[T]{}
	for i, of := range s.things {
		if !so(of) {
			left.things, left.sizes, left.bytes = append(left.things, of), append(left.sizes, s.sizes[i]), left.bytes+s.sizes[i]
		}
	}
	*s = left
}

// limit takes out the oldest, as long as there are more than so many, or they come to more than so many bytes.
func (s *shelf[T]) limit(count, bytes int) (out []T) {
	over := 0
	for len(s.things)-over > count || s.bytes > bytes {
		s.bytes -= s.sizes[over]
		over++
	}
	out = slices.Clone(s.things[:over])
	s.things, s.sizes = slices.Delete(s.things, 0, over), slices.Delete(s.sizes, 0, over)
	return out
}

// told is a notice that was made, delivered or not.
type told struct {
	Event string `json:"event"`
	What  string `json:"what"`
}

// outbox is the content of the file.
type outbox struct {
	Version int      `json:"version"`
	Waiting []Notice `json:"waiting"`
	Told    []told   `json:"told"`
}

// ErrTooLong is what Add says of a notice that is longer than an outbox takes.
var ErrTooLong = fmt.Errorf("it is longer than %d bytes", keepText)

// OpenOutbox reads the outbox in dir; a missing one is empty, and nothing is written. Like Store, an Outbox always works,
// and the warnings tell what a person should know.
func OpenOutbox(dir string) (*Outbox, []error) {
	f := file{dir: dir, name: "outbox.json"}
	o := &Outbox{save: f.write, most: keepNotices}
	content, warnings := load[outbox](f, "outbox", "what waited in it may not be sent")
	for _, n := range content.Waiting {
		o.waiting.add(n)
	}
	for _, t := range content.Told {
		o.told.add(t)
	}
	return o, warnings
}

func (o outbox) valid() error {
	if err := sameVersion(o.Version, outboxVersion); err != nil {
		return err
	}
	for i, n := range o.Waiting {
		if n.ID == "" || n.Text == "" || len(n.Text) > keepText {
			return fmt.Errorf("notice %d is none of ours", i)
		}
	}
	return nil
}

// Allow lets so many notices wait, in place of what is enough for one node. Call it before all other methods.
func (o *Outbox) Allow(notices int) { o.most = notices }

// Told lists what the notices about an event told that have been made, delivered or not, the oldest first, as far as that
// is remembered.
func (o *Outbox) Told(event string) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var whats []string
	for _, t := range o.told.things {
		if t.Event == event {
			whats = append(whats, t.What)
		}
	}
	return whats
}

// Note remembers something as told of which there is no notice, since nobody wants one.
func (o *Outbox) Note(event, what string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.note(event, what)
}

func (o *Outbox) note(event, what string) {
	o.unsaved = true
	o.told.add(told{event, what})
	o.told.limit(keepTold/keepNotices*o.most, keepToldBytes)
}

// Add takes a notice in. Where too many wait, or too much, it returns the oldest, which have been given up. The error is
// ErrTooLong: the notice was not taken.
func (o *Outbox) Add(n Notice) (givenUp []Notice, err error) {
	if len(n.Text) > keepText {
		return nil, fmt.Errorf("keeping a notice of %d bytes: %w", len(n.Text), ErrTooLong)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting.add(n)
	o.note(n.Event, n.What)
	return o.waiting.limit(o.most, keepBytes), nil
}

// Waiting returns the notices that have not been delivered, the oldest first.
func (o *Outbox) Waiting() []Notice {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.waiting.things)
}

// Room is how many notices more may wait, however long they are, without another one being given up for them.
func (o *Outbox) Room() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return min(o.most-len(o.waiting.things), (keepBytes-o.waiting.bytes)/mostWritten)
}

// Remove takes a notice out: it has been delivered, or given up.
func (o *Outbox) Remove(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting.remove(func(n Notice) bool { return n.ID == id })
	o.unsaved = true
}

// Sync brings the disk up to date, if it is not. With an error what changed may not outlive a restart.
func (o *Outbox) Sync() error {
	o.writing.Lock()
	defer o.writing.Unlock()
	o.mu.Lock()
	content := outbox{Version: outboxVersion, Waiting: slices.Clone(o.waiting.things), Told: slices.Clone(o.told.things)}
	unsaved := o.unsaved
	o.unsaved = false
	o.mu.Unlock()
	if !unsaved {
		return nil
	}
	if err := o.save(content); err != nil {
		o.mu.Lock()
		o.unsaved = true
		o.mu.Unlock()
		return fmt.Errorf("writing the outbox: %w", err)
	}
	return nil
}
