package program

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// help is what "help" says.
func (p Program) help() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\nUsage: %s COMMAND [FLAGS]\n\n", p.Summary, p.Name)
	for _, c := range p.Commands {
		fmt.Fprintf(&b, "  %-9s%s\n", c.Name, c.Summary)
	}
	fmt.Fprintf(&b, "\n\"%s COMMAND --help\" tells more about each.\n\n%s", p.Name, p.Notes)
	return b.String()
}

// commandHelp prints the help for one command, or for all.
func (p Program) commandHelp(args []string, to Streams) error {
	if len(args) == 0 {
		_, err := io.WriteString(to.Out, p.help())
		return err
	}
	for _, c := range p.Commands {
		if c.Name == args[0] && len(args) == 1 {
			_, err := io.WriteString(to.Out, c.Usage)
			return err
		}
	}
	return UsageError{fmt.Sprintf("%s help: there is no command %q, see \"%s help\"", p.Name, strings.Join(args, " "), p.Name)}
}

// Parse reads the flags of a command, whose name has the program's before it, and allows nothing after them. It reports
// whether the command is done already, because help was asked for.
func Parse(name, usage string, args []string, to Streams, define func(*flag.FlagSet)) (done bool, err error) {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	define(flags)
	err = flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		_, err = io.WriteString(to.Out, usage)
		return true, err
	case err != nil:
		return false, UsageError{fmt.Sprintf("%s: %v, see \"%s --help\"", name, err, name)}
	case flags.NArg() > 0:
		return false, UsageError{fmt.Sprintf("%s: unexpected argument %q, see \"%s --help\"", name, flags.Arg(0), name)}
	}
	return false, nil
}

// ConfigFlag defines --config. An empty value is refused: it is a variable that was never set, and what was meant is
// hardly the default.
func ConfigFlag(flags *flag.FlagSet, path *string) {
	flags.Func("config", "", func(value string) error {
		if value == "" {
			return errors.New("must name a file")
		}
		*path = value
		return nil
	})
}

// DirectoryFrom returns the first of the directories that systemd lists in an environment variable.
func DirectoryFrom(variable, otherwise string) string {
	first, _, _ := strings.Cut(os.Getenv(variable), ":")
	if filepath.IsAbs(first) {
		return first
	}
	return otherwise
}
