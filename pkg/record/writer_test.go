package record_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/state"
)

// slowDisk holds each write until the test says what becomes of it.
type slowDisk struct {
	begun  chan struct{}
	answer chan error
	writes int
}

func newSlowDisk() *slowDisk {
	return &slowDisk{begun: make(chan struct{}), answer: make(chan error)}
}

func (d *slowDisk) take(write func() error) error {
	d.begun <- struct{}{}
	d.writes++
	if err := <-d.answer; err != nil {
		return err
	}
	return write()
}

// next waits for a write and ends it.
func (d *slowDisk) next(err error) {
	<-d.begun
	d.answer <- err
}

// onSlowDisk runs a test of a store whose disk hangs. It fails if a goroutine is left.
func onSlowDisk(t *testing.T, test func(t *testing.T, dir string, store *record.Store, disk *slowDisk)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		store, disk := open(t, dir), newSlowDisk()
		store.Through(disk.take)
		test(t, dir, store, disk)
		synctest.Wait() // for what is still being written
	})
}

func TestAPutBehindADiskThatHangsIsSeenAtOnce(t *testing.T) {
	onSlowDisk(t, func(t *testing.T, dir string, store *record.Store, disk *slowDisk) {
		told := false
		store.Put(func(error) { told = true }, entry("a", state.Seen, noon))
		<-disk.begun
		store.Put(func(error) { told = true }, entry("a", state.Draining, noon), entry("b", state.Seen, noon))
		synctest.Wait()
		if entries := store.Entries(); ids(entries) != "a b" || entries[0].Phase != state.Draining {
			t.Errorf("entries: %+v", entries)
		}
		if told || listing(t, dir) != "" {
			t.Errorf("told %v, with %q on disk", told, listing(t, dir))
		}
		disk.answer <- nil
		disk.next(nil)
	})
}

func TestManyPutsBehindADiskThatHangsAreOneWrite(t *testing.T) {
	onSlowDisk(t, func(t *testing.T, dir string, store *record.Store, disk *slowDisk) {
		var told, want []string
		for i := range 101 {
			id := fmt.Sprintf("event-%03d", i)
			want = append(want, id)
			store.Put(func(err error) {
				if err != nil {
					t.Error(err)
				}
				told = append(told, id)
			}, entry(id, state.Seen, noon))
			if i == 0 {
				<-disk.begun
			}
		}
		disk.answer <- nil
		<-disk.begun
		if !slices.Equal(told, want[:1]) {
			t.Errorf("after the first write those were told: %q", told)
		}
		disk.answer <- nil
		synctest.Wait()
		if disk.writes != 2 || !slices.Equal(told, want) {
			t.Errorf("%d writes, told were %q", disk.writes, told)
		}
		if got := ids(open(t, dir).Entries()); got != strings.Join(want, " ") {
			t.Errorf("on disk: %q", got)
		}
	})
}

func TestWhatBecomesOfAPutIsToldOnce(t *testing.T) {
	good, bad, worse := entry("good", state.Seen, noon), entry("bad", "wandering", noon), entry("", state.Seen, noon)
	full := errors.New("no space left")
	for name, test := range map[string]struct {
		entries []state.Entry
		disk    []error // what becomes of each write
		says    []string
		stored  string
	}{
		"one that is written":             {entries: []state.Entry{good}, disk: []error{nil}, stored: "good"},
		"none at all":                     {},
		"one that is refused":             {entries: []state.Entry{bad}, says: []string{`recording event "bad": the phase "wandering" is unknown`}},
		"a good one between bad ones":     {[]state.Entry{bad, good, worse}, []error{nil}, []string{`"bad": the phase`, `"": the event has no ID`}, "good"},
		"one that the disk does not take": {entries: []state.Entry{good}, disk: []error{full}, says: []string{`recording event "good": no space left`}},
		"two that the disk does not take": {
			entries: []state.Entry{good, entry("other", state.Seen, noon)}, disk: []error{full}, says: []string{`recording event "good", "other": no space left`},
		},
		"a good one and a bad one that the disk does not take": {
			entries: []state.Entry{good, bad}, disk: []error{full}, says: []string{`"good": no space left`, `"bad": the phase`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			onSlowDisk(t, func(t *testing.T, dir string, store *record.Store, disk *slowDisk) {
				var told []error
				store.Put(func(err error) { told = append(told, err) }, test.entries...)
				for _, err := range test.disk {
					disk.next(err)
				}
				synctest.Wait()
				if len(told) != 1 || (told[0] != nil) != (len(test.says) > 0) {
					t.Fatalf("told: %v, want one that says %q", told, test.says)
				}
				for _, want := range test.says {
					if !strings.Contains(told[0].Error(), want) {
						t.Errorf("told: %v, want it to say %q", told[0], want)
					}
				}
				if got := ids(open(t, dir).Entries()); got != test.stored {
					t.Errorf("on disk: %q, want %q", got, test.stored)
				}
			})
		})
	}
}

