package notify_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/state"
)

func TestAWebhookTellsOfADrainFromItsNoticeToItsEnd(t *testing.T) {
	hooked(t, func(r *hookRig) {
		r.hear(state.Announced, "a", drain(state.Draining))
		r.hear(state.Begun, "a", drain(state.Draining))
		r.pass(300 * time.Millisecond)
		r.want() // not before the cordon
		r.hear(state.NodeCordoned, "a", drain(state.Draining))
		r.want("a announced @300ms")
		r.pass(time.Second)
		r.hear(state.Done, "a", drain(state.Drained))
		r.want("a drained @1.3s")
		r.hear(state.Missed, "a", drain(state.Drained))
		r.hear(state.Begun, "a", func(h *state.Transition) { h.Action = "uncordon" })
		r.hear(state.Done, "a", endsAs(state.Withdrawn))
		r.want("a withdrawn @1.3s")
	})
}

func TestANoticeWaitsForTheCordonOfItsNodeOnlySoLong(t *testing.T) {
	for name, test := range map[string]struct {
		hear func(r *hookRig)
		want []string
	}{
		"it is only announced": {func(r *hookRig) { r.hear(state.Announced, "a") }, []string{"a announced @0s"}},
		"no cordon is begun":   {func(r *hookRig) { r.hear(state.Announced, "a", drain(state.Draining)) }, []string{"a announced @1s"}},
		"it does not come about": {func(r *hookRig) {
			r.hear(state.Announced, "a", drain(state.Draining))
			r.hear(state.Begun, "a", drain(state.Draining))
		}, []string{"a announced @5s"}},
		"the node has no name yet": {func(r *hookRig) {
			nameless := func(h *state.Transition) { h.Node = "" }
			r.hear(state.Announced, "a", drain(state.Draining), nameless)
			r.hear(state.Begun, "a", drain(state.Draining), nameless)
			r.pass(300 * time.Millisecond)
			r.hear(state.NodeCordoned, "a", drain(state.Draining))
		}, []string{"a announced @300ms"}},
		"it is another node's": {func(r *hookRig) {
			elsewhere := func(h *state.Transition) { h.Node = "ip-10-0-0-2" }
			r.hear(state.Announced, "b", drain(state.Draining), elsewhere)
			r.hear(state.Begun, "b", drain(state.Draining), elsewhere)
			r.hear(state.Announced, "a")
		}, []string{"a announced @0s", "b announced @5s"}},
	} {
		t.Run(name, func(t *testing.T) {
			hooked(t, func(r *hookRig) {
				test.hear(r)
				r.pass(time.Minute)
				r.want(test.want...)
			})
		})
	}
	t.Run("another event comes while notices wait to be tried again", func(t *testing.T) {
		hooked(t, func(r *hookRig) {
			r.down()
			r.hear(state.Announced, "a")
			r.want("a announced @0s")
			r.hear(state.Announced, "b", drain(state.Draining))
			r.hear(state.Begun, "b", drain(state.Draining))
			r.up()
			r.pass(4 * time.Second)
			r.want()
			r.hear(state.CordonFound, "b", drain(state.Draining))
			r.wantInAnyOrder("a announced", "b announced")
		})
	})
}

func TestOutcomesAreToldOnceEach(t *testing.T) {
	hooked(t, func(r *hookRig) {
		r.hear(state.Announced, "a")
		r.pass(time.Second)
		for range 3 { // It is tried again and again.
			r.hear(state.Begun, "a", drain(state.Draining))
			r.hear(state.Failed, "a", drain(state.Draining))
		}
		r.hear(state.CalledBack, "a", drain(state.Draining))
		r.hear(state.RanOut, "a", drain(state.Incomplete))
		r.hear(state.RanOut, "a", drain(state.Incomplete))
		r.pass(time.Minute)
		r.want("a announced", "a failed", "a incomplete")
	})
}

func TestACordonThatPeopleDidNotWantIsNotToldAsOne(t *testing.T) {
	hooked(t, func(r *hookRig) {
		cordon := func(at time.Time) func(*state.Transition) {
			return func(h *state.Transition) { h.Action, h.Entry.Phase, h.Entry.CordonedAt = "cordon", state.Cordoned, at }
		}
		r.hear(state.Announced, "a")
		r.hear(state.Done, "a", cordon(time.Time{}))
		r.hear(state.Done, "a", cordon(r.began)) // They have taken the annotation away.
		r.pass(time.Minute)
		r.want("a announced", "a left-alone", "a cordoned")
	})
}

