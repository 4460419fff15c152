// Command image makes the container images of nth and nth-queue without a container engine, and pushes them to a registry.
//
//	image build --output DIR --name NAME [--host-container] [--user UID:GID] [--tag TAG] [--label KEY=VALUE]...
//	    [--file PATH=FILE]... ARCHITECTURE=PROGRAM...
//	image push DIR IMAGE
//
// An image has the program, as /usr/bin/NAME, the certificate authorities that the web trusts, and nothing else. One for
// a host container of Bottlerocket also leads to files of the host. It is written as an OCI image layout. The same files,
// flags and SOURCE_DATE_EPOCH give the same bytes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("wrong usage, see the comment at the beginning of test/tools/image/main.go")

// run is the whole program but for its exit.
func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return errUsage
	}
	switch command, rest := args[0], args[1:]; command {
	case "build":
		return commandBuild(rest, out)
	case "push":
		return commandPush(ctx, rest, out)
	}
	return errUsage
}

func commandBuild(args []string, out io.Writer) error {
	var output string
	d := description{labels: map[string]string{}, files: map[string]string{}, programs: map[string]string{}}
	flags := flag.NewFlagSet("build", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&output, "output", "", "")
	flags.StringVar(&d.name, "name", "", "")
	flags.BoolVar(&d.hostContainer, "host-container", false, "")
	flags.StringVar(&d.user, "user", "", "")
	flags.StringVar(&d.tag, "tag", "latest", "")
	flags.Func("label", "", into(d.labels))
	flags.Func("file", "", into(d.files))
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	for _, program := range flags.Args() {
		if err := into(d.programs)(program); err != nil {
			return fmt.Errorf("%w: %w", errUsage, err)
		}
	}
	if output == "" || d.name == "" || len(d.programs) == 0 {
		return errUsage
	}
	var err error
	if d.made, err = sourceDate(os.Getenv("SOURCE_DATE_EPOCH")); err != nil {
		return err
	}
	return d.write(output, out)
}

// into returns what adds "key=value" to a map.
func into(values map[string]string) func(string) error {
	return func(text string) error {
		key, value, found := strings.Cut(text, "=")
		if !found || key == "" || value == "" {
			return fmt.Errorf("%q is not KEY=VALUE", text)
		}
		values[key] = value
		return nil
	}
}
