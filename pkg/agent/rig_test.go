package agent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// rig is an agent among the fakes of fakes_test.go, on a clock of its own: an hour takes no time, and a measured time is exact.
type rig struct {
	t       *testing.T
	cfg     agent.Config
	tape    *tape
	node    *node
	record  *memory
	service *service
	source  *source
	ident   *identity
	hook    *logtest.Hook
	heard   *ear
	board   *board

	start time.Time
	stop  context.CancelFunc
	ended chan struct{}
}

// bubble runs f with a rig that is not running yet. What still runs at the end is stopped, and must stop at once.
func bubble(t *testing.T, f func(r *rig)) {
	t.Helper()
	t.Parallel()
	repeat(t, 1, f)
}

// each runs f for each row, in a bubble of its own.
func each[R any](t *testing.T, rows map[string]R, f func(r *rig, row R)) {
	t.Helper()
	for name, row := range rows {
		t.Run(name, func(t *testing.T) { bubble(t, func(r *rig) { f(r, row) }) })
	}
}

// repeat runs f so many times, for what depends on the order in which goroutines run.
func repeat(t *testing.T, times int, f func(r *rig)) {
	t.Helper()
	for range times {
		synctest.Test(t, func(t *testing.T) {
			logger, hook := logtest.NewNullLogger()
			logger.SetOutput(io.Discard)
			tp := &tape{}
			r := &rig{
				t: t, tape: tp, hook: hook, start: time.Now(), heard: &ear{}, board: &board{},
				node: &node{t: t, tape: tp, ways: ways{guard: empty, uncordon: lifts, claim: claims(nil)}}, record: &memory{tape: tp, released: make(chan struct{})}, service: &service{},
				source: &source{}, ident: &identity{name: "node-a"},
			}
			r.cfg = agent.Config{
				Sources: []agent.Source{r.source}, Node: r.node, Identity: r.ident, Record: r.record, Service: r.service,
				Policy: rules(), BootID: "boot-1", Log: logrus.NewEntry(logger), Board: r.board,
				Listeners: []agent.Listener{r.heard},
			}
			f(r)
			if r.stop != nil {
				r.end()
			}
			close(r.record.released)
		})
	}
}

// rules are the defaults of the configuration, as far as they matter here.
func rules() policy.Settings {
	return policy.Settings{
		event.SpotInterruption: {
			Action: policy.Drain, Hibernate: policy.Cordon, Hard: true, WithdrawnAfter: 30 * time.Second,
		},
		event.RebalanceRecommendation: {Action: policy.Notify, WithdrawnAfter: 30 * time.Second},
		event.ScheduledMaintenance: {
			Action: policy.Drain, Lead: 10 * time.Minute, WithdrawnAfter: time.Hour,
			Codes: map[string]policy.When{"system-reboot": policy.Lead},
		},
		event.ASGTermination: {Action: policy.Drain, Hard: true, Budget: 15 * time.Minute, WithdrawnAfter: 30 * time.Second},
	}
}

// rule changes the rule of a kind before the agent runs.
func (r *rig) rule(kind event.Kind, change func(*policy.Rule)) {
	rule := r.cfg.Policy[kind]
	change(&rule)
	r.cfg.Policy[kind] = rule
}

func cordons(rule *policy.Rule) { rule.Action = policy.Cordon }

// run starts the agent and lets it settle.
func (r *rig) run() {
	r.t.Helper()
	ctx, stop := context.WithCancel(r.t.Context())
	r.stop, r.ended = stop, make(chan struct{})
	go func() { defer close(r.ended); agent.New(r.cfg).Run(ctx) }()
	synctest.Wait()
}

// runFor starts the agent and lets it do what the events ask for, which is no longer on the tape then.
func (r *rig) runFor(events ...event.Event) {
	r.t.Helper()
	r.run()
	r.announce(events...)
	r.tape.take()
}

// end stops the agent, at once.
func (r *rig) end() {
	r.t.Helper()
	if took := r.endWithin(); took > 0 {
		r.t.Errorf("Run took %s to end", took)
	}
}

func (r *rig) endWithin() (took time.Duration) {
	r.t.Helper()
	before := time.Now()
	r.stop()
	<-r.ended
	r.stop = nil
	return time.Since(before)
}

// restart ends the agent, has something done meanwhile, and starts it again. What was seen and heard before is forgotten.
func (r *rig) restart(meanwhile ...func()) {
	r.t.Helper()
	r.end()
	r.tape.take()
	r.heard.take()
	r.hook.Reset()
	for _, do := range meanwhile {
		do()
	}
	r.run()
}

