package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/pkg/migration"
)

// importConfig is "nth config import".
func importConfig(args []string, to program.Streams) error {
	if len(args) == 1 && (args[0] == "-h" || args[0] == "-help" || args[0] == "--help") {
		_, err := io.WriteString(to.Out, configUsage)
		return err
	}
	if len(args) != 1 || strings.HasPrefix(args[0], "-") && args[0] != "-" {
		return program.UsageError{Message: `nth config import: one FILE is needed, or "-" for standard input, see "nth config --help"`}
	}
	file := os.Stdin
	if args[0] != "-" {
		var err error
		if file, err = os.Open(args[0]); err != nil {
			return err
		}
		defer func() { _ = file.Close() }() // it was only read
	}
	settings, err := migration.Read(file)
	if err == nil {
		err = settings.Write(to.Out)
	}
	if err != nil {
		return program.ConfigError{Fault: fmt.Errorf("importing %s: %w", args[0], err)}
	}
	return nil
}
