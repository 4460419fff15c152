package agent

import "github.com/sirupsen/logrus"

// NewJournal returns an agent's journal.
func NewJournal(log *logrus.Entry, dryRun bool) Listener { return &journal{log: log, dryRun: dryRun} }
