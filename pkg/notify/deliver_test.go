package notify_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/state"
)

// wantLost compares how many notices were lost, and why.
func (r *hookRig) wantLost(want int, why string) {
	r.t.Helper()
	lost := 0
	for _, result := range r.told() {
		if result.Lost && strings.Contains(result.Err.Error(), why) {
			lost++
		}
	}
	if lost != want {
		r.t.Errorf("%d were lost because %s, want %d", lost, why, want)
	}
}

func TestDeliver_PostsAStormWithinAMinute(t *testing.T) {
	hooked(t, func(r *hookRig) {
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

func TestDeliver_RetriesInTurnUntilTheEndpointIsBack(t *testing.T) {
	hooked(t, func(r *hookRig) {
		r.down()
		r.hear(state.Announced, "a")
		r.hear(state.Done, "a", drain(state.Drained))
		r.hear(state.Announced, "b")
		r.pass(10 * time.Minute)
		tries := map[string]int{}
		for _, p := range r.posted() {
			tries[p.text]++
		}
		for _, text := range []string{"a announced", "b announced"} { // each 30 to 60 s
			if n := tries[text]; n < 12 || n > 30 {
				t.Errorf("%d attempts in ten minutes for %s", n, text)
			}
		}
		if len(tries) != 2 {
			t.Errorf("tried %v, want no end of an event before its beginning", tries)
		}
		results := r.told()
		if fresh := slices.DeleteFunc(results, func(result notify.DeliveryResult) bool { return result.Again }); len(fresh) != 2 || fresh[0].Err == nil || fresh[0].Lost {
			t.Errorf("the first results were %+v, want a failure for each notice", fresh)
		}
		r.up()
		r.pass(time.Minute)
		r.want("a announced", "a drained", "b announced")
	})
}

func TestDeliver_GivesUpAndSaysSo(t *testing.T) {
	t.Run("too many wait", func(t *testing.T) {
		hooked(t, func(r *hookRig) {
			r.down()
			for i := range 4100 { // 4096 may wait.
				r.hear(state.Announced, fmt.Sprint("e", i))
				r.pass(time.Millisecond)
			}
			r.wantLost(4, "too many messages are waiting")
			r.posted()
			r.up()
			r.stop()
			if tried := r.posted(); len(tried) != 4096 || slices.ContainsFunc(tried, func(p posting) bool { return p.text == "e3 announced" }) {
				t.Errorf("%d are posted in the end, want the newest 4096", len(tried))
			}
			r.start()
		})
	})
	t.Run("after a day", func(t *testing.T) {
		hooked(t, func(r *hookRig) {
			r.down()
			r.hear(state.Announced, "a")
			r.pass(25 * time.Hour)
			r.wantLost(1, "older than a day")
			if n := len(r.posted()); n > 3000 {
				t.Errorf("%d attempts in a day", n)
			}
			r.up()
			r.pass(time.Hour)
			r.want()
		})
	})
	t.Run("a message that is refused", func(t *testing.T) { // It must not hold up the others of its event.
		refuses := serve(t, httptest.NewServer, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadRequest) })
		rejected := post(t.Context(), t, to(refuses.URL), "a")
		hooked(t, func(r *hookRig) {
			r.answers(func(_ context.Context, text string) error {
				if text == "a announced" {
					return rejected
				}
				return nil
			})
			r.hear(state.Announced, "a")
			r.hear(state.Done, "a", drain(state.Drained))
			r.pass(time.Hour)
			r.want("a announced", "a drained")
			r.wantLost(1, "it does not take this message")
		})
	})
	t.Run("a stop", func(t *testing.T) {
		hooked(t, func(r *hookRig) {
			r.hear(state.Announced, "a", drain(state.Draining))
			r.stop() // while it waits for a cordon
			r.want("a announced @0s")
			r.start()
			r.answers(func(ctx context.Context, _ string) error {
				<-ctx.Done()
				return ctx.Err()
			})
			r.hear(state.Announced, "b")
			asked := time.Now()
			r.stop()
			if took := time.Since(asked); took > 2*time.Second {
				t.Errorf("stopping took %s", took)
			}
			r.want("b announced")
			r.wantLost(1, "nth stopped before the delivery")
			r.start()
		})
	})
}
