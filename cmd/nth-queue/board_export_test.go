package main

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/sqs"
)

// Manager is what the service manager is told.
type Manager interface {
	Status(format string, args ...any)
	Beat()
}

// fleetAs stands as it is said to.
type fleetAs fleet.Status

func (f fleetAs) Status() fleet.Status { return fleet.Status(f) }

// Sentence is how an nth-queue that knows the nodes says how it stands.
func Sentence(stand fleet.Status) string {
	b := &statusReporter{queue: sqs.New(sqs.Options{}), fleet: fleetAs(stand), meter: newMeter(config.Queue{}, nil)}
	return b.status().Sentence
}

// Unready is why an nth-queue that stands so and reads these messages is not ready; "" if it is.
func Unready(stand fleet.Status, messages *sqs.Queue) string {
	b := &statusReporter{queue: messages, fleet: fleetAs(stand)}
	if err := b.unready(); err != nil {
		return err.Error()
	}
	return ""
}

// ShowAndBeat keeps the reporter of an nth-queue that reads these messages, until ctx ends.
func ShowAndBeat(ctx context.Context, messages *sqs.Queue, manager Manager, log *logrus.Entry, dir string, pace time.Duration) {
	b := &statusReporter{file: record.NewStatusFile(dir, nil), log: log, queue: messages, fleet: fleetAs{}, manager: manager, pace: pace, meter: newMeter(config.Queue{}, nil)}
	b.begin(ctx)()
}
