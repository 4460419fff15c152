package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/systemd"
)

// course are the messages about what is done to the node, in their order, where a drain of one pod goes well.
var course = []string{
	systemd.EventSeen, systemd.DrainStarted, systemd.Cordoned, systemd.DrainStarted, systemd.PodEvicted, systemd.PodGone, systemd.Drained,
}

// mustHaveDrainedAsEver fails the test unless nth said of its work what it says without a webhook.
func (s *stage) mustHaveDrainedAsEver(t *testing.T) {
	t.Helper()
	var said []string
	for _, e := range s.nth.Logged("") {
		id := e.Fields["MESSAGE_ID"]
		if slices.Contains(course, id) || id == systemd.PodDeleted || id == systemd.PodHeld || id == systemd.DrainIncomplete {
			said = append(said, id)
		}
	}
	if !slices.Equal(said, course) {
		t.Errorf("the drain went\n\t%s\nwant\n\t%s", strings.Join(said, "\n\t"), strings.Join(course, "\n\t"))
	}
}

var notices = []string{"spot-interruption announced", "spot-interruption drained"}

func TestADrainWithoutAWebhookGoesItsCourse(t *testing.T) {
	s := play(t, "")
	s.imds.SetSpot("terminate", twoMinutes())
	s.waitDrained(t)
	s.mustHaveDrainedAsEver(t)
}

func TestAnEndpointThatDoesNotWorkChangesNothingAndIsToldWhenItDoes(t *testing.T) {
	for name, behave := range map[string]func(http.ResponseWriter, *http.Request) bool{
		"it hangs": hangs, "it resets connections": resets, "it answers 500": fails, "it answers too late": dawdles,
	} {
		t.Run(name, func(t *testing.T) {
			e := newEndpoint(t)
			e.does(behave)
			s := play(t, e.settings())
			s.imds.SetSpot("terminate", twoMinutes())
			s.waitDrained(t)
			e.waitAttempt(t)
			s.mustHaveDrainedAsEver(t)
			s.nth.WaitLog(t, systemd.NoticeTrouble)
			e.works()
			e.waitFor(t, notices...)
			s.mustKeepSecret(t)
		})
	}
}

func TestWebhook_reports_nothing_twice_after_a_kill(t *testing.T) {
	e := newEndpoint(t)
	s := play(t, e.settings())
	s.imds.SetSpot("terminate", twoMinutes())
	s.waitDrained(t)
	e.waitFor(t, notices...)
	s.nth.Kill()
	s.start(t)
	s.nth.WaitReady(t)
	s.stopAfterLooks(t)
	e.waitFor(t, notices...)
}

func TestWebhook_that_a_reload_brings_reports_from_then_on(t *testing.T) {
	e := newEndpoint(t)
	s := play(t, "")
	s.nth.WaitReady(t)
	s.options.Settings = e.settings()
	s.machine.Configure(t, s.options)
	s.nth.Reload(t)
	s.imds.SetSpot("terminate", twoMinutes())
	s.waitDrained(t)
	e.waitFor(t, notices...)
}

func TestADryRunIsToldAsOne(t *testing.T) {
	e := newEndpoint(t)
	s := play(t, dryRun+strings.Replace(e.settings(), "{{ .EventKind }}", "{{ .DryRun }}", 1))
	s.imds.SetSpot("terminate", twoMinutes())
	s.mustOnlyTalk(t)
	e.waitFor(t, "true announced", "true drained")
}

func TestCheckPostsATestOnlyWhenItIsAsked(t *testing.T) {
	e := newEndpoint(t)
	s := prepare(t, e.settings())
	mustSay(t, check(t, s.machine), `ok    webhook     .*`)
	if e.attempts > 0 {
		t.Error("a test was posted that nobody has asked for")
	}
	mustSay(t, check(t, s.machine, "--webhook"), `ok    webhook     test message delivered`)
	if got := e.texts(); !slices.Equal(got, []string{"spot-interruption announced"}) || e.taken[0].id != "test" {
		t.Errorf("posted were %q", e.taken)
	}
	e.does(fails)
	mustSay(t, check(t, s.machine, "--webhook"), `fail  webhook     test message rejected: it answers 500 Internal Server Error`)
}

func TestATemplateThatCannotBeUsedKeepsNobodyFromDraining(t *testing.T) {
	wrong := "[webhook]\n%stemplate = '''{\n\"text\": \"{{ .Nope }}\"}'''\n"
	fault := `webhook.template:2:12: executing "webhook.template" at <.Nope>: can't evaluate field Nope in type notify.Fields`
	for _, posts := range []bool{true, false} {
		t.Run(fmt.Sprintf("with an address: %t", posts), func(t *testing.T) {
			e := newEndpoint(t)
			address := ""
			if posts {
				address = fmt.Sprintf("url = %q\n", e.url())
			}
			s := prepare(t, fmt.Sprintf(wrong, address))
			for _, of := range []struct {
				args   []string
				status int
			}{{[]string{"check"}, 1}, {[]string{"config", "--check"}, 78}} {
				got := s.machine.Command(t, of.args...)
				if said := got.Stdout + got.Stderr; got.Status != of.status || !strings.Contains(said, fault) {
					t.Errorf("nth %s ended with %d: %s", of.args, got.Status, said)
				}
			}
			s.start(t)
			s.nth.WaitReady(t)
			if posts {
				s.nth.WaitLog(t, systemd.ConfigInvalid)
				poll(t, "nth status names the fault", func() bool {
					got := s.machine.Command(t, "status")
					return strings.Contains(got.Stdout, "degraded") && strings.Contains(got.Stdout, fault)
				})
			}
			s.imds.SetSpot("terminate", twoMinutes())
			s.waitDrained(t)
		})
	}
}

func TestSettingsOfTheWebhookThatAreWrongAtAReloadChangeNothing(t *testing.T) {
	e := newEndpoint(t)
	s := prepare(t, e.settings())
	s.start(t)
	s.nth.WaitReady(t)
	s.options.Settings = strings.Replace(e.settings(), ".Outcome", "outcome", 1)
	s.machine.Configure(t, s.options)
	s.nth.Reload(t)
	s.nth.WaitLog(t, systemd.ConfigInvalid)
	s.imds.SetSpot("terminate", twoMinutes())
	s.waitDrained(t)
	e.waitFor(t, notices...)
}
