package agent_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// board remembers what it was shown.
type board struct {
	mu    sync.Mutex
	shown []state.Status
}

func (b *board) Show(s state.Status) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shown = append(b.shown, s)
}

func (b *board) all() []state.Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.shown)
}

func (b *board) last() state.Status {
	all := b.all()
	return all[len(all)-1]
}

func withBoard(t *testing.T, f func(r *rig, b *board)) {
	t.Helper()
	bubble(t, func(r *rig) {
		b := &board{}
		r.cfg.Board = b
		f(r, b)
	})
}

func TestTheBoardShowsADrain(t *testing.T) {
	t.Parallel()
	withBoard(t, func(r *rig, b *board) {
		r.node.toGuard(func(_ context.Context, g *guard) {
			g.pods(
				drain.Progress{Kind: state.PodsFound, Total: 3, Left: 3},
				drain.Progress{Kind: state.PodHeld, Pod: "default/web-1", Detail: "web", Total: 3, Left: 2},
			)
		})
		r.run()
		r.announce(r.spot("a", 2*time.Minute))
		r.pass(2 * time.Second)
		got := b.last()
		if got.Version != state.StatusVersion || got.Node != "node-a" || !got.Started.Equal(r.start) || !got.Updated.Equal(r.in(2*time.Second)) {
			t.Errorf("the board shows %+v", got)
		}
		if want := "draining node node-a for spot-interruption: 1 of 3 pods gone, 118 s left, held by PDB web"; got.Sentence != want {
			t.Errorf("the sentence is %q, want %q", got.Sentence, want)
		}
		step := got.Step
		if step == nil || step.Action != "drain" || step.Event != "a" || !step.Hard || step.PodsTotal != 3 || step.PodsLeft != 2 ||
			!step.Deadline.Equal(r.in(2*time.Minute)) || step.HeldBy["default/web-1"] != "PDB web" {
			t.Errorf("the step is %+v", step)
		}
		if len(got.Events) != 1 || got.Events[0].Phase != state.Draining || got.Events[0].Kind != event.SpotInterruption {
			t.Errorf("the events are %+v", got.Events)
		}
		if len(got.Documents) != 4 || !got.Documents[0].LastGood.Equal(r.start) {
			t.Errorf("the documents are %+v", got.Documents)
		}
	})
}

func TestTheBoardShowsWhatIsWrong(t *testing.T) {
	t.Parallel()
	withBoard(t, func(r *rig, b *board) {
		r.ident.name, r.ident.err = "", errors.New("there is no kubeconfig")
		r.run()
		r.trouble(event.SpotInterruption, "connection refused")
		r.pass(time.Second)
		got := b.last()
		if got.Identity.Trouble != "there is no kubeconfig" {
			t.Errorf("the identity is %+v", got.Identity)
		}
		want := state.DocumentStatus{Kind: event.SpotInterruption, Trouble: "connection refused", Since: r.start.Round(0)}
		if len(got.Documents) != 1 || got.Documents[0] != want {
			t.Errorf("the documents are %+v, want %+v", got.Documents, want)
		}
	})
}

func TestAQuietBoardIsRefreshedNowAndThen(t *testing.T) {
	t.Parallel()
	withBoard(t, func(r *rig, b *board) {
		r.run()
		for range 600 {
			r.announce()
			r.pass(time.Second / 10)
		}
		if shown := len(b.all()); shown < 6 || shown > 9 {
			t.Errorf("the board was shown %d statuses in a quiet minute, want one in ten seconds and few at the start", shown)
		}
	})
}

func TestABusyBoardIsShownOneStatusASecond(t *testing.T) {
	t.Parallel()
	withBoard(t, func(r *rig, b *board) {
		r.cfg.Beat = 100 * time.Millisecond
		r.node.toGuard(stuck)
		r.run()
		r.announce(r.spot("a", time.Hour))
		r.pass(time.Minute)
		if shown := len(b.all()); shown < 59 || shown > 62 {
			t.Errorf("the board was shown %d statuses in a minute, want about 60", shown)
		}
	})
}

func TestTheBoardsLastWordIsThatNTHStoppedAsAsked(t *testing.T) {
	t.Parallel()
	withBoard(t, func(r *rig, b *board) {
		r.node.toGuard(stuck)
		r.run()
		r.announce(r.spot("a", time.Hour))
		if !b.last().Stopped.IsZero() {
			t.Error("it is shown as stopped while it runs")
		}
		r.end(nil)
		if got := b.last(); got.Stopped.IsZero() || got.Step != nil || len(got.Events) != 1 {
			t.Errorf("the board shows %+v", got)
		}
	})
}

// numb is a source that can lose its sight.
type numb struct {
	source
	mu    sync.Mutex
	stuck error
}

func (n *numb) Stuck() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stuck
}

func (n *numb) become(stuck error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stuck = stuck
}

func TestAStuckSourceStarvesTheWatchdog(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		eyes := &numb{source: source{fail: make(chan error, 1)}}
		r.cfg.Sources = append(r.cfg.Sources, eyes)
		r.cfg.Beat = time.Second
		beats := func() (n int) {
			r.service.set(func() { n = r.service.beats })
			return n
		}
		r.run()
		r.pass(10 * time.Second)
		if beats() != 10 {
			t.Errorf("%d beats in ten seconds, want 10", beats())
		}
		eyes.become(errors.New("looking for spot-interruption: neither an answer nor an error for 1m1s"))
		r.pass(10 * time.Second)
		if beats() != 10 {
			t.Errorf("the watchdog was fed %d times for a source that is stuck", beats()-10)
		}
		r.wantSaid(systemd.SourceTrouble, "error: event source stalled; waiting for the service manager to restart nth")
		eyes.become(nil)
		r.pass(10 * time.Second)
		if beats() != 20 {
			t.Errorf("%d beats after it goes on again, want 10", beats()-10)
		}
	})
}
