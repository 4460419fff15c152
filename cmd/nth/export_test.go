package main

import (
	"io"

	"github.com/nth-project/nth/pkg/config"
)

// What the tests see of the program besides its streams and its exit status.
var (
	Run         = run
	UntilSignal = untilSignal
	NewLogger   = newLogger
	Complain    = complain
)

// RunSettings returns the settings that "nth run" has after its flags.
func RunSettings(args ...string) (config.Config, error) {
	cfg, _, err := runSettings(args, streams{io.Discard, io.Discard})
	return cfg, err
}

// ColourfulLines returns the formatter of a terminal.
func ColourfulLines() *lineFormatter { return &lineFormatter{time: "15:04:05.000", colour: true} }
