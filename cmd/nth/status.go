package main

import (
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/identity"
	"github.com/nth-project/nth/pkg/imds"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// statusReporter adds to the agent's status what the agent does not know: the process, the identity, and what is off. It passes the result to
// next.
type statusReporter struct {
	next    statusWriter
	program string
	dryRun  bool
	failing func() []string // what does not work at present, other than drains

	mu       sync.Mutex
	identity state.IdentityStatus
	degraded []string
	// ignored, unpolled and unannounced say why kinds are off. The settings ignore the kind; the settings exclude the instance's life cycle, or
	// ignored the kind at the start; logind does not announce it.
	ignored, unpolled, unannounced map[event.Kind]string
	// target is the instance's target state in its Auto Scaling group, and hook what is known of the group's hooks.
	target, hook string
	// noRequest says why the file of "nth drain" cannot be read; "" if it can.
	noRequest string
}

// newStatusReporter returns a reporter that passes the status to next. degraded lists faults in the settings.
func newStatusReporter(next statusWriter, failing func() []string, degraded []string, cfg config.Config) *statusReporter {
	version, _ := cli.BuildVersion()
	b := &statusReporter{next: next, failing: failing, degraded: degraded, program: version, dryRun: cfg.DryRun}
	b.setIgnored(policyOf(cfg))
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
		if why := b.whyOff(kind); why != "" {
			s.Off = append(s.Off, state.OffStatus{What: string(kind), Why: why})
		}
	}
	if b.noRequest != "" {
		s.Off = append(s.Off, state.OffStatus{What: "nth drain", Why: b.noRequest})
	}
	// The documents are the agent's, which compares them with the next status.
	s.Documents = slices.DeleteFunc(slices.Clone(s.Documents), func(d state.DocumentStatus) bool {
		return b.unpolled[d.Kind] != ""
	})
	b.next.Show(s)
}

// whyOff returns why nth does not learn of a kind; "" if it does. b.mu is held.
func (b *statusReporter) whyOff(kind event.Kind) string {
	for _, reasons := range []map[event.Kind]string{b.ignored, b.unannounced, b.unpolled} {
		if why := reasons[kind]; why != "" {
			return why
		}
	}
	return ""
}

// set makes a change with b.mu held. The next Show reports it.
func (b *statusReporter) set(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}

// setIgnored sets which kinds are ignored by configuration.
func (b *statusReporter) setIgnored(rules policy.Settings) {
	ignored := map[event.Kind]string{}
	for _, kind := range event.Kinds() {
		if rules[kind].Action == policy.Ignore {
			ignored[kind] = fmt.Sprintf("by configuration: events.%s.action = %q", kind, policy.Ignore)
		}
	}
	b.set(func() { b.ignored = ignored })
}

// setDegraded sets the faults in the settings.
func (b *statusReporter) setDegraded(faults []string) { b.set(func() { b.degraded = faults }) }

// setScope sets which kinds are not polled for on this instance.
func (b *statusReporter) setScope(scope imds.Scope) {
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

// setNoNotice sets why logind does not announce shutdowns and hibernation; nil if it does.
func (b *statusReporter) setNoNotice(err error) {
	unannounced := map[event.Kind]string{}
	if err != nil {
		unannounced[event.Shutdown], unannounced[event.Hibernation] = err.Error(), err.Error()
	}
	b.set(func() { b.unannounced = unannounced })
}

// setIdentity sets the identity.
func (b *statusReporter) setIdentity(id identity.Identity) {
	b.set(func() {
		b.identity = state.IdentityStatus{Credential: id.Credential, Source: id.Source, Server: id.Server}
	})
}

// setTarget sets the instance's target state.
func (b *statusReporter) setTarget(state string) { b.set(func() { b.target = state }) }

// setNoRequest sets why the file of "nth drain" cannot be read; "" if it can.
func (b *statusReporter) setNoRequest(why string) { b.set(func() { b.noRequest = why }) }

// setHook sets what is known of the group's lifecycle hooks.
func (b *statusReporter) setHook(text string) { b.set(func() { b.hook = text }) }
