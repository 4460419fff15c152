package notify_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/record"
)

// A machine may have been away for as long, or its clock have been wrong.
func TestANoticeIsTriedBeforeItIsTooOld(t *testing.T) {
	t.Run("the clock was set since", func(t *testing.T) {
		hooked(t, func(r *hookRig) {
			r.hear(record.Announced, "a", func(h *record.Happening) { h.At = h.At.Add(-48 * time.Hour) })
			r.want("a announced")
		})
	})
	for name, up := range map[string]bool{"the endpoint is there": true, "the endpoint is still away": false} {
		t.Run("it was found at a start, and "+name, func(t *testing.T) {
			hooked(t, func(r *hookRig) {
				r.down()
				r.hear(record.Announced, "a")
				r.stop()
				r.posted()
				time.Sleep(48 * time.Hour)
				if up {
					r.up()
				}
				r.start()
				r.pass(time.Minute)
				r.want("a announced")
				if last := r.told()[len(r.told())-1]; last.GivenUp == up || !up && !strings.Contains(last.Err.Error(), "older than a day") {
					t.Errorf("told was last %+v", last)
				}
			})
		})
	}
}

// What becomes of a notice is told in the end, and then for good: a person looks for what is lost.
func TestOfANoticeThatIsGivenUpWhileItIsPostedOneEndIsTold(t *testing.T) {
	for name, test := range map[string]struct {
		answer error // to the notice that is under way
		stop   bool  // while it is
		lost   bool
	}{
		"it is taken":              {},
		"it is not taken":          {answer: errors.New("connection refused"), lost: true},
		"nth stops, and it is not": {stop: true, lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			hooked(t, func(r *hookRig) {
				answer := make(chan error, 1)
				r.answers(func(ctx context.Context, text string) error {
					if text != "first announced" {
						return errors.New("connection refused")
					}
					select {
					case err := <-answer:
						return err
					case <-ctx.Done():
						return ctx.Err()
					}
				})
				r.hear(record.Announced, "first")
				for i := range 70 {
					r.hear(record.Announced, fmt.Sprint("e", i))
				}
				if !test.stop {
					answer <- test.answer
				} else {
					r.stop()
				}
				r.pass(time.Second)
				var ends []notify.Telling
				for _, told := range r.told() {
					if told.Notice.Event == "first" && (told.GivenUp || told.Err == nil) {
						ends = append(ends, told)
					}
				}
				if len(ends) != 1 || ends[0].GivenUp != test.lost || test.lost && ends[0].Err.Error() != "too many are waiting" {
					t.Errorf("told was %+v", ends)
				}
			})
		})
	}
}

// A pause that somebody asks for is for all, also where other answers come after that.
func TestAPauseThatIsAskedForHoldsWhateverWasUnderWayThen(t *testing.T) {
	pause := func(seconds int) error {
		busy := serve(t, httptest.NewServer, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", fmt.Sprint(seconds))
			w.WriteHeader(http.StatusTooManyRequests)
		})
		return to(busy.URL).Post(t.Context(), "1", "a")
	}
	long, short := pause(90), pause(5)
	for name, later := range map[string]error{"it is taken": nil, "a shorter pause is asked for": short} {
		t.Run(name, func(t *testing.T) {
			hooked(t, func(r *hookRig) {
				r.answers(func(_ context.Context, text string) error {
					if text == "a announced" {
						time.Sleep(time.Second)
						return long
					}
					time.Sleep(2 * time.Second)
					return later
				})
				r.hear(record.Announced, "a")
				r.hear(record.Announced, "b")
				r.pass(1500 * time.Millisecond)
				r.posted()
				r.up() // for all that is not under way
				r.pass(1500 * time.Millisecond)
				r.hear(record.Announced, "c")
				r.pass(80 * time.Second)
				r.want()
				r.pass(20 * time.Second)
				if n := len(r.posted()); n < 2 {
					t.Errorf("%d are posted after the pause", n)
				}
			})
		})
	}
}

// hangingDisk is an outbox whose disk does not answer.
type hangingDisk struct {
	*record.Outbox
	answers chan struct{}
}

func (d hangingDisk) Sync() error {
	<-d.answers
	return nil
}

func TestADiskThatHangsKeepsNobodyFromStopping(t *testing.T) {
	disk := hangingDisk{}
	hookedWith(t, func(o *notify.WebhookOptions) {
		disk = hangingDisk{o.Outbox.(*record.Outbox), make(chan struct{})}
		o.Outbox = disk
	}, func(r *hookRig) {
		r.hear(record.Announced, "a")
		r.want("a announced @0s")
		began := time.Now()
		r.stop()
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("it took %s to stop", took)
		}
		if last := r.told()[len(r.told())-1]; last.Err == nil || !strings.Contains(last.Err.Error(), "the disk does not answer") {
			t.Errorf("told was last %+v", last)
		}
		close(disk.answers)
	})
}
