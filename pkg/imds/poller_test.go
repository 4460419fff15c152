package imds_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds"
)

// rate is how many requests a minute are right.
type rate struct{ least, most float64 }

// healthy are the rates of a service that answers. In all, it is asked for something about 170 times a minute.
var healthy = map[string]rate{
	spotPath: {117, 123}, targetStatePath: {29, 31}, rebalancePath: {11.4, 12.6}, scheduledPath: {1.8, 2.2}, historyPath: {1.8, 2.2},
	lifeCyclePath: {0, 0}, "token": {0.4, 1.2}, // one every five minutes for each poller
}

func TestLoop_KeepsItsPaceWhateverIsAnswered(t *testing.T) {
	token := healthy["token"]
	for name, test := range map[string]struct {
		fault func(ec2 *service)
		want  map[string]rate // that differ from those of a healthy service
	}{
		"a healthy service":        {func(*service) {}, nil},
		"documents answer 503":     {func(ec2 *service) { everywhere(ec2, answer{status: 503}) }, map[string]rate{historyPath: {0, 0}}},
		"documents are too large":  {func(ec2 *service) { everywhere(ec2, answer{body: string(make([]byte, 70<<10))}) }, map[string]rate{historyPath: {0, 0}}},
		"documents refuse a token": {func(ec2 *service) { everywhere(ec2, answer{status: 401}) }, map[string]rate{historyPath: {0, 0}, "token": {155, 170}}},
		"tokens are refused": {func(ec2 *service) { ec2.say("token", answer{status: 403}) },
			map[string]rate{spotPath: {0, 0}, targetStatePath: {0, 0}, rebalancePath: {0, 0}, scheduledPath: {0, 0}, historyPath: {0, 0}, "token": {155, 170}}},
		"documents hang": {func(ec2 *service) { everywhere(ec2, answer{hang: true}) },
			map[string]rate{spotPath: {5.5, 6.5}, targetStatePath: {5.5, 6.5}, rebalancePath: {5.5, 6.5}, scheduledPath: {1.8, 2.2}, historyPath: {0, 0}, "token": token}},
		"the spot notice hangs": {func(ec2 *service) { ec2.say(spotPath, answer{hang: true}) }, map[string]rate{spotPath: {5.5, 6.5}, "token": token}},
		"maintenance hangs":     {func(ec2 *service) { ec2.say(scheduledPath, answer{hang: true}) }, map[string]rate{historyPath: {0, 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ec2 := serve(map[string]string{lifeCyclePath: "spot"})
			bubble(t, imds.Options{}, ec2, func(t *testing.T, _ *sink) {
				time.Sleep(time.Minute)
				test.fault(ec2)
				time.Sleep(6 * time.Minute) // for the long waits to be reached and the tokens to expire
				began := time.Now()
				time.Sleep(10 * time.Minute)
				for path, right := range healthy {
					if other, differs := test.want[path]; differs {
						right = other
					}
					asked := slices.DeleteFunc(ec2.times(path), func(at time.Time) bool { return at.Before(began) })
					if got := float64(len(asked)) / time.Since(began).Minutes(); got < right.least || got > right.most {
						t.Errorf("%s: %.1f requests a minute, want %.1f to %.1f", path, got, right.least, right.most)
					}
				}
				for path, most := range ec2.atOnce() {
					if most > 1 && path != "token" {
						t.Errorf("%s: %d requests at once", path, most)
					}
				}
				if len(ec2.bare) > 0 {
					t.Errorf("asked without a token: %v", ec2.bare)
				}
			})
		})
	}
}

// everywhere sets the answer of the first document of each kind.
func everywhere(ec2 *service, a answer) {
	for _, path := range paths {
		ec2.say(path, a)
	}
}

func TestLoop_SeesANoticePromptlyAfterAnOutage(t *testing.T) {
	for name, row := range map[string]struct {
		path   string
		fault  answer
		within time.Duration
	}{
		"errors":      {spotPath, answer{status: 500}, 600 * time.Millisecond},
		"hang":        {spotPath, answer{hang: true}, 11 * time.Second},
		"tokens hang": {"token", answer{hang: true}, 11 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ec2 := serve(map[string]string{lifeCyclePath: "spot"})
			bubble(t, imds.Options{}, ec2, func(t *testing.T, sink *sink) {
				for range 3 {
					time.Sleep(time.Second)
					ec2.say(row.path, row.fault)
					time.Sleep(7*time.Minute + 123*time.Millisecond)
					ec2.unsay(row.path)
					ec2.say(spotPath, answer{body: announced[spotPath]})
					time.Sleep(row.within)
					if events, _ := sink.last(event.SpotInterruption); len(events) != 1 {
						t.Fatalf("the notice was not seen within %s", row.within)
					}
					ec2.unsay(spotPath)
					time.Sleep(time.Second)
					if events, _ := sink.last(event.SpotInterruption); len(events) != 0 {
						t.Fatalf("got %v after the notice was withdrawn", events)
					}
				}
			})
		})
	}
}

// lagging is a service whose every answer, also that with a session token, takes so long.
type lagging struct {
	next http.Handler
	lag  time.Duration
}

func (l *lagging) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	time.Sleep(l.lag)
	l.next.ServeHTTP(w, r)
}

// EC2's clock is what its answers say, while they are on their way.
func TestLoop_SnapshotsSayWhatEC2sClockSays(t *testing.T) {
	for name, lag := range map[string]time.Duration{"at once": 0, "after a while": 1500 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			ahead := 10 * time.Minute
			dated := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Date", time.Now().Add(ahead).UTC().Format(http.TimeFormat))
				w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "300")
				_, _ = fmt.Fprint(w, "token")
			})
			opts := imds.Options{Kinds: []event.Kind{event.ASGTermination}}
			ec2 := http.NewServeMux()
			ec2.Handle("/latest/api/token", dated)
			ec2.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Date", time.Now().Add(ahead).UTC().Format(http.TimeFormat))
				_, _ = fmt.Fprint(w, "InService")
			})
			bubble(t, opts, &lagging{next: ec2, lag: lag}, func(t *testing.T, sink *sink) {
				time.Sleep(40 * time.Second)
				snapshots, _ := sink.of(event.ASGTermination)
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

func TestStalled_IsALoopThatSaysNothing(t *testing.T) {
	for kind, limit := range map[event.Kind]time.Duration{event.SpotInterruption: time.Minute, event.ScheduledMaintenance: 2 * time.Minute} {
		t.Run(string(kind), func(t *testing.T) {
			var hangs atomic.Bool
			opts := imds.Options{Observe: func(p imds.Poll) {
				for p.Document == paths[kind] && hangs.Load() {
					time.Sleep(time.Second)
				}
			}}
			inBubble(t, opts, serve(nil), func(t *testing.T, source *imds.Source) {
				run(t, source, func(t *testing.T, _ *sink) {
					time.Sleep(time.Minute)
					hangs.Store(true)
					time.Sleep(limit - time.Second) // it began to hang with its next look
					if err := source.Stalled(); err != nil {
						t.Errorf("too early: %v", err)
					}
					time.Sleep(40 * time.Second)
					if err := source.Stalled(); err == nil || !strings.Contains(err.Error(), string(kind)) {
						t.Errorf("after %s: %v", limit, err)
					}
					hangs.Store(false)
					time.Sleep(2 * time.Second)
					if err := source.Stalled(); err != nil {
						t.Errorf("it looks again: %v", err)
					}
				})
			})
		})
	}
}
