package notify_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/state"
)

func onNode(name string) func(*state.Transition) {
	return func(h *state.Transition) { h.Node = name }
}

// manyNodes is how nth-queue uses the webhook.
func manyNodes(o *notify.WebhookOptions) {
	o.Limit = 1024
}

func TestAStormOfAnnouncementsIsPostedWithinAMinute(t *testing.T) {
	hookedWith(t, manyNodes, func(r *hookRig) {
		r.answers(func(context.Context, string) error {
			time.Sleep(200 * time.Millisecond)
			return nil
		})
		for i := range 1500 {
			r.hear(state.Announced, fmt.Sprint("e", i), onNode(fmt.Sprint("n", i)))
			time.Sleep(10 * time.Millisecond)
		}
		r.pass(time.Minute - 1500*10*time.Millisecond)
		if posts := r.posted(); len(posts) != 1500 {
			t.Errorf("%d of 1500 announcements are posted within a minute", len(posts))
		}
	})
}

func TestAnAnnouncementIsTriedAtOnceThoughManyOthersHang(t *testing.T) {
	for _, after := range []time.Duration{0, 3 * time.Second, 10 * time.Second, 10 * time.Minute} {
		t.Run(after.String(), func(t *testing.T) {
			hookedWith(t, manyNodes, func(r *hookRig) {
				r.answers(func(ctx context.Context, _ string) error {
					ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
					defer cancel()
					<-ctx.Done()
					return errors.New("no answer in time")
				})
				for i := range 60 {
					r.hear(state.Announced, fmt.Sprint("e", i), onNode(fmt.Sprint("n", i)))
					r.pass(time.Millisecond)
				}
				r.pass(after)
				r.posted()
				r.hear(state.Announced, "new", onNode("new"))
				r.pass(2 * time.Second)
				tried := false
				for _, p := range r.posted() {
					tried = tried || p.text == "new announced"
				}
				if !tried {
					t.Error("an announcement was not tried within two seconds")
				}
			})
		})
	}
}

func TestOneNoticeAtATimeAsksWhetherTheEndpointIsBack(t *testing.T) {
	hookedWith(t, manyNodes, func(r *hookRig) {
		r.down()
		for i := range 100 {
			r.hear(state.Announced, fmt.Sprint("e", i), onNode(fmt.Sprint("n", i)))
		}
		r.pass(time.Second)
		r.posted()
		r.pass(10 * time.Minute)
		if n := len(r.posted()); n < 30 || n > 100 {
			t.Errorf("%d attempts in ten minutes, for a hundred notices", n)
		}
		r.up()
		r.pass(16 * time.Second)
		if n := len(r.posted()); n != 100 {
			t.Errorf("%d of 100 notices are posted when the endpoint is back", n)
		}
	})
}

func TestAnEndpointIsGivenThePauseThatItAsksFor(t *testing.T) {
	for name, test := range map[string]struct {
		status int
		header string
		pause  time.Duration
	}{
		"429, in seconds":       {http.StatusTooManyRequests, "90", 90 * time.Second},
		"503, in seconds":       {http.StatusServiceUnavailable, "90", 90 * time.Second},
		"longer than an hour":   {http.StatusTooManyRequests, "86400", time.Hour},
		"another status has it": {http.StatusInternalServerError, "90", 0},
		"it cannot be read":     {http.StatusTooManyRequests, "soon", 0},
		"a date that is over":   {http.StatusTooManyRequests, "Mon, 02 Jan 2006 15:04:05 GMT", 0},
	} {
		t.Run(name, func(t *testing.T) {
			busy := serve(t, httptest.NewServer, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", test.header)
				w.WriteHeader(test.status)
			})
			answer := to(busy.URL).Post(t.Context(), "1", "a")
			if answer == nil {
				t.Fatalf("%d passed for a success", test.status)
			}
			hooked(t, func(r *hookRig) {
				r.answers(func(context.Context, string) error { return answer })
				r.hear(state.Announced, "a")
				r.posted()
				r.up()
				r.hear(state.Announced, "b") // What is new, too, waits where a pause is asked for.
				if test.pause > 0 {
					r.pass(test.pause - time.Second)
					r.want()
				}
				r.pass(2 * time.Second)
				r.wantInAnyOrder("a announced", "b announced")
			})
		})
	}
}

func TestWhatIsLostIsToldAndCounted(t *testing.T) {
	t.Run("too many are waiting", func(t *testing.T) {
		hooked(t, func(r *hookRig) {
			r.down()
			for i := range 70 {
				r.hear(state.Announced, fmt.Sprint("e", i))
			}
			r.wantLost(6, "too many are waiting")
		})
	})
}

// wantLost compares how many notices were given up, and why.
func (r *hookRig) wantLost(want int, why string) {
	r.t.Helper()
	lost := 0
	for _, t := range r.told() {
		if t.Lost && strings.Contains(t.Err.Error(), why) {
			lost += 1 + t.Alike
		}
	}
	if lost != want {
		r.t.Errorf("%d are told to be lost as %s, want %d", lost, why, want)
	}
}

func TestThousandsOfDrainsLeaveNothingBehind(t *testing.T) {
	hookedWith(t, manyNodes, func(r *hookRig) {
		pods := make([]string, 110)
		for i := range pods {
			pods[i] = fmt.Sprintf("default/a-pod-with-a-name-of-the-usual-length-%03d", i)
		}
		drained := func(i int) {
			id, node := fmt.Sprint("e", i), fmt.Sprint("n", i)
			r.hear(state.Announced, id, onNode(node))
			r.hear(state.Begun, id, onNode(node), drain(state.Draining))
			r.hear(state.NodeCordoned, id, onNode(node), drain(state.Draining))
			for _, pod := range pods {
				r.hook.OnTransition(state.Transition{
					Kind: state.PodEvicted, At: time.Now(), Node: node, Pod: pod, Entry: r.entry(id, state.Draining), Action: "drain",
				})
			}
			r.hear(state.Done, id, onNode(node), drain(state.Drained))
			r.hook.Forget(node)
			r.posted()
			r.mu.Lock()
			r.tellings = nil
			r.mu.Unlock()
		}
		inUse := func() uint64 {
			r.pass(time.Second)
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		for i := range 1000 { // The outbox remembers the newest that were told.
			drained(i)
		}
		before := inUse()
		for i := range 2000 {
			drained(1000 + i)
		}
		if after := inUse(); after > before+1<<20 {
			t.Errorf("%d KiB are in use after 1,000 drains, and %d after 3,000", before>>10, after>>10)
		}
	})
}

func TestNotice_of_a_wrong_clock_is_posted(t *testing.T) {
	hooked(t, func(r *hookRig) {
		r.hear(state.Announced, "a", func(h *state.Transition) { h.At = h.At.Add(-48 * time.Hour) })
		r.want("a announced")
	})
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
				r.hear(state.Announced, "a")
				r.hear(state.Announced, "b")
				r.pass(1500 * time.Millisecond)
				r.posted()
				r.up() // for all that is not under way
				r.pass(1500 * time.Millisecond)
				r.hear(state.Announced, "c")
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
