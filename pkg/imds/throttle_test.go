package imds_test

import (
	"maps"
	"net/http"
	"slices"
	"sync"
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

// seenInTime has all documents announced by a service that is only slow, and fails the test unless the urgent ones are seen within so long,
// the others within two minutes more, and nothing is trouble from then on.
func seenInTime(t *testing.T, ec2 *service, sink *sink, within time.Duration) {
	t.Helper()
	settled := time.Now()
	for path, body := range announced {
		ec2.say(path, answer{body: body})
	}
	time.Sleep(within)
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
				seenInTime(t, ec2, sink, 2*lag+time.Second)
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
	for _, lag := range append(overrun, time.Second, 2*time.Second, 3*time.Second) {
		t.Run(lag.String(), func(t *testing.T) {
			ec2 := serve(map[string]string{lifeCyclePath: "spot", targetStatePath: "InService"})
			queue := &queueing{next: ec2}
			queue.lag.Store(int64(lag))
			lazily := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { queue.ServeHTTP(w, r) })
			inBubble(t, imds.Options{}, lazily, func(t *testing.T, source *imds.Source) {
				queue.turn = make(chan struct{}, 1) // of the bubble, whose clock goes on while somebody waits for it
				defer queue.lag.Store(0)
				run(t, source, func(t *testing.T, sink *sink) {
					time.Sleep(2 * time.Minute)
					queue.most.Store(0)
					// The two urgent ones and one of the others wait in the line at a time, and one may need a new token.
					seenInTime(t, ec2, sink, 7*lag)
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

// Where nothing is answered, nobody knows whether the service hangs or falls behind.
func TestTheEndOfAnOutageInWhichNothingIsAnsweredIsSeen(t *testing.T) {
	for _, before := range []time.Duration{0, 2 * time.Second} {
		for _, outage := range []time.Duration{10 * time.Second, 100 * time.Second, 2*time.Minute + 7*time.Second} {
			ec2 := serve(map[string]string{lifeCyclePath: "spot"})
			var lag atomic.Int64
			lag.Store(int64(before))
			bubble(t, imds.Options{}, lagging(ec2, &lag), func(t *testing.T, sink *sink) {
				time.Sleep(time.Minute)
				everywhere(ec2, answer{hang: true})
				ec2.say("token", answer{hang: true})
				time.Sleep(outage)
				lag.Store(0)
				ec2.say("token", answer{})
				everywhere(ec2, answer{})
				for _, urgent := range []string{spotPath, targetStatePath} {
					ec2.say(urgent, answer{body: announced[urgent]})
				}
				const within = 16 * time.Second // what one answer may take
				time.Sleep(within)
				for _, kind := range []event.Kind{event.SpotInterruption, event.ASGTermination} {
					if events, _ := sink.last(kind); len(events) != 1 {
						t.Errorf("%s: after an outage of %s the notice was not seen within %s", kind, outage, within)
					}
				}
			})
		}
	}
}

// A service that falls behind must not be made to fall behind further, and one that hangs is not worth it.
func TestWhereNothingIsAnsweredRequestsBecomeFew(t *testing.T) {
	ec2 := serve(map[string]string{lifeCyclePath: "spot"})
	bubble(t, imds.Options{}, ec2, func(t *testing.T, sink *sink) {
		time.Sleep(time.Minute)
		everywhere(ec2, answer{hang: true})
		ec2.say("token", answer{hang: true})
		broken := time.Now()
		time.Sleep(10 * time.Minute)
		var asked []time.Duration
		for _, path := range append(slices.Collect(maps.Values(paths)), "token") {
			for _, at := range ec2.times(path) {
				if at.After(broken) {
					asked = append(asked, at.Sub(broken))
				}
			}
		}
		slices.Sort(asked)
		within := func(limit time.Duration) (n int) {
			for n < len(asked) && asked[n] < limit {
				n++
			}
			return n
		}
		// Four documents, and beside each of the two urgent ones others after one, two, four and eight seconds. Then one of the urgent ones
		// at a time, and one of the others as often again as it takes.
		if n := within(15 * time.Second); n < 8 || n > 16 {
			t.Errorf("%d requests in fifteen seconds: %v", n, asked[:n])
		}
		if n := within(10 * time.Minute); n > 16+40+20+4 {
			t.Errorf("%d requests in ten minutes", n)
		}
		for path, most := range ec2.atOnce() {
			if path != "token" && most > 2 {
				t.Errorf("%s: %d requests at once", path, most)
			}
		}
		if len(sink.troublesSince(event.SpotInterruption, broken.Add(9*time.Minute))) == 0 {
			t.Error("the trouble is told no more")
		}
	})
}

// The request beside one that waits is refused, as by a service that answers one at a time. That is not the answer.
func TestARefusalOfTheSecondRequestIsNoAnswerToTheFirst(t *testing.T) {
	for name, refusal := range map[string]answer{
		"busy": {status: 503}, "forbidden": {status: 403}, "too much": {status: 429},
	} {
		t.Run(name, func(t *testing.T) {
			ec2 := serve(map[string]string{lifeCyclePath: "spot"})
			var first atomic.Bool
			slowly := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if first.CompareAndSwap(true, false) {
					time.Sleep(4 * time.Second)
					serve(announced).ServeHTTP(w, r)
					return
				}
				ec2.ServeHTTP(w, r)
			})
			var polls []imds.Poll
			var mu sync.Mutex
			observe := func(p imds.Poll) {
				mu.Lock()
				defer mu.Unlock()
				polls = append(polls, p)
			}
			opts := imds.Options{Observe: observe, Kinds: []event.Kind{event.SpotInterruption}}
			bubble(t, opts, slowly, func(t *testing.T, sink *sink) {
				time.Sleep(time.Minute + 100*time.Millisecond)
				ec2.say(spotPath, refusal)
				first.Store(true)
				time.Sleep(5 * time.Second)
				if events, _ := sink.last(event.SpotInterruption); len(events) != 1 {
					t.Error("the answer to the first request was not waited for")
				}
				mu.Lock()
				defer mu.Unlock()
				if !slices.ContainsFunc(polls, func(p imds.Poll) bool { return p.Result == imds.Failed && p.Latency < time.Second }) {
					t.Error("nobody was told of the refusal")
				}
			})
		})
	}
}

// overrun are lags of a service that answers one request after the other at which it cannot answer all that are asked for at the start
// before they are given up.
var overrun = []time.Duration{3500 * time.Millisecond, 4 * time.Second, 5 * time.Second}

func TestANoticeIsSeenInTimeThoughTheServiceAnswersOneAfterTheOtherAndSlowly(t *testing.T) {
	for _, lag := range overrun {
		for _, from := range []string{"from the start", "later"} {
			t.Run(lag.String()+" "+from, func(t *testing.T) {
				ec2 := serve(map[string]string{lifeCyclePath: "spot", targetStatePath: "InService"})
				queue := &queueing{next: ec2}
				lazily := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { queue.ServeHTTP(w, r) })
				inBubble(t, imds.Options{}, lazily, func(t *testing.T, source *imds.Source) {
					queue.turn = make(chan struct{}, 1)
					defer queue.lag.Store(0)
					if from != "later" {
						queue.lag.Store(int64(lag))
					}
					run(t, source, func(t *testing.T, sink *sink) {
						if from == "later" {
							time.Sleep(time.Minute)
							queue.lag.Store(int64(lag))
						}
						for path, body := range announced {
							ec2.say(path, answer{body: body})
						}
						// Up to ten requests are on their way when the service becomes slow, and it answers them all first.
						within := max(time.Minute, 15*lag)
						time.Sleep(within)
						for _, kind := range []event.Kind{event.SpotInterruption, event.ASGTermination} {
							if events, _ := sink.last(kind); len(events) != 1 {
								t.Errorf("%s: not seen within %s", kind, within)
							}
						}
						time.Sleep(10 * time.Minute)
						if most := queue.most.Load(); most > 10 {
							t.Errorf("%d requests wait at once", most)
						}
						for _, kind := range imdsKinds {
							if events, _ := sink.last(kind); len(events) != 1 {
								t.Errorf("%s: not seen after ten minutes", kind)
							}
						}
					})
				})
			})
		}
	}
}

// refusing is a service that answers one request at a time, after so long, and refuses the others meanwhile.
type refusing struct {
	next http.Handler
	lag  atomic.Int64
	busy atomic.Bool
}

func (f *refusing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !f.busy.CompareAndSwap(false, true) {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	defer f.busy.Store(false)
	time.Sleep(time.Duration(f.lag.Load()))
	f.next.ServeHTTP(w, r)
}

func TestANoticeIsSeenInTimeThoughTheServiceRefusesWhoeverAsksMeanwhile(t *testing.T) {
	for _, lag := range append(overrun, time.Second, 2*time.Second) {
		for _, from := range []string{"from the start", "later"} {
			t.Run(lag.String()+" "+from, func(t *testing.T) {
				ec2 := serve(map[string]string{lifeCyclePath: "spot", targetStatePath: "InService"})
				one := &refusing{next: ec2}
				if from != "later" {
					one.lag.Store(int64(lag))
				}
				bubble(t, imds.Options{}, one, func(t *testing.T, sink *sink) {
					if from == "later" {
						time.Sleep(time.Minute)
						one.lag.Store(int64(lag))
					}
					for path, body := range announced {
						ec2.say(path, answer{body: body})
					}
					time.Sleep(time.Minute)
					for _, kind := range []event.Kind{event.SpotInterruption, event.ASGTermination} {
						if events, _ := sink.last(kind); len(events) != 1 {
							t.Errorf("%s: not seen within a minute", kind)
						}
					}
				})
			})
		}
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

// Of a slow service, those that are not urgent are asked about in turn, and rest. Whoever asks once, such as for credentials in the
// midst of a drain, waits for one of those at most.
func TestWhoAsksASlowServiceOnceDoesNotWaitForThoseThatRest(t *testing.T) {
	ec2 := serve(map[string]string{lifeCyclePath: "spot", "instance-id": "i-1"})
	var lag atomic.Int64
	lag.Store(int64(600 * time.Millisecond))
	inBubble(t, imds.Options{}, lagging(ec2, &lag), func(t *testing.T, source *imds.Source) {
		run(t, source, func(t *testing.T, _ *sink) {
			time.Sleep(time.Minute)
			ec2.say(scheduledPath, answer{hang: true})
			time.Sleep(time.Minute)
			for range 50 {
				began := time.Now()
				_, err := source.Document(t.Context(), "instance-id")
				if took := time.Since(began); err != nil || took > 15*time.Second+5*time.Second {
					t.Fatalf("the answer takes %s, %v", took, err)
				}
				time.Sleep(7 * time.Second)
			}
		})
	})
}

// It is slow, and says nothing at all of one of the two urgent documents: what it says of the other is heard of in time.
func TestADocumentOfASlowServiceThatHangsHoldsNoNoticeUp(t *testing.T) {
	for _, lag := range []time.Duration{600 * time.Millisecond, 2 * time.Second} {
		for path, c := range map[string]struct {
			kind    event.Kind
			hanging string
			before  answer
		}{
			spotPath:        {event.SpotInterruption, targetStatePath, answer{}},
			targetStatePath: {event.ASGTermination, spotPath, answer{body: "InService"}},
		} {
			t.Run(path+" "+lag.String(), func(t *testing.T) {
				ec2 := serve(map[string]string{lifeCyclePath: "spot", targetStatePath: "InService"})
				var lagged atomic.Int64
				lagged.Store(int64(lag))
				bubble(t, imds.Options{}, lagging(ec2, &lagged), func(t *testing.T, sink *sink) {
					time.Sleep(time.Minute)
					ec2.say(c.hanging, answer{hang: true})
					time.Sleep(time.Minute)
					for range 20 { // at any moment
						ec2.say(path, c.before)
						time.Sleep(17 * time.Second)
						ec2.say(path, answer{body: announced[path]})
						time.Sleep(6 * lag)
						if events, _ := sink.last(c.kind); len(events) != 1 {
							t.Fatalf("it is not seen within %s", 6*lag)
						}
					}
				})
			})
		}
	}
}
