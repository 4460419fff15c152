package agent_test

import (
	"context"
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

// rig is an agent among fakes, on a clock of its own: an hour takes no time, and a time measured is exact.
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

	start time.Time
	agent *agent.Agent
	stop  context.CancelFunc
	ended chan error
}

// bubble runs f with a rig that is not running yet; what still runs at the end is stopped, and must stop at once.
func bubble(t *testing.T, f func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		logger, hook := logtest.NewNullLogger()
		logger.SetOutput(io.Discard)
		tp := &tape{}
		r := &rig{
			t: t, tape: tp, hook: hook, start: time.Now(),
			node: newNode(t, tp), record: &memory{tape: tp, released: make(chan struct{})}, service: &service{tape: tp},
			source: &source{fail: make(chan error, 1)}, ident: &identity{name: "node-a"},
		}
		r.cfg = agent.Config{
			Sources: []agent.Source{r.source}, Node: r.node, Identity: r.ident, Record: r.record, Service: r.service,
			Policy: rules(), BootID: "boot-1", Log: logrus.NewEntry(logger),
		}
		f(r)
		if r.stop != nil {
			r.end(nil)
		}
		close(r.record.released)
	})
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

// run starts the agent and lets it settle.
func (r *rig) run() {
	r.t.Helper()
	ctx, stop := context.WithCancel(r.t.Context())
	ended := make(chan error, 1)
	r.stop, r.ended, r.agent = stop, ended, agent.New(r.cfg)
	go func() { ended <- r.agent.Run(ctx) }()
	synctest.Wait()
}

// runFor starts the agent and lets it do what the events ask for, which is no longer on the tape then.
func (r *rig) runFor(events ...event.Event) {
	r.t.Helper()
	r.run()
	r.announce(events...)
	r.tape.take()
}

// end stops the agent, at once, and expects what it says.
func (r *rig) end(want error) {
	r.t.Helper()
	before := time.Now()
	r.stop()
	if err := <-r.ended; err != want { //nolint:errorlint // that very error
		r.t.Errorf("Run returned %v, want %v", err, want)
	}
	if took := time.Since(before); took > 0 {
		r.t.Errorf("Run took %s to end", took)
	}
	r.stop = nil
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

func (r *rig) trouble(kind event.Kind, text string) {
	r.source.sink.Trouble(kind, fmt.Errorf("%s", text))
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

// recommended is EC2's advice to move away.
func recommended(id string) event.Event {
	return event.Event{ID: id, Kind: event.RebalanceRecommendation, State: event.Pending}
}

// terminated is the event of a group that terminates the instance.
func terminated(id string) event.Event {
	return event.Event{ID: id, Kind: event.ASGTermination, Code: "Terminated", State: event.Pending}
}

// wantTape expects these calls since it was last asked, in this order.
func (r *rig) wantTape(want ...string) {
	r.t.Helper()
	if got := r.tape.take(); !slices.Equal(got, want) {
		r.t.Errorf("after %s, what was done is\n\t%s\nwant\n\t%s", time.Since(r.start),
			strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

func (r *rig) entry(id string) state.Entry {
	r.t.Helper()
	for _, e := range r.record.Entries() {
		if e.Event.ID == id {
			return e
		}
	}
	r.t.Fatalf("the record knows no event %q", id)
	return state.Entry{}
}

func (r *rig) wantStatus(want string) {
	r.t.Helper()
	if got := r.service.sentence(); got != want {
		r.t.Errorf("after %s, the status is\n\t%q, want\n\t%q", time.Since(r.start), got, want)
	}
}

// said returns the messages of a kind, with their levels.
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
	if got := r.said(id); !slices.Equal(got, want) {
		r.t.Errorf("what was said is\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
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
