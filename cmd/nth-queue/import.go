package main

import (
	"github.com/nth-project/nth/cmd/internal/importing"
	"github.com/nth-project/nth/pkg/config"
)

// importer is "nth-queue config import".
func importer() importing.Command {
	return importing.Command{Program: "nth-queue", Usage: configUsage, Queue: true, Judge: func(name string, text []byte) error {
		cfg := config.DefaultQueue()
		return config.DecodeQueue(name, text, &cfg)
	}}
}
