package main

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/identity"
	"github.com/nth-project/nth/pkg/imds"
	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/state"
)

// longestSilence is how old the last status of a daemon that is alive may be. The loop writes one at least every ten seconds.
const longestSilence = 30 * time.Second

// statusReporter adds to the agent's status what the agent does not know: the process, the identity, and what is off. It passes the result to
// the status file and to the metrics.
type statusReporter struct {
	file    *record.StatusFile
	meter   *metrics.Metrics
	program string
	cfg     config.Config

	mu       sync.Mutex
	shown    time.Time // when the last status came; with a monotonic reading
	watching bool      // by isWatching for that status
	identity state.IdentityStatus
	degraded []string
	// ignored, unpolled and unannounced say why kinds are off: the settings ignore the kind, or exclude the instance's life cycle; logind does not
	// announce it.
	ignored, unpolled, unannounced map[event.Kind]string
	// target is the instance's target state in its Auto Scaling group, and hook what is known of the group's hooks.
	target, hook string
	// noRequest says why the file of "nth drain" cannot be read; "" if it can.
	noRequest string
}

// newStatusReporter returns a reporter. degraded lists faults in the settings.
func newStatusReporter(file *record.StatusFile, meter *metrics.Metrics, degraded []string, cfg config.Config) *statusReporter {
	version, _ := cli.BuildVersion()
	b := &statusReporter{file: file, meter: meter, degraded: degraded, program: version, cfg: cfg, ignored: map[event.Kind]string{}}
	for kind, rule := range policyOf(cfg) {
		if rule.Action == policy.Ignore {
			b.ignored[kind] = fmt.Sprintf("by configuration: events.%s.action = %q", kind, policy.Ignore)
		}
	}
	return b
}

// Show implements agent.StatusWriter.
func (b *statusReporter) Show(s state.Status) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.Program, s.PID, s.Degraded = b.program, os.Getpid(), slices.Concat(b.degraded, b.meter.Troubles())
	trouble := s.Identity.Trouble
	s.Identity = b.identity
	s.Identity.Trouble = trouble
	s.TargetState, s.Hook = b.target, b.hook
	if b.cfg.DryRun {
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
	b.shown, b.watching = time.Now(), isWatching(s)
	b.meter.Show(s)
	if !b.cfg.DryRun || record.Holder(b.cfg.RuntimeDirectory) == 0 { // A dry run leaves the file to the service while that runs.
		b.file.Show(s)
	}
}

// isWatching reports whether nth has an identity and can poll all documents, and has not stopped.
func isWatching(s state.Status) bool {
	return s.Node != "" && s.Identity.Trouble == "" && s.Stopped.IsZero() &&
		!slices.ContainsFunc(s.Documents, func(d state.DocumentStatus) bool { return d.Trouble != "" || d.LastGood.IsZero() })
}

// alive reports whether the daemon works, for the heartbeat on the Node: its last status is recent, and it is watching.
func (b *statusReporter) alive() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.watching && time.Since(b.shown) < longestSilence
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

// setScope sets which kinds are not polled for on this instance.
func (b *statusReporter) setScope(scope imds.Scope) {
	unpolled := map[event.Kind]string{}
	for _, kind := range event.PolledKinds() {
		if !slices.Contains(scope.Kinds, kind) {
			unpolled[kind] = fmt.Sprintf("%s instances are excluded by imds.life_cycles", scope.LifeCycle)
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
