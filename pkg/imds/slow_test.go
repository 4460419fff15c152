package imds_test

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds"
)

// lagging is a service whose every answer, also that with a session token, takes so long.
func lagging(ec2 http.Handler, lag *atomic.Int64) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(time.Duration(lag.Load()))
		ec2.ServeHTTP(w, r)
	})
}

func TestASlowServiceStillTellsOfANoticeInTime(t *testing.T) {
	for _, lag := range []time.Duration{600 * time.Millisecond, 1100 * time.Millisecond, 2 * time.Second, 4 * time.Second} {
		t.Run(lag.String(), func(t *testing.T) {
			ec2 := serve(map[string]string{lifeCyclePath: "spot", targetStatePath: "InService"})
			var slow atomic.Int64
			slow.Store(int64(lag))
			bubble(t, imds.Options{}, lagging(ec2, &slow), func(t *testing.T, sink *sink) {
				time.Sleep(time.Minute)
				_, troubles := sink.of(event.SpotInterruption)
				if len(troubles) > 4 {
					t.Errorf("%d troubles while it is only slow, the last: %v", len(troubles), troubles[len(troubles)-1].err)
				}
				settled := time.Now()
				for path, body := range announced {
					ec2.say(path, answer{body: body})
				}
				time.Sleep(2*lag + time.Second)
				for _, kind := range []event.Kind{event.SpotInterruption, event.ASGTermination} {
					if events, _ := sink.last(kind); len(events) != 1 {
						t.Errorf("%s: not seen after %s", kind, time.Since(settled))
					}
				}
				time.Sleep(2 * time.Minute)
				for _, kind := range imdsKinds {
					if events, _ := sink.last(kind); len(events) != 1 {
						t.Errorf("%s: not seen after two minutes", kind)
					}
					if late := sink.troublesSince(kind, settled); len(late) > 0 {
						t.Errorf("%s: trouble with a service that is only slow: %v", kind, late[0].err)
					}
				}
				for path, most := range ec2.atOnce() {
					if path != "token" && most > 1 {
						t.Errorf("%s: %d requests at once, of a service that is known to be slow", path, most)
					}
				}
			})
		})
	}
}

// The first notice may be there before anybody knows that the service is slow.
func TestASlowServiceTellsOfANoticeThatWasThereFromTheStart(t *testing.T) {
	for _, lag := range []time.Duration{1100 * time.Millisecond, 2 * time.Second, 4 * time.Second} {
		t.Run(lag.String(), func(t *testing.T) {
			var slow atomic.Int64
			slow.Store(int64(lag))
			bubble(t, imds.Options{}, lagging(serve(announced), &slow), func(t *testing.T, sink *sink) {
				time.Sleep(2*lag + time.Second)
				for _, kind := range []event.Kind{event.SpotInterruption, event.ASGTermination} {
					if events, _ := sink.last(kind); len(events) != 1 {
						t.Errorf("%s: not seen with the second answer, which is the first after the token", kind)
					}
				}
			})
		})
	}
}

// queueing is a service that answers one request after the other, also those that nobody waits for any more, each after
// so long.
type queueing struct {
	next http.Handler
	turn chan struct{}
	lag  atomic.Int64
	here atomic.Int64
	most atomic.Int64
}

func (q *queueing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	here := q.here.Add(1)
	defer q.here.Add(-1)
	q.most.Store(max(q.most.Load(), here))
	q.turn <- struct{}{}
	defer func() { <-q.turn }()
	time.Sleep(time.Duration(q.lag.Load()))
	q.next.ServeHTTP(w, r)
}

func TestAServiceThatAnswersOneAfterTheOtherIsNotOverrun(t *testing.T) {
	for _, lag := range []time.Duration{time.Second, 2 * time.Second, 3 * time.Second} {
		t.Run(lag.String(), func(t *testing.T) {
			ec2 := serve(map[string]string{lifeCyclePath: "spot", targetStatePath: "InService"})
			queue := &queueing{next: ec2}
			queue.lag.Store(int64(lag))
			lazily := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { queue.ServeHTTP(w, r) })
			inBubble(t, imds.Options{}, lazily, func(t *testing.T, source *imds.Source) {
				queue.turn = make(chan struct{}, 1) // of the bubble, whose clock goes on while somebody waits for it
				defer queue.lag.Store(0)
				run(t, source, func(t *testing.T, sink *sink) {
					time.Sleep(time.Minute)
					queue.most.Store(0)
					settled := time.Now()
					for path, body := range announced {
						ec2.say(path, answer{body: body})
					}
					// The two urgent ones and one of the others wait in the line at a time, and one may need a new token.
					time.Sleep(7 * lag)
					for _, kind := range []event.Kind{event.SpotInterruption, event.ASGTermination} {
						if events, _ := sink.last(kind); len(events) != 1 {
							t.Errorf("%s: not seen after %s", kind, time.Since(settled))
						}
					}
					time.Sleep(2 * time.Minute)
					for _, kind := range imdsKinds {
						if events, _ := sink.last(kind); len(events) != 1 {
							t.Errorf("%s: not seen after two minutes", kind)
						}
						if late := sink.troublesSince(kind, settled); len(late) > 0 {
							t.Errorf("%s: trouble: %v", kind, late[0].err)
						}
					}
					if most := queue.most.Load(); most > 3 {
						t.Errorf("%d requests wait at once, want no more than 3", most)
					}
				})
			})
		})
	}
}

