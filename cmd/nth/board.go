package main

import (
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds"
	"github.com/nth-project/nth/pkg/kubelet"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
)

// board is the agent's, and adds what only the wiring knows: what process this is, what proves the identity, and what is
// switched off.
type board struct {
	next    interface{ Show(record.Status) }
	program string
	dryRun  bool

	mu       sync.Mutex
	identity record.IdentityStatus
	// ignored, unpolled and unheard say why kinds are off: by the settings, by the instance's life cycle, for want of a
	// logind.
	ignored, unpolled, unheard map[event.Kind]string
}

func newBoard(next interface{ Show(record.Status) }, program string, cfg config.Config) *board {
	b := &board{next: next, program: program, dryRun: cfg.DryRun}
	b.configured(policyOf(cfg.Events))
	return b
}

// Show implements agent.Board.
func (b *board) Show(s record.Status) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.Program, s.PID = b.program, os.Getpid()
	trouble := s.Identity.Trouble
	s.Identity = b.identity
	s.Identity.Trouble = trouble
	if b.dryRun {
		s.Off = append(s.Off, record.OffStatus{What: "writing to the cluster", Why: "this is a dry run"})
	}
	for _, kind := range event.Kinds() {
		if why := b.why(kind); why != "" {
			s.Off = append(s.Off, record.OffStatus{What: string(kind), Why: why})
		}
	}
	s.Documents = slices.DeleteFunc(s.Documents, func(d record.DocumentStatus) bool { return b.unpolled[d.Kind] != "" })
	b.next.Show(s)
}

// why is the reason for which a kind is off; "" if it is not. b.mu is held.
func (b *board) why(kind event.Kind) string {
	for _, reasons := range []map[event.Kind]string{b.ignored, b.unheard, b.unpolled} {
		if why := reasons[kind]; why != "" {
			return why
		}
	}
	return ""
}

func (b *board) set(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}

// configured notes what the settings switch off.
func (b *board) configured(rules policy.Settings) {
	ignored := map[event.Kind]string{}
	for _, kind := range event.Kinds() {
		if rules[kind].Action == policy.Ignore {
			ignored[kind] = fmt.Sprintf("the settings say so: events.%s.action = %q", kind, policy.Ignore)
		}
	}
	b.set(func() { b.ignored = ignored })
}

// scoped notes what is not polled for on an instance of this life cycle.
func (b *board) scoped(scope imds.Scope) {
	why := fmt.Sprintf("%s instances get none", scope.LifeCycle)
	if scope.Standby {
		why = fmt.Sprintf("the settings leave out %s instances", scope.LifeCycle)
	}
	unpolled := map[event.Kind]string{}
	for _, kind := range event.Kinds() {
		if kind != event.Shutdown && !slices.Contains(scope.Kinds, kind) {
			unpolled[kind] = why
		}
	}
	b.set(func() { b.unpolled = unpolled })
}

// hearing notes whether a shutdown is announced by logind; err says why not.
func (b *board) hearing(err error) {
	unheard := map[event.Kind]string{}
	if err != nil {
		unheard[event.Shutdown] = err.Error()
	}
	b.set(func() { b.unheard = unheard })
}

// identified notes what proves the identity.
func (b *board) identified(id kubelet.Identity) {
	b.set(func() {
		b.identity = record.IdentityStatus{Credential: id.Credential, Source: id.Source, Server: id.Server}
	})
}
