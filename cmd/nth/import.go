package main

import (
	"github.com/nth-project/nth/cmd/internal/importing"
	"github.com/nth-project/nth/pkg/config"
)

// importer is "nth config import".
func importer() importing.Command {
	return importing.Command{Program: "nth", Usage: configUsage, Judge: func(name string, text []byte) error {
		cfg := config.Default()
		return config.Decode(name, text, &cfg)
	}}
}
