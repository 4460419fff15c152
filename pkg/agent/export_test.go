package agent

import (
	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/pkg/event"
)

// NewJournal is the first listener of an agent's.
func NewJournal(log *logrus.Entry, dryRun bool) Listener {
	return &journal{log: log, dryRun: dryRun, said: map[event.Kind][]string{}}
}
