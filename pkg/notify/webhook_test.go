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

func onNode(name string) func(*state.Transition) {
	return func(h *state.Transition) { h.Node = name }
}

func TestWebhook_ReportsEachOutcomeOnceAndAtOnce(t *testing.T) {
	for name, test := range map[string]struct {
		hear func(r *hookRig)
		want []string
	}{
		"a drain": {func(r *hookRig) {
			for _, kind := range []state.TransitionKind{state.Announced, state.Begun, state.NodeCordoned} {
				r.hear(kind, "a", drain(state.Draining))
			}
			r.pass(time.Second)
			r.hear(state.Done, "a", drain(state.Drained))
			r.hear(state.Missed, "a", drain(state.Drained))
			r.hear(state.Done, "a", endsAs(state.Withdrawn))
		}, []string{"a announced", "a drained", "a withdrawn"}},
		"a drain that is tried again": {func(r *hookRig) {
			r.hear(state.Announced, "a")
			r.hear(state.Begun, "a", drain(state.Draining))
			r.hear(state.Failed, "a", drain(state.Draining))
			r.hear(state.CalledBack, "a", drain(state.Draining))
			r.hear(state.Begun, "a", drain(state.Draining))
			r.hear(state.RanOut, "a", drain(state.Incomplete))
		}, []string{"a announced", "a failed", "a incomplete"}},
		"a node that opts out of the cordon, and in": {func(r *hookRig) {
			r.hear(state.LeftAlone, "a", func(h *state.Transition) { h.Action, h.Entry.Phase = "cordon", state.Cordoning })
			r.hear(state.Done, "a", func(h *state.Transition) { h.Action, h.Entry.Phase = "cordon", state.Cordoned })
		}, []string{"a left-alone", "a cordoned"}},
		"a node that opts out of the drain, and in": {func(r *hookRig) {
			for _, kind := range []state.TransitionKind{state.Done, state.LeftAlone, state.Begun, state.Done, state.LeftAlone} {
				r.pass(time.Second)
				r.hear(kind, "a", drain(state.Drained), func(h *state.Transition) { h.Entry.LeftAlone = kind == state.LeftAlone })
			}
		}, []string{"a drained", "a left-alone", "a drained", "a left-alone"}},
		"an event that is put off, and comes": {func(r *hookRig) {
			for range 2 {
				r.pass(time.Second)
				r.hear(state.Announced, "a")
				r.hear(state.Done, "a", drain(state.Drained))
				r.hear(state.Done, "a", func(h *state.Transition) { h.Action, h.Entry.Phase = "uncordon", state.Seen })
			}
		}, []string{"a announced", "a drained", "a moved", "a announced", "a drained", "a moved"}},
		"some phases": {func(r *hookRig) {
			r.use(func(s *notify.WebhookOptions) { s.At = []notify.Phase{notify.Announced, notify.Over} })
			r.hear(state.Announced, "a")
			r.hear(state.Done, "a", drain(state.Drained))
			r.hear(state.ClosedWith, "a", endsAs(state.Canceled))
		}, []string{"a announced", "a canceled"}},
		"a template that chooses": {func(r *hookRig) {
			r.useTemplate(`{{ if eq .Phase "ended" }}{{ .EventID }} {{ .Outcome }}{{ end }}`)
			r.hear(state.Announced, "a")
			r.hear(state.Done, "a", drain(state.Drained))
		}, []string{"a drained"}},
	} {
		t.Run(name, func(t *testing.T) {
			hooked(t, func(r *hookRig) {
				test.hear(r)
				ids := map[string]bool{}
				for _, p := range r.posts {
					ids[p.id] = true
				}
				if len(ids) != len(test.want) {
					t.Errorf("%d IDs, want one for each of %d notices", len(ids), len(test.want))
				}
				r.want(test.want...)
				r.pass(time.Minute)
				r.want()
			})
		})
	}
}

// One drain is for all events of a node, and names each pod once.
func TestWebhook_SaysWhatWasDone(t *testing.T) {
	about := func(pod, detail string) func(*state.Transition) {
		return func(h *state.Transition) { h.Pod, h.Detail, h.Entry.Phase = pod, detail, state.Draining }
	}
	left := &state.Result{Evicted: 2, Deleted: 1, Left: []string{"default/web-1"}, HeldBy: map[string]string{"default/web-1": "default/pdb"}}
	for name, test := range map[string]struct {
		template string
		hear     func(r *hookRig)
		want     []string
	}{
		"left": {
			`{{ .Node }} {{ .InstanceID }} {{ .NodeLabels.team }} {{ .Pods }} {{ .Evicted }} {{ .Deleted }} {{ .Left }} {{ .HeldBy }} {{ .SecondsLeft }} {{ .Severity }}`,
			func(r *hookRig) {
				for _, pod := range []string{"default/web-1", "default/web-\u202e2", "default/web-1"} {
					r.hear(state.PodEvicted, "a", about(pod, ""))
				}
				r.hear(state.RanOut, "a", drain(state.Incomplete), func(h *state.Transition) { h.Entry.Result = left })
			},
			[]string{"ip-10-0-0-1 i-1 web [web-1 web-/u202e2] 2 1 [default/web-1] map[default/web-1:default/pdb] 120 critical"},
		},
		"of several events and nodes": {
			`{{ .EventID }} {{ .Pods }} {{ .Severity }}`,
			func(r *hookRig) {
				r.hear(state.Begun, "a", drain(state.Draining))
				r.hear(state.Begun, "b", drain(state.Draining))
				r.hear(state.Begun, "c", drain(state.Draining), onNode("ip-10-0-0-2"))
				r.hear(state.PodEvicted, "a", about("default/web", ""))
				r.hear(state.Done, "b", drain(state.Drained))
				r.hear(state.RanOut, "a", drain(state.Incomplete))
				r.hear(state.Done, "c", drain(state.Drained), onNode("ip-10-0-0-2"))
			},
			[]string{"b [web] ok", "a [web] critical", "c [] ok"},
		},
		"of events that are put off": {
			`{{ .EventID }} {{ .Outcome }} {{ .Action }}; {{ .Text }}`,
			func(r *hookRig) {
				uncordoned := func(h *state.Transition) { h.Action = "uncordon" }
				r.hear(state.Done, "a", uncordoned)
				r.hear(state.PutOff, "b")
				r.hear(state.Done, "c", uncordoned, func(h *state.Transition) { h.Detail = "Karpenter" })
			},
			[]string{
				"a moved uncordon; nth: node ip-10-0-0-1 (i-1): spot-interruption: put off; the node takes pods again until then",
				"b moved ; nth: node ip-10-0-0-1 (i-1): spot-interruption: put off; nothing is done for it until then, and the node stays as it is",
				"c moved ; nth: node ip-10-0-0-1 (i-1): spot-interruption: put off; nothing is done for it until then, and the node stays as it is; " +
					"the node stays cordoned: Karpenter still needs the cordon",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			hooked(t, func(r *hookRig) {
				r.useTemplate(test.template)
				test.hear(r)
				r.pass(time.Minute)
				r.want(test.want...)
			})
		})
	}
}

func TestWebhook_LosesANoticeThatItsTemplateCannotRender(t *testing.T) {
	hooked(t, func(r *hookRig) {
		r.useTemplate(`{{ if eq .EventID "a" }}{{ .Nope }}{{ end }}{{ .EventID }} {{ .Outcome }}`) // It fails for no sample.
		r.hear(state.Announced, "a")
		r.hear(state.Announced, "b")
		r.want("b announced")
		r.wantLost(1, "test:1:")
	})
}

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
			r.wantLost(1, "not delivered within a day")
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
