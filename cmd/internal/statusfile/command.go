package statusfile

import (
	"flag"
	"time"

	"github.com/nth-project/nth/cmd/internal/program"
)

// Command is "status" of the program of that name. directory finds the runtime directory by the settings at a path.
func Command(name, usage string, args []string, to program.Streams, directory func(path string) (string, error)) error {
	var path string
	var asJSON bool
	done, err := program.Parse(name+" status", usage, args, to, func(flags *flag.FlagSet) {
		program.ConfigFlag(flags, &path)
		flags.BoolVar(&asJSON, "json", false, "")
	})
	if done || err != nil {
		return err
	}
	dir, err := directory(path)
	if err != nil {
		return err
	}
	found := examine(name, dir, time.Now())
	write := writeText
	if asJSON {
		write = writeJSON
	}
	if err := write(to.Out, found); err != nil {
		return err
	}
	if found.State != running {
		return program.ErrTold
	}
	return nil
}