func TestPhasesCanBeSwitchedOff(t *testing.T) {
	for name, test := range map[string]struct {
		off  func(*notify.WebhookSettings)
		want []string
	}{
		"detection": {func(s *notify.WebhookSettings) { s.AtDetection = false }, []string{"a drained", "a canceled"}},
		"end":       {func(s *notify.WebhookSettings) { s.AtEnd = false }, []string{"a announced", "a canceled"}},
		"close":     {func(s *notify.WebhookSettings) { s.AtClose = false }, []string{"a announced", "a drained"}},
		"all":       {func(s *notify.WebhookSettings) { s.AtDetection, s.AtEnd, s.AtClose = false, false, false }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			hooked(t, func(r *hookRig) {
				r.use(test.off)
				r.hear(state.Announced, "a")
				r.hear(state.Done, "a", drain(state.Drained))
				r.hear(state.ClosedWith, "a", endsAs(state.Canceled))
				r.pass(time.Minute)
				r.want(test.want...)
			})
		})
	}
}

func TestATemplateDecidesWhatIsWorthAPost(t *testing.T) {
	hooked(t, func(r *hookRig) {
		r.useTemplate(`{{ if eq .Phase "ended" }}{{ .Outcome }}{{ end }}`)
		r.hear(state.Announced, "a")
		r.hear(state.Done, "a", drain(state.Drained))
		r.pass(time.Minute)
		r.want("drained")
	})
}

func TestANoticeTellsWhatTheDrainDid(t *testing.T) {
	hooked(t, func(r *hookRig) {
		r.useTemplate(`{{ .Node }} {{ .InstanceID }} {{ .NodeLabels.team }} {{ .Pods }} {{ .Evicted }} {{ .Deleted }} {{ .Left }} {{ .HeldBy }} {{ .SecondsLeft }}`)
		for _, pod := range []string{"default/web-1", "default/web-2", "default/web-1"} {
			r.hear(state.PodEvicted, "a", drain(state.Draining), func(h *state.Transition) { h.Pod = pod })
		}
		r.hear(state.RanOut, "a", drain(state.Incomplete), func(h *state.Transition) {
			h.Entry.Result = &state.Result{
				Evicted: 2, Deleted: 1, Left: []string{"default/web-1"}, HeldBy: map[string]string{"default/web-1": "default/pdb"},
			}
		})
		r.want("ip-10-0-0-1 i-1 web [web-1 web-2] 2 1 [default/web-1] map[default/web-1:default/pdb] 120")
	})
}

// One drain is for all events of a node, and tells of each pod once.
func TestTheNoticesOfAllEventsOfADrainNameItsPods(t *testing.T) {
	hooked(t, func(r *hookRig) {
		r.useTemplate(`{{ .EventID }} {{ .Pods }}`)
		elsewhere := func(h *state.Transition) { h.Node = "ip-10-0-0-2" }
		r.hear(state.Begun, "a", drain(state.Draining))
		r.hear(state.Begun, "b", drain(state.Draining))
		r.hear(state.Begun, "c", drain(state.Draining), elsewhere)
		r.hear(state.PodEvicted, "a", drain(state.Draining), func(h *state.Transition) { h.Pod = "default/web" })
		r.hear(state.Done, "b", drain(state.Drained))
		r.hear(state.RanOut, "a", drain(state.Incomplete))
		r.hear(state.Done, "c", drain(state.Drained), elsewhere)
		r.pass(time.Minute)
		r.want("b [web]", "a [web]", "c []")
	})
}

func TestANoticeIsTriedAgainUntilTheEndpointIsBack(t *testing.T) {
	hooked(t, func(r *hookRig) {
		r.down()
		r.hear(state.Announced, "a")
		r.hear(state.Done, "a", drain(state.Drained))
		r.hear(state.Announced, "b")
		r.hear(state.NodeCordoned, "b", drain(state.Draining))
		r.pass(10 * time.Minute)
		posts := r.posted()
		if n := len(posts); n < 40 || n > 100 { // one at a time, every 7.5 to 15 s
			t.Errorf("%d attempts in ten minutes", n)
		}
		for _, p := range posts {
			if p.text == "a drained" {
				t.Fatal("the end of an event is posted before its beginning")
			}
		}
		r.up()
		r.pass(15 * time.Second)
		r.wantInAnyOrder("a announced", "a drained", "b announced")
	})
}