func TestOfAServiceThatAnswersOneAfterTheOtherTheUrgentIsAskedFirst(t *testing.T) {
	ec2 := serve(announced)
	queue := &queueing{next: ec2}
	queue.lag.Store(int64(time.Second))
	lazily := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { queue.ServeHTTP(w, r) })
	inBubble(t, imds.Options{}, lazily, func(t *testing.T, source *imds.Source) {
		queue.turn = make(chan struct{}, 1)
		defer queue.lag.Store(0)
		run(t, source, func(t *testing.T, sink *sink) {
			time.Sleep(12 * time.Second)
			for _, urgent := range []string{spotPath, targetStatePath} {
				for _, other := range []string{rebalancePath, scheduledPath} {
					first, later := ec2.times(urgent), ec2.times(other)
					if len(first) == 0 || len(later) > 0 && !first[0].Before(later[0]) {
						t.Errorf("%s was asked for at %v, %s at %v", urgent, first, other, later)
					}
				}
			}
		})
	})
}

func TestOnceAServiceIsFastAgainAnOutageIsSeenAndSeenToEndAtOnce(t *testing.T) {
	ec2 := serve(map[string]string{lifeCyclePath: "spot"})
	var lag atomic.Int64
	lag.Store(int64(2 * time.Second))
	bubble(t, imds.Options{}, lagging(ec2, &lag), func(t *testing.T, sink *sink) {
		time.Sleep(time.Minute)
		lag.Store(0)
		time.Sleep(5 * time.Second)
		began := time.Now()
		time.Sleep(time.Minute)
		judgeRates(t, ec2, began, map[string]rate{spotPath: {115, 125}, targetStatePath: {115, 125}})

		broken := time.Now()
		ec2.say(spotPath, answer{hang: true})
		time.Sleep(2 * time.Second)
		if len(sink.troublesSince(event.SpotInterruption, broken)) == 0 {
			t.Error("no trouble two seconds after it began to hang")
		}
		time.Sleep(time.Minute + 123*time.Millisecond)
		ec2.say(spotPath, answer{body: announced[spotPath]})
		time.Sleep(time.Second + 10*time.Millisecond)
		if events, _ := sink.last(event.SpotInterruption); len(events) != 1 {
			t.Error("the notice was not seen within a second of the end of the outage")
		}
	})
}

// Where a service was slow before it hung, nobody knows at first that it hangs.
func TestTheEndOfAnOutageOfASlowServiceIsSeen(t *testing.T) {
	for _, outage := range []time.Duration{10 * time.Second, 2 * time.Minute} {
		ec2 := serve(map[string]string{lifeCyclePath: "spot"})
		var lag atomic.Int64
		lag.Store(int64(2 * time.Second))
		bubble(t, imds.Options{}, lagging(ec2, &lag), func(t *testing.T, sink *sink) {
			time.Sleep(time.Minute)
			everywhere(ec2, answer{hang: true})
			ec2.say("token", answer{hang: true})
			time.Sleep(outage)
			lag.Store(0)
			ec2.say("token", answer{})
			everywhere(ec2, answer{})
			ec2.say(spotPath, answer{body: announced[spotPath]})
			within := 16 * time.Second // what one answer may take
			if outage > time.Minute {
				within = time.Second + 10*time.Millisecond // it is known to hang by now
			}
			time.Sleep(within)
			if events, _ := sink.last(event.SpotInterruption); len(events) != 1 {
				t.Errorf("after an outage of %s the notice was not seen within %s", outage, within)
			}
		})
	}
}

// Whoever asks once has little time: one item that hangs must not take that of the others.
func TestADocumentThatHangsIsGivenUpSoonUnlessTheServiceIsSlow(t *testing.T) {
	ec2 := serve(map[string]string{lifeCyclePath: "spot", "instance-id": "i-1"})
	var lag atomic.Int64
	inBubble(t, imds.Options{}, lagging(ec2, &lag), func(t *testing.T, source *imds.Source) {
		run(t, source, func(t *testing.T, _ *sink) {
			time.Sleep(time.Minute)
			ec2.say("instance-id", answer{hang: true})
			began := time.Now()
			if _, err := source.Document(t.Context(), "instance-id"); err == nil || time.Since(began) > 2*time.Second {
				t.Errorf("what hangs was given up after %s, with %v", time.Since(began), err)
			}
			lag.Store(int64(4 * time.Second))
			ec2.say("instance-id", answer{body: "i-1"})
			time.Sleep(time.Minute)
			if body, err := source.Document(t.Context(), "instance-id"); err != nil || string(body) != "i-1" {
				t.Errorf("of a slow service: %q, %v", body, err)
			}
		})
	})
}
