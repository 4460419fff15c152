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
	"github.com/nth-project/nth/pkg/record"
)

func TestAWebhookTellsOfADrainFromItsNoticeToItsEnd(t *testing.T) {
	hooked(t, func(r *hookRig) {
		r.hear(record.Announced, "a", drain(record.Draining))
		r.hear(record.Begun, "a", drain(record.Draining))
		r.pass(300 * time.Millisecond)
		r.want() // not before the cordon
		r.hear(record.NodeCordoned, "a", drain(record.Draining))
		r.want("a announced @300ms")
		r.pass(time.Second)
		r.hear(record.Done, "a", drain(record.Drained))
		r.want("a drained @1.3s")
		r.hear(record.Missed, "a", drain(record.Drained))
		r.hear(record.Begun, "a", func(h *record.Transition) { h.Action = "uncordon" })
		r.hear(record.Done, "a", endsAs(record.Withdrawn))
		r.want("a withdrawn @1.3s")
	})
}

func TestANoticeWaitsForTheCordonOfItsNodeOnlySoLong(t *testing.T) {
	for name, test := range map[string]struct {
		hear func(r *hookRig)
		want []string
	}{
		"it is only announced": {func(r *hookRig) { r.hear(record.Announced, "a") }, []string{"a announced @0s"}},
		"no cordon is begun":   {func(r *hookRig) { r.hear(record.Announced, "a", drain(record.Draining)) }, []string{"a announced @1s"}},
		"it does not come about": {func(r *hookRig) {
			r.hear(record.Announced, "a", drain(record.Draining))
			r.hear(record.Begun, "a", drain(record.Draining))
		}, []string{"a announced @5s"}},
		"the node has no name yet": {func(r *hookRig) {
			nameless := func(h *record.Transition) { h.Node = "" }
			r.hear(record.Announced, "a", drain(record.Draining), nameless)
			r.hear(record.Begun, "a", drain(record.Draining), nameless)
			r.pass(300 * time.Millisecond)
			r.hear(record.NodeCordoned, "a", drain(record.Draining))
		}, []string{"a announced @300ms"}},
		"it is another node's": {func(r *hookRig) {
			elsewhere := func(h *record.Transition) { h.Node = "ip-10-0-0-2" }
			r.hear(record.Announced, "b", drain(record.Draining), elsewhere)
			r.hear(record.Begun, "b", drain(record.Draining), elsewhere)
			r.hear(record.Announced, "a")
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
			r.hear(record.Announced, "a")
			r.want("a announced @0s")
			r.hear(record.Announced, "b", drain(record.Draining))
			r.hear(record.Begun, "b", drain(record.Draining))
			r.up()
			r.pass(4 * time.Second)
			r.want()
			r.hear(record.CordonFound, "b", drain(record.Draining))
			r.wantInAnyOrder("a announced", "b announced")
		})
	})
}

func TestOutcomesAreToldOnceEach(t *testing.T) {
	hooked(t, func(r *hookRig) {
		r.hear(record.Announced, "a")
		r.pass(time.Second)
		for range 3 { // It is tried again and again.
			r.hear(record.Begun, "a", drain(record.Draining))
			r.hear(record.Failed, "a", drain(record.Draining))
		}
		r.hear(record.CalledBack, "a", drain(record.Draining))
		r.hear(record.RanOut, "a", drain(record.Incomplete))
		r.hear(record.RanOut, "a", drain(record.Incomplete))
		r.pass(time.Minute)
		r.want("a announced", "a failed", "a incomplete")
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
				r.hear(record.Announced, "a")
				r.hear(record.Done, "a", drain(record.Drained))
				r.hear(record.ClosedWith, "a", endsAs(record.Canceled))
				r.pass(time.Minute)
				r.want(test.want...)
			})
		})
	}
}

func TestATemplateDecidesWhatIsWorthAPost(t *testing.T) {
	hooked(t, func(r *hookRig) {
		r.useTemplate(`{{ if eq .Phase "ended" }}{{ .Outcome }}{{ end }}`)
		r.hear(record.Announced, "a")
		r.hear(record.Done, "a", drain(record.Drained))
		r.pass(time.Minute)
		r.want("drained")
	})
}