func TestAnOutageIsToldOnceForEachNoticeAndItsEnd(t *testing.T) {
	hooked(t, func(r *hookRig) {
		r.down()
		r.hear(state.Announced, "a")
		r.pass(time.Minute)
		r.up()
		r.pass(time.Minute)
		fresh := slices.DeleteFunc(r.told(), func(t notify.DeliveryResult) bool { return t.Err != nil && t.Again })
		if len(fresh) != 2 || fresh[0].Err == nil || fresh[0].Lost || fresh[1].Err != nil || len(r.told()) < 4 {
			t.Errorf("told were %+v", r.told())
		}
	})
}

func TestANoticeThatNobodyTakesIsLostAfterADay(t *testing.T) {
	hooked(t, func(r *hookRig) {
		r.down()
		r.hear(state.Announced, "a")
		r.pass(25 * time.Hour)
		last := r.told()[len(r.told())-1]
		if !last.Lost || !strings.Contains(last.Err.Error(), "older than a day") {
			t.Errorf("told was last %+v", last)
		}
		if n := len(r.posted()); n > 1000 {
			t.Errorf("%d attempts in a day", n)
		}
		r.up()
		r.pass(time.Hour)
		r.want()
	})
}

func TestAnEndpointThatHangsHoldsNobodyUp(t *testing.T) {
	hooked(t, func(r *hookRig) {
		r.answers(func(ctx context.Context, _ string) error {
			time.Sleep(time.Hour) // deaf to ctx, too
			return errors.New("no answer")
		})
		r.hear(state.Announced, "a")
		r.pass(2 * time.Second)
		heard := time.Now()
		for range 10_000 {
			r.hook.OnTransition(state.Transition{Kind: state.PodEvicted, At: time.Now(), Pod: "default/web"})
			r.hook.OnTransition(state.Transition{Kind: state.Announced, At: time.Now(), Entry: r.entry("b", state.Seen)})
		}
		if took := time.Since(heard); took != 0 {
			t.Errorf("it took %s to be heard", took)
		}
		r.pass(time.Hour)
	})
}

func TestStop_tries_each_notice_once_more_and_reports_the_lost(t *testing.T) {
	hooked(t, func(r *hookRig) {
		r.hear(state.Announced, "a")
		r.stop() // within the second in which a cordon might have begun
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
		r.wantLost(1, "nth stopped before it was delivered")
		r.start()
	})
}

func TestWebhook_reports_nothing_again_after_a_restart(t *testing.T) {
	hooked(t, func(r *hookRig) {
		again := func(h *state.Transition) { h.Entry.Failures = 2 }
		r.hear(state.Announced, "a")
		r.hear(state.Failed, "a", drain(state.Draining), func(h *state.Transition) { h.Entry.Failures = 1 })
		r.stop()
		r.start()
		r.hear(state.Failed, "a", drain(state.Draining), again)
		r.hear(state.Done, "a", drain(state.Drained))
		r.pass(time.Minute)
		r.want("a announced", "a failed", "a drained")
	})
}

func TestWebhook_posts_by_its_own_template_if_another_fails(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"it fails for one notice": {`{{ if eq .Outcome "drained" }}{{ .Nope }}{{ end }}a`, "webhook: test:1:33: "},
		"it is too long":          {`{{ range 1000 }}{{ $.Text }}{{ end }}`, "webhook: it gives more than 131072 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			hooked(t, func(r *hookRig) {
				r.useTemplate(test.text)
				r.hear(state.Announced, "a")
				posts := r.posted()
				if len(posts) != 1 || !strings.HasPrefix(posts[0].text, `{"text": "nth: node`) {
					t.Errorf("posted were %+v", posts)
				}
				if len(r.degraded) != 1 || !strings.HasPrefix(r.degraded[0], test.want) || !strings.HasSuffix(r.degraded[0], "; nth's own template is used") {
					t.Errorf("degraded by %q", r.degraded)
				}
				r.useTemplate(plainText)
				r.hear(state.Done, "a", drain(state.Drained))
				r.want("a drained")
			})
		})
	}
}

func TestWebhook_that_is_switched_on_later_reports_from_then_on(t *testing.T) {
	hooked(t, func(r *hookRig) {
		r.hook.Use(nil)
		r.hear(state.Announced, "a")
		r.pass(time.Minute)
		settings := r.settings
		r.hook.Use(&settings)
		r.hear(state.Done, "a", drain(state.Drained))
		r.pass(time.Minute)
		r.want("a drained")
	})
}

