package main

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/queue"
	"github.com/nth-project/nth/pkg/record"
)

// Manager is what the service manager is told.
type Manager interface {
	Status(format string, args ...any)
	Beat()
}

// emptyFleet has no nodes.
type emptyFleet struct{}

func (emptyFleet) Standing() fleet.Standing { return fleet.Standing{} }

// ShowAndBeat keeps the board of an nth-queue that reads these messages, until ctx ends.
func ShowAndBeat(ctx context.Context, messages *queue.Queue, manager Manager, log *logrus.Entry, dir string, pace time.Duration) {
	b := &board{file: record.NewBoard(dir, nil), log: log, queue: messages, fleet: emptyFleet{}, manager: manager, pace: pace}
	b.begin(ctx)()
}