func TestANoticeTellsWhatTheDrainDid(t *testing.T) {
	hooked(t, func(r *hookRig) {
		r.useTemplate(`{{ .Node }} {{ .InstanceID }} {{ .NodeLabels.team }} {{ .Pods }} {{ .Evicted }} {{ .Deleted }} {{ .Left }} {{ .HeldBy }} {{ .SecondsLeft }}`)
		for _, pod := range []string{"default/web-1", "default/web-2", "default/web-1"} {
			r.hear(record.PodEvicted, "a", drain(record.Draining), func(h *record.Transition) { h.Pod = pod })
		}
		r.hear(record.RanOut, "a", drain(record.Incomplete), func(h *record.Transition) {
			h.Entry.Result = &record.Result{
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
		elsewhere := func(h *record.Transition) { h.Node = "ip-10-0-0-2" }
		r.hear(record.Begun, "a", drain(record.Draining))
		r.hear(record.Begun, "b", drain(record.Draining))
		r.hear(record.Begun, "c", drain(record.Draining), elsewhere)
		r.hear(record.PodEvicted, "a", drain(record.Draining), func(h *record.Transition) { h.Pod = "default/web" })
		r.hear(record.Done, "b", drain(record.Drained))
		r.hear(record.RanOut, "a", drain(record.Incomplete))
		r.hear(record.Done, "c", drain(record.Drained), elsewhere)
		r.pass(time.Minute)
		r.want("b [web]", "a [web]", "c []")
	})
}

func TestANoticeIsTriedAgainUntilTheEndpointIsBack(t *testing.T) {
	hooked(t, func(r *hookRig) {
		r.down()
		r.hear(record.Announced, "a")
		r.hear(record.Done, "a", drain(record.Drained))
		r.hear(record.Announced, "b")
		r.hear(record.NodeCordoned, "b", drain(record.Draining))
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
		r.hear(record.Announced, "a")
		r.pass(time.Minute)
		r.up()
		r.pass(time.Minute)
		fresh := slices.DeleteFunc(r.told(), func(t notify.DeliveryResult) bool { return t.Err != nil && t.Again })
		if len(fresh) != 2 || fresh[0].Err == nil || fresh[0].GivenUp || fresh[1].Err != nil || len(r.told()) < 4 {
			t.Errorf("told were %+v", r.told())
		}
	})
}

func TestANoticeThatNobodyTakesIsGivenUpAfterADay(t *testing.T) {
	hooked(t, func(r *hookRig) {
		r.down()
		r.hear(record.Announced, "a")
		r.pass(25 * time.Hour)
		last := r.told()[len(r.told())-1]
		if !last.GivenUp || !strings.Contains(last.Err.Error(), "older than a day") {
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
		r.hear(record.Announced, "a")
		r.pass(2 * time.Second)
		heard := time.Now()
		for range 10_000 {
			r.hook.OnTransition(record.Transition{Kind: record.PodEvicted, At: time.Now(), Pod: "default/web"})
			r.hook.OnTransition(record.Transition{Kind: record.Announced, At: time.Now(), Entry: r.entry("b", record.Seen)})
		}
		if took := time.Since(heard); took != 0 {
			t.Errorf("it took %s to be heard", took)
		}
		r.pass(time.Hour)
	})
}

func TestStoppingTriesOnceMoreAndNotForLong(t *testing.T) {
	hooked(t, func(r *hookRig) {
		r.hear(record.Announced, "a")
		r.stop() // within the second in which a cordon might have begun
		r.want("a announced @0s")
		r.start()
		r.answers(func(ctx context.Context, _ string) error {
			<-ctx.Done()
			return ctx.Err()
		})
		r.hear(record.Announced, "b")
		asked := time.Now()
		r.stop()
		if took := time.Since(asked); took > 2*time.Second {
			t.Errorf("stopping took %s", took)
		}
		r.posted()
		r.up()
		r.start()
		r.pass(time.Second)
		r.want("b announced")
	})
}

// resume makes up for what the record knows and nobody was told.
func (r *hookRig) resume(entries ...record.Entry) {
	r.hook.Resume(entries, time.Now(), func(record.Entry) string { return "drain now" })
}

func TestNoticesSurviveARestartUnderTheSameID(t *testing.T) {
	hooked(t, func(r *hookRig) {
		r.down()
		r.hear(record.Announced, "a")
		r.hear(record.Done, "a", drain(record.Drained))
		r.stop()
		first := r.posted()[0]
		r.up()
		r.start()
		r.resume(r.entry("a", record.Drained))
		r.pass(time.Minute)
		again := r.posted()
		if len(again) != 2 || again[0] != (post{again[0].at, first.id, "a announced"}) || again[1].text != "a drained" || first.id == "" {
			t.Errorf("posted was %+v, and after a restart %+v", first, again)
		}
	})
}

func TestWhatACrashHasSwallowedIsMadeUpForOnce(t *testing.T) {
	hooked(t, func(r *hookRig) {
		r.resume(r.entry("a", record.Draining), r.entry("b", record.Incomplete))
		r.pass(10 * time.Second)
		r.wantInAnyOrder("a announced", "b announced", "b incomplete")
		for range 3 {
			r.stop()
			r.start()
			r.resume(r.entry("a", record.Drained), r.entry("b", record.Incomplete))
			r.pass(10 * time.Second)
		}
		r.want("a drained")
	})
}

func TestTheCordonThatACrashHasInterruptedGoesBeforeItsNotice(t *testing.T) {
	hooked(t, func(r *hookRig) {
		r.resume(r.entry("a", record.Draining))
		r.pass(100 * time.Millisecond)
		r.hear(record.Begun, "a", drain(record.Draining))
		r.pass(3 * time.Second)
		r.want()
		r.hear(record.NodeCordoned, "a", drain(record.Draining))
		r.want("a announced")
	})
}

func TestWhatIsOverIsMadeUpForOnlyIfItWasAnnounced(t *testing.T) {
	closed := func(r *hookRig, id string) record.Entry {
		e := r.entry(id, record.Closed)
		e.Ending = record.Rebooted
		return e
	}
	t.Run("before there was a webhook", func(t *testing.T) {
		hooked(t, func(r *hookRig) {
			r.resume(closed(r, "a"))
			r.pass(time.Minute)
			r.want()
		})
	})
	t.Run("announced", func(t *testing.T) {
		hooked(t, func(r *hookRig) {
			r.hear(record.Announced, "a")
			r.pass(time.Minute)
			r.stop()
			r.start()
			r.resume(closed(r, "a"))
			r.pass(time.Minute)
			r.want("a announced", "a rebooted")
		})
	})
	t.Run("long ago", func(t *testing.T) {
		hooked(t, func(r *hookRig) {
			r.hear(record.Announced, "a")
			r.pass(25 * time.Hour)
			r.resume(closed(r, "a"))
			r.pass(time.Minute)
			r.want("a announced")
		})
	})
}

func TestAWebhookThatIsSwitchedOnLaterTellsWhatStands(t *testing.T) {
	hooked(t, func(r *hookRig) {
		r.hook.Use(nil)
		r.hear(record.Announced, "a")
		r.pass(time.Minute)
		r.want()
		settings := r.settings
		r.hook.Use(&settings)
		r.resume(r.entry("a", record.Cordoned))
		r.pass(time.Minute)
		r.want("a announced", "a cordoned")
	})
}

func TestWhatIsMadeUpForNamesTheNode(t *testing.T) {
	hooked(t, func(r *hookRig) {
		r.useTemplate(`{{ .Node }}: {{ .Plan }}`)
		r.resume(r.entry("a", record.Seen))
		r.pass(time.Minute)
		r.want("ip-10-0-0-1: drain now")
	})
}

// A receiver that answers 400 to one message would keep all that is about the same event from being told.
func TestAMessageThatIsNeverTakenIsGivenUp(t *testing.T) {
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
		r.hear(record.Announced, "a")
		r.hear(record.Done, "a", drain(record.Drained))
		r.pass(time.Hour)
		r.want("a announced", "a drained")
		if first := r.told()[0]; !first.GivenUp || first.Err == nil {
			t.Errorf("told was %+v", first)
		}
	})
}

func TestAnEventThatIsMetAnewIsToldAnew(t *testing.T) {
	hooked(t, func(r *hookRig) {
		for range 2 {
			r.hear(record.Announced, "a")
			r.hear(record.Done, "a", drain(record.Drained))
			r.hear(record.ClosedWith, "a", endsAs(record.Withdrawn))
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

func TestOfEventsThatArePutOffTogetherEachIsTold(t *testing.T) {
	hooked(t, func(r *hookRig) {
		r.useTemplate(`{{ .EventID }} {{ .Outcome }} {{ .Action }}; {{ .Text }}`)
		for _, id := range []string{"a", "b", "c"} {
			r.hear(record.Done, id, drain(record.Drained))
		}
		r.posted()
		uncordoned := func(h *record.Transition) { h.Action = "uncordon" }
		r.hear(record.Done, "a", uncordoned)
		r.hear(record.PutOff, "b", uncordoned)
		r.hear(record.PutOff, "c")
		const about = "nth: node ip-10-0-0-1: spot-interruption: put off; "
		r.want("a moved uncordon; "+about+"the node takes pods again until then",
			"b moved uncordon; "+about+"the node takes pods again until then",
			"c moved ; "+about+"nothing is done for it until then, and the node stays as it is")
	})
}

func TestWhatWasPutOffIsToldAgainWhenItsTimeComes(t *testing.T) {
	hooked(t, func(r *hookRig) {
		r.use(func(s *notify.WebhookSettings) { s.AtClose = false })
		r.hear(record.Announced, "a")
		r.hear(record.Done, "a", drain(record.Drained))
		r.hear(record.Done, "a", func(h *record.Transition) { h.Action, h.Entry.Phase = "uncordon", record.Seen })
		r.hear(record.Announced, "a")
		r.hear(record.Done, "a", drain(record.Drained))
		r.want("a announced", "a drained", "a drained")
	})
}
