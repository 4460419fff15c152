package main

import (
	"strings"

	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
)

// late tells whether a setting, as now has it, takes effect at the next start only.
func late(name string, started, now config.Config) bool {
	switch {
	case name == "events.shutdown.margin":
		return true // logind is watched with it
	case name == "log.level", strings.HasPrefix(name, "drain."), strings.HasPrefix(name, "webhook."):
		return false
	case strings.HasPrefix(name, "events."):
		// What is ignored is not asked for.
		before, after := policyOf(started.Events), policyOf(now.Events)
		kind := kindOf(name)
		return strings.HasSuffix(name, ".action") && before[kind].Action == policy.Ignore && after[kind].Action != policy.Ignore
	}
	return true
}

// kindOf is the kind whose table a setting stands in.
func kindOf(name string) event.Kind {
	table, _, _ := strings.Cut(strings.TrimPrefix(name, "events."), ".")
	return event.Kind(table)
}
