package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/identity"
	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/state"
)

// statusReporter adds to the agent's status what the agent does not know: the process, the identity, and what is off. It passes the result to
// the status file and to the metrics.
type statusReporter struct {
	file    *record.StatusFile
	meter   *metrics.Metrics
	program string
	cfg     config.Config
	rules   policy.Settings

	mu       sync.Mutex
	watching bool // isWatching of the last status
	identity state.IdentityStatus
	degraded []string
	off      map[string]string // what does not work, such as a kind of event, and why
	target   string            // the instance's target state in its Auto Scaling group; "" if unknown
	hook     string            // the last report about the group's lifecycle hooks
}

// newStatusReporter returns a reporter. degraded lists faults in the settings.
func newStatusReporter(file *record.StatusFile, meter *metrics.Metrics, degraded []string, cfg config.Config) *statusReporter {
	version, _ := cli.BuildVersion()
	b := &statusReporter{file: file, meter: meter, degraded: degraded, program: version, cfg: cfg, rules: policyOf(cfg), off: map[string]string{}}
	if cfg.DryRun {
		b.off["writing to the cluster"] = "this is a dry run"
	}
	for kind, rule := range b.rules {
		if rule.Action == policy.Ignore {
			b.off[string(kind)] = fmt.Sprintf("by configuration: events.%s.action = %q", kind, policy.Ignore)
		}
	}
	return b
}

// Show implements agent.StatusWriter: it completes the agent's status, and passes it on.
func (b *statusReporter) Show(s state.Status) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.Program, s.PID, s.Degraded = b.program, os.Getpid(), slices.Concat(b.degraded, b.meter.Troubles())
	trouble := s.Identity.Trouble
	s.Identity = b.identity
	s.Identity.Trouble = trouble
	s.TargetState, s.Hook = b.target, b.hook
	for _, what := range slices.Sorted(maps.Keys(b.off)) {
		s.Off = append(s.Off, state.OffStatus{What: what, Why: b.off[what]})
	}
	b.watching = isWatching(s)
	b.meter.Show(s)
	if !b.cfg.DryRun || record.Holder(b.cfg.RuntimeDirectory) == 0 { // A dry run writes the file only while no service runs.
		b.file.Show(s)
	}
}

// isWatching reports whether nth has an identity, polls all documents without trouble, and has not stopped.
func isWatching(s state.Status) bool {
	return s.Node != "" && s.Identity.Trouble == "" && s.Stopped.IsZero() &&
		!slices.ContainsFunc(s.Documents, func(d state.DocumentStatus) bool { return d.Trouble != "" || d.LastGood.IsZero() })
}

// alive reports whether the daemon works, for the heartbeat on the Node: no part of it hangs, and it was watching at its last status.
func (b *statusReporter) alive() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.watching && b.meter.Healthy() == nil
}

// set calls change with b.mu held. The next Show reports what was changed.
func (b *statusReporter) set(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}

// setOff sets why a kind of event, or "nth drain", does not work; why is "" if it works. A kind that the settings ignore stays off.
func (b *statusReporter) setOff(what, why string) {
	switch {
	case b.rules[event.Kind(what)].Action == policy.Ignore: // newStatusReporter has set the reason.
	case why == "":
		b.set(func() { delete(b.off, what) })
	default:
		b.set(func() { b.off[what] = why })
	}
}

// setNoNotice sets why logind does not announce shutdowns and hibernation; err is nil if logind does.
func (b *statusReporter) setNoNotice(err error) {
	why := ""
	if err != nil {
		why = err.Error()
	}
	b.setOff(string(event.Shutdown), why)
	b.setOff(string(event.Hibernation), why)
}

// setIdentity sets the identity.
func (b *statusReporter) setIdentity(id identity.Identity) {
	b.set(func() {
		b.identity = state.IdentityStatus{Credential: id.Credential, Source: id.Source, Server: id.Server}
	})
}

// setTarget sets the instance's target state.
func (b *statusReporter) setTarget(state string) { b.set(func() { b.target = state }) }
