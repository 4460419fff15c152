package main_test

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/rehearsal"
	"github.com/nth-project/nth/pkg/state"
)

// leave has a daemon of the bench leave a status.
func (b *bench) leave(t *testing.T, s state.Status) {
	t.Helper()
	writeStatus(t, filepath.Join(b.host, "run"), s)
}

// join gives the machine that checks a kubeconfig of a node, whatever the daemon sees of it.
func (b *bench) join(t *testing.T) {
	t.Helper()
	server := httptest.NewServer(rehearsal.New("00000000-0000-0000-0000-000000000001"))
	t.Cleanup(server.Close)
	b.put(t, "absent", string(rehearsal.Kubeconfig(server.URL)))
}

// watching is the status of a daemon that has nothing to do.
func watching() state.Status {
	now := time.Now()
	return state.Status{
		Version: state.StatusVersion, PID: os.Getpid(), Started: now.Add(-time.Hour), Updated: now,
		Node: rehearsal.Node, Documents: []state.DocumentStatus{{Kind: event.SpotInterruption, LastGood: now}},
	}
}

func TestCheckFailsUnlessTheDaemonRunsAndCouldActItself(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*state.Status) // nil leaves no status
		joined bool                // as far as the check can see
		want   string
	}{
		"all is well":            {func(*state.Status) {}, true, `ok    daemon      process \d+ watches for node made-up-node`},
		"it was never started":   {nil, true, `fail  daemon      nth is not running, or has just started: no status in .*/run: this node would not be drained.*`},
		"it was stopped":         {func(s *state.Status) { s.Stopped = s.Updated }, true, `fail  daemon      nth is not running: stopped at .*`},
		"it has crashed":         {func(s *state.Status) { s.PID = 1 << 30 }, true, `fail  daemon      nth is not running: process 1073741824 died.*`},
		"it hangs":               {func(s *state.Status) { s.Program = hung }, true, `fail  daemon      nth may be hung: .*`},
		"it sees no kubeconfig":  {without, true, `fail  daemon      it has no credential: there is no kubeconfig\. This check has found one in .*/absent: .*PrivateTmp=.*`},
		"nor does anybody":       {without, false, `fail  daemon      it has no credential: there is no kubeconfig`},
		"its credential expired": {func(s *state.Status) { s.Identity.Trouble = "401" }, true, `fail  daemon      it has no credential: 401\. .*`},
		"it is another node's":   {func(s *state.Status) { s.Node = "other" }, true, `fail  daemon      it acts for node other, and the credential in .*/absent is of node made-up-node: .*`},
		"it hears nothing":       {deafFor(time.Minute), true, `fail  daemon      it cannot read spot-interruption since .*: refused`},
		"it missed one look":     {deafFor(time.Second), true, `ok    daemon      process \d+ watches for node made-up-node`},
		"it is only talking":     {func(s *state.Status) { s.DryRun = true }, true, `warn  daemon      it runs as a dry run: .*`},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			if c.joined {
				b.join(t)
			}
			if c.change != nil {
				s := watching()
				c.change(&s)
				b.leave(t, s)
			}
			mustSay(t, b.check(t, ""), c.want)
		})
	}
}

func without(s *state.Status) { s.Node, s.Identity.Trouble = "", "there is no kubeconfig" }

func deafFor(d time.Duration) func(*state.Status) {
	return func(s *state.Status) {
		s.Documents[0].Trouble, s.Documents[0].Since = "refused", s.Updated.Add(-d)
	}
}

// Who has just installed nth looks at once, and must not be told what will be over in a moment.
func TestCheckGivesADaemonThatBeginsAMomentToFindItsCredential(t *testing.T) {
	b := newBench(t)
	b.join(t)
	s := watching()
	s.Started = s.Updated
	without(&s)
	b.leave(t, s)
	joined := time.AfterFunc(time.Second, func() { b.leave(t, watching()) })
	defer joined.Stop()
	if said := b.check(t, ""); strings.Contains(said, "fail  daemon") {
		t.Errorf("it says\n%s", said)
	}
}
