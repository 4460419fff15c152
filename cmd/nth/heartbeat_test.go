package main_test

import (
	"testing"
	"testing/synctest"
	"time"

	nth "github.com/nth-project/nth/cmd/nth"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
)

func TestHeartbeat_WhileNthCouldHearAndAct(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*state.Status)
		then   time.Duration
		alive  bool
	}{
		"all is well":                           {func(*state.Status) {}, 20 * time.Second, true},
		"nothing is looked for":                 {func(s *state.Status) { s.Documents = nil }, 0, true},
		"its loop hangs":                        {func(*state.Status) {}, 31 * time.Second, false},
		"there is no identity yet":              {func(s *state.Status) { s.Node = "" }, 0, false},
		"its credential is refused":             {func(s *state.Status) { s.Identity.Trouble = "refused" }, 0, false},
		"a look fails":                          {func(s *state.Status) { s.Documents[1].Trouble = "connection refused" }, 0, false},
		"a document has never been looked at":   {func(s *state.Status) { s.Documents[0].LastGood = time.Time{} }, 0, false},
		"it has stopped":                        {func(s *state.Status) { s.Stopped = time.Now() }, 0, false},
		"something is announced, and it drains": {func(s *state.Status) { s.Step = &state.StepStatus{Action: "drain"} }, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				show, alive := nth.Watching()
				if alive() {
					t.Errorf("it is alive before it has begun")
				}
				status := state.Status{Node: "node-1", Documents: []state.DocumentStatus{
					{Kind: event.SpotInterruption, LastGood: time.Now()}, {Kind: event.ASGTermination, LastGood: time.Now()},
				}}
				c.change(&status)
				show(status)
				time.Sleep(c.then)
				if alive() != c.alive {
					t.Errorf("it is alive: %t, want %t", alive(), c.alive)
				}
			})
		})
	}
}
