package imds_test

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds"
)

// lagging is a service whose every answer, also that with a session token, takes so long. If queue is set, it answers one request after
// the other, also those that nobody waits for any more.
type lagging struct {
	next  http.Handler
	lag   time.Duration
	over  atomic.Bool // it is fast from now on
	queue chan struct{}
}

func (l *lagging) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if l.queue != nil {
		l.queue <- struct{}{}
		defer func() { <-l.queue }()
	}
	if !l.over.Load() {
		time.Sleep(l.lag)
	}
	l.next.ServeHTTP(w, r)
}

// A notice is there from the start, before it is known how slow the service is, or comes later.
func TestSource_ASlowServiceTellsInTime(t *testing.T) {
	for _, row := range []struct {
		lag           time.Duration
		serial        bool
		first, within time.Duration // until the notice is seen, from the start, and once the service is known
	}{
		{lag: 600 * time.Millisecond, first: 3 * time.Second, within: 2 * time.Second},
		{lag: 1100 * time.Millisecond, first: 10 * time.Second, within: 3 * time.Second},
		{lag: 4 * time.Second, first: 30 * time.Second, within: 10 * time.Second},
		{lag: time.Second, serial: true, first: 30 * time.Second, within: 10 * time.Second},
	} {
		t.Run(fmt.Sprintf("%s serial %t", row.lag, row.serial), func(t *testing.T) {
			ec2 := serve(announced)
			ec2.say(lifeCyclePath, answer{body: "spot"})
			slow := &lagging{next: ec2, lag: row.lag}
			lazily := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { slow.ServeHTTP(w, r) })
			inBubble(t, imds.Options{}, lazily, func(t *testing.T, source *imds.Source) {
				if row.serial {
					slow.queue = make(chan struct{}, 1) // of the bubble, whose clock goes on while somebody waits for it
				}
				run(t, source, func(t *testing.T, sink *sink) {
					wantSpot := func(n int, within time.Duration) {
						t.Helper()
						time.Sleep(within)
						if events, _ := sink.last(event.SpotInterruption); len(events) != n {
							t.Errorf("after %s, %d notices are known, want %d", within, len(events), n)
						}
					}
					wantSpot(1, row.first)
					ec2.unsay(spotPath)
					wantSpot(0, 2*time.Minute)
					ec2.say(spotPath, answer{body: announced[spotPath]})
					wantSpot(1, row.within)
					time.Sleep(2 * time.Minute)
					for _, kind := range imdsKinds {
						if events, _ := sink.last(kind); len(events) != 1 {
							t.Errorf("%s is not known", kind)
						}
					}
					slow.over.Store(true)
				})
			})
		})
	}
}

// Once it has hung, an answer is waited for for longer; once one came, no longer than before.
func TestSource_ItsPatienceGrowsAndShrinks(t *testing.T) {
	ec2 := serve(map[string]string{lifeCyclePath: "spot"})
	bubble(t, spotOnly, ec2, func(t *testing.T, sink *sink) {
		for range 2 {
			time.Sleep(time.Minute)
			ec2.say(spotPath, answer{hang: true})
			began := time.Now()
			time.Sleep(2 * time.Minute)
			ec2.unsay(spotPath)
			for i, want := range []time.Duration{2 * time.Second, 10 * time.Second, 20 * time.Second, 20 * time.Second} {
				troubles := sink.troublesSince(event.SpotInterruption, began)
				if text := fmt.Sprintf("reading %q: no answer within %s: context deadline exceeded", spotPath, want); troubles[i].err.Error() != text {
					t.Errorf("trouble %d is %q, want %q", i, troubles[i].err, text)
				}
			}
		}
	})
}

func TestDocument_IsHadFromASlowService(t *testing.T) {
	ec2 := serve(map[string]string{"tags": "a"})
	inBubble(t, imds.Options{}, &lagging{next: ec2, lag: 4 * time.Second}, func(t *testing.T, source *imds.Source) {
		var err error
		for range 3 { // as callers do
			_, err = source.Document(t.Context(), "tags")
		}
		if err != nil {
			t.Error(err)
		}
	})
}

// EC2's clock is what its answers say, while they are on their way.
func TestSource_SnapshotsSayWhatEC2sClockSays(t *testing.T) {
	for name, lag := range map[string]time.Duration{"at once": 0, "after a while": 1500 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			ahead := 10 * time.Minute
			dated := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Date", time.Now().Add(ahead).UTC().Format(http.TimeFormat))
				w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "300")
				_, _ = fmt.Fprint(w, announced[spotPath])
			})
			bubble(t, spotOnly, &lagging{next: dated, lag: lag}, func(t *testing.T, sink *sink) {
				time.Sleep(20 * time.Second)
				snapshots, _ := sink.of(event.SpotInterruption)
				for _, s := range snapshots {
					if off := s.at.Add(ahead).Sub(s.clock); off < 0 || off > s.within || s.within > time.Second+lag+10*time.Millisecond {
						t.Errorf("at %s the clock is said to be %s or up to %s later", s.at.Add(ahead), s.clock, s.within)
					}
				}
				if len(snapshots) < 5 {
					t.Errorf("%d snapshots", len(snapshots))
				}
			})
		})
	}
}
