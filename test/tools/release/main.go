// Command release writes what goes with the files of a release:
//
//	release sbom --version VERSION --date SECONDS PROGRAM > PROGRAM.spdx.json
//	release provenance --version VERSION --commit COMMIT --date SECONDS --source URL DIR > provenance.json
//
// The bill of materials of a program is read from the program itself: what the Go linker has noted in it is what it consists of.
// The provenance names the files in a directory with their checksums, and the commit and the Go release that they were made from.
// The same files give the same bytes.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("wrong usage, see the comment at the beginning of test/tools/release/main.go")

// origin is where the files of a release come from.
type origin struct {
	version, commit, source string
	date                    time.Time // of the commit
}

// run is the whole program but for its exit.
func run(args []string, out io.Writer) error {
	if len(args) == 0 {
		return errUsage
	}
	var from origin
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&from.version, "version", "", "")
	flags.StringVar(&from.commit, "commit", "", "")
	flags.StringVar(&from.source, "source", "", "")
	flags.Func("date", "", func(text string) error {
		seconds, err := strconv.ParseInt(text, 10, 64)
		from.date = time.Unix(seconds, 0).UTC()
		return err
	})
	if err := flags.Parse(args[1:]); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	if flags.NArg() != 1 || from.version == "" || from.date.IsZero() {
		return errUsage
	}
	switch subject := flags.Arg(0); args[0] {
	case "sbom":
		return sbom(from, subject, out)
	case "provenance":
		return provenance(from, subject, out)
	}
	return errUsage
}
