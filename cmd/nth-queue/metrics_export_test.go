package main

import (
	"net/http"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/sqs"
)

// Probes answers for an nth-queue with that identity that reads these messages and stands so.
func Probes(messages *sqs.Queue, stand fleet.Status, process string, log *logrus.Entry) http.Handler {
	m := newMeter(config.Queue{}, log)
	m.queue, m.reporter = messages, &statusReporter{queue: messages, fleet: fleetAs(stand), process: process}
	return m.Handler()
}