// pass lets time pass, and what happens in it.
func (r *rig) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// announce is a good look at everything: these events and no others.
func (r *rig) announce(events ...event.Event) {
	for _, kind := range event.Kinds() {
		others := func(ev event.Event) bool { return ev.Kind != kind }
		r.source.sink.Snapshot(event.Snapshot{Kind: kind, Events: slices.DeleteFunc(slices.Clone(events), others)})
		synctest.Wait()
	}
}

// look announces events and lets ten seconds pass.
func (r *rig) look(events ...event.Event) {
	r.announce(events...)
	r.pass(10 * time.Second)
}

func (r *rig) trouble(kind event.Kind, text string) {
	r.source.sink.Trouble(kind, errors.New(text))
	synctest.Wait()
}

func (r *rig) in(d time.Duration) time.Time { return r.start.Add(d).UTC() }

func (r *rig) spot(id string, deadline time.Duration) event.Event {
	return event.Event{ID: id, Kind: event.SpotInterruption, Code: "terminate", State: event.Pending, Deadline: r.in(deadline)}
}

func (r *rig) hibernating(id string, deadline time.Duration) event.Event {
	ev := r.spot(id, deadline)
	ev.Code = "hibernate"
	return ev
}

func (r *rig) stopping(id string, deadline time.Duration) event.Event {
	return event.Event{ID: id, Kind: event.ScheduledMaintenance, Code: "instance-stop", State: event.Pending, Deadline: r.in(deadline)}
}

func (r *rig) rebooting(id string, deadline time.Duration) event.Event {
	ev := r.stopping(id, deadline)
	ev.Code = "system-reboot"
	return ev
}

func canceled(ev event.Event) event.Event {
	ev.State = event.Canceled
	return ev
}

// recommended is EC2's advice to move away.
func recommended(id string) event.Event {
	return event.Event{ID: id, Kind: event.RebalanceRecommendation, State: event.Pending}
}

// terminated is the event of a group that terminates the instance.
func terminated(id string) event.Event {
	return event.Event{ID: id, Kind: event.ASGTermination, Code: "Terminated", State: event.Pending}
}

// drained is an entry of an event for which the node was cordoned in that boot.
func (r *rig) drained(ev event.Event, phase state.Phase, boot string) state.Entry {
	return state.Entry{
		Event: ev, Phase: phase, BootID: boot, FirstSeen: r.start, Changed: r.start, ActedAt: r.start,
		OnNode: true, CordonedAt: r.start,
	}
}

func (r *rig) entry(id string) state.Entry {
	r.t.Helper()
	for _, e := range r.record.Entries() {
		if e.Event.ID == id {
			return e
		}
	}
	r.t.Fatalf("the record has no event %q", id)
	return state.Entry{}
}

func (r *rig) wantPhase(id string, want state.Phase) state.Entry {
	r.t.Helper()
	e := r.entry(id)
	if e.Phase != want {
		r.t.Errorf("after %s, %s is %s, want %s", time.Since(r.start), id, e.Phase, want)
	}
	return e
}

// wantTape expects these calls since it was last asked, in this order.
func (r *rig) wantTape(want ...string) {
	r.t.Helper()
	r.compare("what was done", r.tape.take(), want)
}

// wantHeard expects that listeners have heard this since it was last asked.
func (r *rig) wantHeard(want ...string) {
	r.t.Helper()
	r.compare("what listeners heard", r.heard.take(), want)
}

// said returns the messages with an ID, with their levels.
func (r *rig) said(id string) []string {
	var said []string
	for _, e := range r.hook.AllEntries() {
		if e.Data[systemd.FieldMessageID] == id {
			said = append(said, e.Level.String()+": "+e.Message)
		}
	}
	return said
}

func (r *rig) wantSaid(id string, want ...string) {
	r.t.Helper()
	r.compare("what was logged", r.said(id), want)
}

// wantStatus expects a sentence at the next tick.
func (r *rig) wantStatus(want string) {
	r.t.Helper()
	r.pass(time.Second)
	r.compare("the status", []string{r.service.sentence()}, []string{want})
}

func (r *rig) compare(what string, got, want []string) {
	r.t.Helper()
	if !slices.Equal(got, want) {
		r.t.Errorf("after %s, %s is\n\t%s\nwant\n\t%s", time.Since(r.start), what, strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// tape is the order in which things were done.
type tape struct {
	mu    sync.Mutex
	calls []string
}

func (t *tape) add(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls = append(t.calls, fmt.Sprintf(format, args...))
}

func (t *tape) take() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	calls := t.calls
	t.calls = nil
	return calls
}
