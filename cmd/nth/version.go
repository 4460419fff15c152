package main

import (
	"context"
	"flag"

	"github.com/nth-project/nth/cmd/internal/program"
)

// commandVersion is "nth version".
func commandVersion(_ context.Context, args []string, to program.Streams) error {
	done, err := program.Parse("nth version", versionUsage, args, to, func(*flag.FlagSet) {})
	if done || err != nil {
		return err
	}
	return program.PrintVersion("nth", to)
}
