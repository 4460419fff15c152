package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"
)

// usageError is a command line that makes no sense. Its text says what would.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

// helpWanted asks for a text to be printed in place of anything being done.
type helpWanted struct{ text string }

func (helpWanted) Error() string { return "help is wanted" }

// flags is a FlagSet that speaks through errors alone, and takes flags before, between and after words.
type flags struct {
	*flag.FlagSet
	usage string
}

func newFlags(name, usage string) flags {
	set := flag.NewFlagSet(name, flag.ContinueOnError)
	set.SetOutput(io.Discard)
	return flags{set, usage}
}

// duration defines a flag that takes a duration, zero if it is not given.
func (f flags) duration(d *time.Duration, name string) {
	f.Func(name, "", func(text string) error {
		parsed, err := time.ParseDuration(text)
		if err != nil || parsed < 0 {
			return errors.New("want a duration such as 90s or 2m")
		}
		*d = parsed
		return nil
	})
}

// parse returns the words among args; there must be as many as names says.
func (f flags) parse(args []string, names ...string) ([]string, error) {
	var words []string
	for {
		err := f.Parse(args)
		switch {
		case errors.Is(err, flag.ErrHelp):
			return nil, helpWanted{f.usage}
		case err != nil:
			return nil, usageError{fmt.Sprintf("%s: %v", f.Name(), err)}
		case f.NArg() == 0:
			return f.checked(words, names)
		}
		words = append(words, f.Arg(0))
		args = f.Args()[1:]
	}
}

func (f flags) checked(words, names []string) ([]string, error) {
	switch {
	case len(words) < len(names):
		return nil, usageError{fmt.Sprintf("%s: %s is missing, see \"nth-imds help %s\"", f.Name(), names[len(words)], f.command())}
	case len(words) > len(names):
		return nil, usageError{fmt.Sprintf("%s: %q is one word too many, see \"nth-imds help %s\"", f.Name(), words[len(names)], f.command())}
	}
	return words, nil
}

func (f flags) command() string {
	first, _, _ := strings.Cut(f.Name(), " ")
	return first
}
