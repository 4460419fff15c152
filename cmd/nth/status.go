package main

import (
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds"
	"github.com/nth-project/nth/pkg/kubelet"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// statusReporter is the agent's, and adds what only the wiring knows: what process this is, what proves the identity, and what is
// switched off.
type statusReporter struct {
	next    statusWriter
	program string
	dryRun  bool
	failing func() []string // what does not work at present of what is only told

	mu       sync.Mutex
	identity state.IdentityStatus
	degraded []string
	// ignored, unpolled, unheard and unasked say why kinds are off: by the settings, by those for the instance's life cycle or of
	// the start, for want of a logind, and of a reservation.
	ignored, unpolled, unheard, unasked map[event.Kind]string
	// target is the state that the Auto Scaling group wants the instance to be in, and hook what is known of its hooks.
	target, hook string
}

// newStatusReporter returns a board that shows to next. failing lists what does not work at present of what is only told, and degraded what is wrong
// with the settings of it.
func newStatusReporter(next statusWriter, failing func() []string, degraded []string, cfg config.Config) *statusReporter {
	version, _ := program.BuildVersion()
	b := &statusReporter{next: next, failing: failing, degraded: degraded, program: version, dryRun: cfg.DryRun}
	b.setIgnored(policyOf(cfg.Events))
	return b
}

// Show implements agent.StatusWriter.
func (b *statusReporter) Show(s state.Status) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.Program, s.PID, s.Degraded = b.program, os.Getpid(), slices.Concat(b.degraded, b.failing())
	trouble := s.Identity.Trouble
	s.Identity = b.identity
	s.Identity.Trouble = trouble
	s.TargetState, s.Hook = b.target, b.hook
	if b.dryRun {
		s.Off = append(s.Off, state.OffStatus{What: "writing to the cluster", Why: "this is a dry run"})
	}
	for _, kind := range event.Kinds() {
		if why := b.why(kind); why != "" {
			s.Off = append(s.Off, state.OffStatus{What: string(kind), Why: why})
		}
	}
	// The agent compares its next status with this one, whose documents must stay as they are.
	s.Documents = slices.DeleteFunc(slices.Clone(s.Documents), func(d state.DocumentStatus) bool {
		return b.unpolled[d.Kind] != "" || b.unasked[d.Kind] != ""
	})
	b.next.Show(s)
}

// why is the reason for which a kind is off; "" if it is not. b.mu is held.
func (b *statusReporter) why(kind event.Kind) string {
	for _, reasons := range []map[event.Kind]string{b.ignored, b.unheard, b.unpolled, b.unasked} {
		if why := reasons[kind]; why != "" {
			return why
		}
	}
	return ""
}

func (b *statusReporter) set(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}

// setIgnored notes which kinds of events the settings switch off.
func (b *statusReporter) setIgnored(rules policy.Settings) {
	ignored := map[event.Kind]string{}
	for _, kind := range event.Kinds() {
		if rules[kind].Action == policy.Ignore {
			ignored[kind] = fmt.Sprintf("by configuration: events.%s.action = %q", kind, policy.Ignore)
		}
	}
	b.set(func() { b.ignored = ignored })
}

// degrade notes what is wrong with what is only told.
func (b *statusReporter) degrade(faults []string) { b.set(func() { b.degraded = faults }) }

// scoped notes what is not polled for on an instance of this life cycle.
func (b *statusReporter) scoped(scope imds.Scope) {
	why := "ignored when nth started"
	if scope.Standby {
		why = fmt.Sprintf("%s instances are excluded by imds.life_cycles", scope.LifeCycle)
	}
	unpolled := map[event.Kind]string{}
	for _, kind := range event.PolledKinds() {
		if !slices.Contains(scope.Kinds, kind) {
			unpolled[kind] = why
		}
	}
	b.set(func() { b.unpolled = unpolled })
}

// unreserved notes why EC2 is not asked for the end of a reservation.
func (b *statusReporter) unreserved(why string) {
	b.set(func() { b.unasked = map[event.Kind]string{event.ReservationEnd: why} })
}

// hearing notes whether a shutdown or a sleep is announced by logind; err says why not.
func (b *statusReporter) hearing(err error) {
	unheard := map[event.Kind]string{}
	if err != nil {
		unheard[event.Shutdown], unheard[event.Hibernation] = err.Error(), err.Error()
	}
	b.set(func() { b.unheard = unheard })
}

// identified notes what proves the identity.
func (b *statusReporter) identified(id kubelet.Identity) {
	b.set(func() {
		b.identity = state.IdentityStatus{Credential: id.Credential, Source: id.Source, Server: id.Server}
	})
}

// targeted notes what the Auto Scaling group wants the instance to be.
func (b *statusReporter) targeted(state string) { b.set(func() { b.target = state }) }

// hooked notes what is known of the group's lifecycle hooks.
func (b *statusReporter) hooked(text string) { b.set(func() { b.hook = text }) }
