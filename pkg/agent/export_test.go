package agent

import (
	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/pkg/event"
)

// NewJournal returns an agent's journal.
func NewJournal(log *logrus.Entry, dryRun bool) Listener {
	return &journal{log: log, dryRun: dryRun, logged: map[event.Kind][]string{}}
}
