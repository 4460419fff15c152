package main

import (
	"net/http"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/sqs"
)

// Health answers for an nth-queue that reads these messages for that fleet.
func Health(messages *sqs.Queue, nodes *fleet.Fleet, log *logrus.Entry) http.Handler {
	cfg := config.Queue{}
	cfg.Metrics.Listen = "127.0.0.1:0"
	m := newMeter(cfg, log)
	m.judges(messages, nodes, nil)
	return m.Handler()
}
