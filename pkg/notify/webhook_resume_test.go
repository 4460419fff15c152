package notify_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/record"
)

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
		uncordoned := func(h *record.Happening) { h.Action = "uncordon" }
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
		r.hear(record.Done, "a", func(h *record.Happening) { h.Action, h.Entry.Phase = "uncordon", record.Seen })
		r.hear(record.Announced, "a")
		r.hear(record.Done, "a", drain(record.Drained))
		r.want("a announced", "a drained", "a drained")
	})
}
