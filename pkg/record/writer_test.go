package record_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/state"
)

// slowDisk holds each write until the test says what its result is.
type slowDisk struct {
	begun  chan struct{}
	answer chan error
	writes int
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
		store, disk := open(t, dir), &slowDisk{begun: make(chan struct{}), answer: make(chan error)}
		store.Through(disk.take)
		test(t, dir, store, disk)
		synctest.Wait() // for what is still being written
	})
}

func TestPut_ManyDuringOneWriteAreTheNext(t *testing.T) {
	onSlowDisk(t, func(t *testing.T, dir string, store *record.Store, disk *slowDisk) {
		var written, want []string
		for i := range 101 {
			id := fmt.Sprintf("event-%03d", i)
			want = append(want, id)
			store.Put(func(err error) {
				if err != nil {
					t.Error(err)
				}
				written = append(written, id)
			}, entry(id, state.Seen, noon))
			if i == 0 {
				<-disk.begun
			}
		}
		if got := ids(store.Entries()); got != strings.Join(want, " ") || len(written) > 0 {
			t.Errorf("in memory: %q; written: %q", got, written)
		}
		wantFiles(t, dir, "")
		disk.answer <- nil
		<-disk.begun
		if !slices.Equal(written, want[:1]) {
			t.Errorf("the first write has written %q", written)
		}
		disk.answer <- nil
		synctest.Wait()
		if disk.writes != 2 || !slices.Equal(written, want) {
			t.Errorf("%d writes have written %q", disk.writes, written)
		}
		wantStored(t, dir, strings.Join(want, " "))
	})
}

func TestPut_AnOlderStateNeverReplacesANewerOne(t *testing.T) {
	phase := func(t *testing.T, dir string) state.Phase { return open(t, dir).Entries()[0].Phase }
	onSlowDisk(t, func(t *testing.T, dir string, store *record.Store, disk *slowDisk) {
		store.Put(func(error) {}, entry("a", state.Seen, noon))
		<-disk.begun
		store.Put(func(error) {}, entry("a", state.Draining, noon))
		store.Put(func(error) {}, entry("a", state.Drained, noon))
		disk.answer <- nil
		<-disk.begun
		if got := phase(t, dir); got != state.Seen {
			t.Errorf("after the first write it is %q, want what was put when it began", got)
		}
		store.Put(func(error) {}, entry("a", state.Closed, noon))
		disk.answer <- errors.New("no space left")
		disk.next(nil)
		synctest.Wait()
		if got := phase(t, dir); got != state.Closed || disk.writes != 3 {
			t.Errorf("in the end it is %q after %d writes, want the last after three", got, disk.writes)
		}
	})
}

func TestFlush_WaitsForTheDisk(t *testing.T) {
	onSlowDisk(t, func(t *testing.T, _ string, store *record.Store, disk *slowDisk) {
		if err := store.Flush(t.Context()); err != nil {
			t.Errorf("with nothing to write: %v", err)
		}
		for _, result := range []error{nil, errors.New("no space left"), nil} {
			called := 0
			store.Put(func(error) { called++ }, entry("a", state.Seen, noon))
			<-disk.begun
			store.Put(func(error) { called++ }, entry("b", state.Seen, noon))
			flushed := make(chan error, 1)
			go func() { flushed <- store.Flush(t.Context()) }()
			disk.answer <- nil
			<-disk.begun
			synctest.Wait()
			if len(flushed) > 0 {
				t.Error("it returned before all was on disk")
			}
			disk.answer <- result
			if err := <-flushed; !errors.Is(err, result) || called != 2 {
				t.Errorf("got %v, want %v; %d callbacks", err, result, called)
			}
			if err := store.Flush(t.Context()); !errors.Is(err, result) {
				t.Errorf("again: %v, want %v", err, result)
			}
		}
		store.Put(func(error) {}, entry("a", state.Seen, noon))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := store.Flush(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.HasPrefix(err.Error(), "writing the record: ") {
			t.Errorf("with a disk that hangs: %v", err)
		}
		disk.next(nil)
	})
}