func TestAnOlderStateNeverTakesThePlaceOfANewerOne(t *testing.T) {
	phase := func(t *testing.T, dir string) state.Phase { return open(t, dir).Entries()[0].Phase }
	onSlowDisk(t, func(t *testing.T, dir string, store *record.Store, disk *slowDisk) {
		store.Put(nil, entry("a", state.Seen, noon))
		<-disk.begun
		store.Put(nil, entry("a", state.Draining, noon))
		store.Put(nil, entry("a", state.Drained, noon))
		disk.answer <- nil
		<-disk.begun
		if got := phase(t, dir); got != state.Seen {
			t.Errorf("after the first write it is %q, want what was put when it began", got)
		}
		store.Put(nil, entry("a", state.Closed, noon))
		disk.answer <- errors.New("no space left")
		disk.next(nil)
		synctest.Wait()
		if got := phase(t, dir); got != state.Closed || disk.writes != 3 {
			t.Errorf("in the end it is %q after %d writes, want the last after three", got, disk.writes)
		}
	})
}

func TestFlushWaitsForTheDisk(t *testing.T) {
	onSlowDisk(t, func(t *testing.T, dir string, store *record.Store, disk *slowDisk) {
		if err := store.Flush(t.Context()); err != nil {
			t.Errorf("with nothing to write: %v", err)
		}
		for _, becomes := range []error{nil, errors.New("no space left"), nil} {
			told := 0
			store.Put(func(error) { told++ }, entry("a", state.Seen, noon))
			<-disk.begun
			store.Put(func(error) { told++ }, entry("b", state.Seen, noon))
			flushed := make(chan error, 1)
			go func() { flushed <- store.Flush(t.Context()) }()
			disk.answer <- nil
			<-disk.begun
			synctest.Wait()
			if len(flushed) > 0 {
				t.Error("it returned before all was on disk")
			}
			disk.answer <- becomes
			if err := <-flushed; !errors.Is(err, becomes) || told != 2 {
				t.Errorf("got %v, want %v; %d were told", err, becomes, told)
			}
			if err := store.Flush(t.Context()); !errors.Is(err, becomes) {
				t.Errorf("asked again: %v, want %v", err, becomes)
			}
		}
	})
}

func TestFlushGivesUpWithItsContext(t *testing.T) {
	onSlowDisk(t, func(t *testing.T, dir string, store *record.Store, disk *slowDisk) {
		store.Put(nil, entry("a", state.Seen, noon))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := store.Flush(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.HasPrefix(err.Error(), "writing the record: ") {
			t.Errorf("got %v", err)
		}
		disk.next(nil)
		synctest.Wait()
		if err := store.Flush(ctx); err != nil {
			t.Errorf("all is on disk: %v", err)
		}
	})
}

func TestManyWhoPutAndReadAtOnceSeeWholeStepsAndLoseNothing(t *testing.T) {
	const writers, rounds = 8, 15
	dir := t.TempDir()
	store := open(t, dir)
	var told [writers][rounds]int // Only the store's writer counts.
	var running sync.WaitGroup
	for w := range writers {
		running.Go(func() {
			left, right := entry(fmt.Sprintf("%d-left", w), state.Seen, noon), entry(fmt.Sprintf("%d-right", w), state.Seen, noon)
			for round := range rounds {
				left.Failures, right.Failures = round, round
				store.Put(func(err error) {
					if err != nil {
						t.Error(err)
					}
					told[w][round]++
				}, left, right)
				for pair := range slices.Chunk(store.Entries(), 2) {
					if len(pair) != 2 || pair[0].Failures != pair[1].Failures {
						t.Errorf("half a step is seen: %+v", pair)
					}
				}
			}
			if err := store.Flush(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	for w, rounds := range told {
		for round, times := range rounds {
			if times != 1 {
				t.Errorf("round %d of writer %d was told %d times", round, w, times)
			}
		}
	}
	entries := open(t, dir).Entries()
	if len(entries) != 2*writers {
		t.Errorf("on disk: %q", ids(entries))
	}
	for _, e := range entries {
		if e.Failures != rounds-1 {
			t.Errorf("on disk is round %d of %s, want the last", e.Failures, e.Event.ID)
		}
	}
}
