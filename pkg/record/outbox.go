package record

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	// outboxVersion is the version of the outbox's format.
	outboxVersion = 1
	// maxWaiting is how many notices wait at most, unless Allow changes it, and maxText the length of a notice in bytes. 8 MiB of
	// notices are a long outage.
	maxWaiting = 64
	maxText    = 128 << 10
	// maxTold is how many notices are remembered as made for maxWaiting of them, so that none is made twice.
	maxTold = 256
	// maxWaitingBytes and maxToldBytes bound both in the file. Together they stay below maxFile, whatever Allow sets, so that the
	// file can be read again.
	maxWaitingBytes = 24 << 20
	maxToldBytes    = 4 << 20
	// maxNoticeBytes is the most that a notice takes in the file: JSON writes a byte as at most six, and the other fields are short.
	maxNoticeBytes = 6*maxText + 4<<10
)

// Notice is a message to somebody outside the cluster. Notices are values.
type Notice struct {
	// ID is unique, and stays the same however often the notice is sent.
	ID string `json:"id"`
	// Event is the ID of the event that the notice is about. Node is the node's name, if it was known.
	Event string `json:"event"`
	Node  string `json:"node,omitempty"`
	// What is the notice's subject in one word.
	What string `json:"what"`
	// Made is when the notice was made, in wall time.
	Made time.Time `json:"made"`
	// Text is the whole content of the message.
	Text string `json:"text"`
}

// Outbox keeps notices, over restarts, until they are delivered. It holds neither addresses nor credentials. Changes are in
// memory at once and on disk after Sync, so that a disk that hangs delays no notice. Its methods may be called from several
// goroutines; the file belongs to one process.
type Outbox struct {
	// save replaces the content of the file.
	save func(content any) error
	// most is how many notices wait at most.
	most int

	// writing is held during a write, and never taken while mu is held, so that only Sync waits for the disk.
	writing sync.Mutex

	mu      sync.Mutex
	waiting queue[Notice]
	told    queue[told]
	unsaved bool // there are changes that are not on disk
}

// queue holds items, the oldest first, and knows how many bytes they take in the file.
type queue[T any] struct {
	items []T
	sizes []int
	bytes int // the sum of sizes
}

func (q *queue[T]) add(item T) {
	text, _ := json.MarshalIndent(item, "    ", "  ") // Strings and a time always encode.
	size := len(text) + len(",\n    ")
	q.items, q.sizes, q.bytes = append(q.items, item), append(q.sizes, size), q.bytes+size
}

func (q *queue[T]) remove(i int) {
	q.bytes -= q.sizes[i]
	q.items, q.sizes = slices.Delete(q.items, i, i+1), slices.Delete(q.sizes, i, i+1)
}

// limit removes the oldest items until no more than that many items and bytes are left, and returns them.
func (q *queue[T]) limit(count, bytes int) (removed []T) {
	for len(q.items) > count || q.bytes > bytes {
		removed = append(removed, q.items[0])
		q.remove(0)
	}
	return removed
}

// told is a notice that was made, delivered or not.
type told struct {
	Event string `json:"event"`
	What  string `json:"what"`
}

// outboxContent is the content of the file.
type outboxContent struct {
	Version int      `json:"version"`
	Waiting []Notice `json:"waiting"`
	Told    []told   `json:"told"`
}

// ErrTooLong is the error of Add for a notice that is longer than an outbox takes.
var ErrTooLong = fmt.Errorf("it is longer than %d bytes", maxText)

// OpenOutbox reads the outbox in dir; a missing one is empty, and nothing is written. Like Store, an Outbox always works,
// and the warnings are for the operator.
func OpenOutbox(dir string) (*Outbox, []error) {
	f := file{dir: dir, name: "outbox.json"}
	o := &Outbox{save: f.write, most: maxWaiting}
	content, warnings := load[outboxContent](f, "outbox", "what waited in it may not be sent")
	for _, n := range content.Waiting {
		o.waiting.add(n)
	}
	for _, t := range content.Told {
		o.told.add(t)
	}
	return o, warnings
}

func (c outboxContent) valid() error {
	if err := sameVersion(c.Version, outboxVersion); err != nil {
		return err
	}
	for i, n := range c.Waiting {
		if n.ID == "" || n.Text == "" || len(n.Text) > maxText {
			return fmt.Errorf("notice %d is none of ours", i)
		}
	}
	return nil
}

// Allow sets how many notices wait at most; the default is enough for one node. Call it before all other methods.
func (o *Outbox) Allow(notices int) { o.most = notices }

// Told lists the What of all remembered notices about an event, delivered or not, the oldest first.
func (o *Outbox) Told(event string) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var whats []string
	for _, t := range o.told.items {
		if t.Event == event {
			whats = append(whats, t.What)
		}
	}
	return whats
}

// Note remembers something as told for which no notice is made, since nobody wants one.
func (o *Outbox) Note(event, what string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.note(event, what)
}

func (o *Outbox) note(event, what string) {
	o.unsaved = true
	o.told.add(told{event, what})
	o.told.limit(maxTold/maxWaiting*o.most, maxToldBytes)
}

// Add puts a notice into the outbox. If there are too many then, it gives up the oldest and returns them. The only error is
// ErrTooLong: the notice was not taken.
func (o *Outbox) Add(n Notice) (givenUp []Notice, err error) {
	if len(n.Text) > maxText {
		return nil, fmt.Errorf("keeping a notice of %d bytes: %w", len(n.Text), ErrTooLong)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting.add(n)
	o.note(n.Event, n.What)
	return o.waiting.limit(o.most, maxWaitingBytes), nil
}

// Waiting returns the notices that have not been delivered, the oldest first.
func (o *Outbox) Waiting() []Notice {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.waiting.items)
}

// Room is how many more notices fit, however long they are, before another one has to be given up.
func (o *Outbox) Room() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return min(o.most-len(o.waiting.items), (maxWaitingBytes-o.waiting.bytes)/maxNoticeBytes)
}

// Remove removes a notice that has been delivered or given up.
func (o *Outbox) Remove(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, n := range slices.Backward(o.waiting.items) {
		if n.ID == id {
			o.waiting.remove(i)
		}
	}
	o.unsaved = true
}

// Sync writes all changes to disk. After an error, they may not survive a restart.
func (o *Outbox) Sync() error {
	o.writing.Lock()
	defer o.writing.Unlock()
	o.mu.Lock()
	content := outboxContent{Version: outboxVersion, Told: slices.Clone(o.told.items)}
	content.Waiting = append(content.Waiting, o.waiting.items...) // None are null in the file.
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