// A receiver that answers 400 to one message would keep all that is about the same event from being told.
func TestAMessageThatIsNeverTakenIsLost(t *testing.T) {
	rejects := serve(t, httptest.NewServer, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadRequest) })
	rejected := to(rejects.URL).Post(t.Context(), "1", "a")
	if rejected == nil {
		t.Fatal("400 passed for a success")
	}
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
		if first := r.told()[0]; !first.Lost || first.Err == nil {
			t.Errorf("told was %+v", first)
		}
	})
}

func TestAnEventThatIsMetAnewIsToldAnew(t *testing.T) {
	hooked(t, func(r *hookRig) {
		for range 2 {
			r.hear(state.Announced, "a")
			r.hear(state.Done, "a", drain(state.Drained))
			r.hear(state.ClosedWith, "a", endsAs(state.Withdrawn))
			r.pass(time.Minute)
		}
		posts := r.posted()
		ids := map[string]bool{}
		for _, p := range posts {
			ids[p.id] = true
		}
		if len(posts) != 6 || len(ids) != 6 {
			t.Errorf("posted were %+v", posts)
		}
	})
}

func TestNotice_names_deleted_pods_and_their_budgets(t *testing.T) {
	hooked(t, func(r *hookRig) {
		r.useTemplate(`{{ .Severity }} {{ .Cluster }} {{ .InstanceID }} {{ .DeletedPods }} {{ .Text }}`)
		r.use(func(s *notify.WebhookSettings) { s.Cluster = "prod" })
		about := func(pod, detail string) func(*state.Transition) {
			return func(h *state.Transition) { h.Pod, h.Detail, h.Entry.Phase = pod, detail, state.Draining }
		}
		r.hear(state.Begun, "a", drain(state.Draining))
		r.hear(state.NodeCordoned, "a", drain(state.Draining))
		r.hear(state.PodHeld, "a", about("shop/db-0", "shop/db"))
		r.hear(state.PodDeleted, "a", about("shop/db-0", ""))
		r.hear(state.PodDeleted, "a", about("shop/web-\u202e0", ""))
		r.hear(state.Done, "a", drain(state.Drained), func(h *state.Transition) { h.Entry.Result = &state.Result{Evicted: 3, Deleted: 2} })
		const db, web = "shop/db-0", "shop/web-/u202e0"
		r.want("warning prod i-1 map[" + db + ":shop/db " + web + ":] nth: cluster prod, node ip-10-0-0-1 (i-1): spot-interruption: drained after 0s: " +
			"3 pods evicted, 2 deleted, 0 left in place; deleted, as they could not be evicted in time: " +
			db + " (against the disruption budget shop/db), " + web)
	})
}

func TestOfEventsThatArePutOffTogetherEachIsTold(t *testing.T) {
	hooked(t, func(r *hookRig) {
		r.useTemplate(`{{ .EventID }} {{ .Outcome }} {{ .Action }}; {{ .Text }}`)
		for _, id := range []string{"a", "b", "c", "d"} {
			r.hear(state.Done, id, drain(state.Drained))
		}
		r.posted()
		uncordoned := func(h *state.Transition) { h.Action = "uncordon" }
		r.hear(state.Done, "a", uncordoned)
		r.hear(state.PutOff, "b", uncordoned)
		r.hear(state.PutOff, "c")
		r.hear(state.Done, "d", uncordoned, func(h *state.Transition) { h.Detail = "Karpenter" })
		const about = "nth: node ip-10-0-0-1 (i-1): spot-interruption: put off; "
		r.want("a moved uncordon; "+about+"the node takes pods again until then",
			"b moved uncordon; "+about+"the node takes pods again until then",
			"c moved ; "+about+"nothing is done for it until then, and the node stays as it is",
			"d moved ; "+about+"nothing is done for it until then, and the node stays as it is; the cordon is left to Karpenter, who still needs it")
	})
}

func TestWhatWasPutOffIsToldAgainWhenItsTimeComes(t *testing.T) {
	hooked(t, func(r *hookRig) {
		r.use(func(s *notify.WebhookSettings) { s.AtClose = false })
		r.hear(state.Announced, "a")
		r.hear(state.Done, "a", drain(state.Drained))
		r.hear(state.Done, "a", func(h *state.Transition) { h.Action, h.Entry.Phase = "uncordon", state.Seen })
		r.hear(state.Announced, "a")
		r.hear(state.Done, "a", drain(state.Drained))
		r.want("a announced", "a drained", "a announced", "a drained")
	})
}
