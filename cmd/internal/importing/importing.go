// Package importing is "config import": the settings of aws-node-termination-handler become those of a program, which judges
// them before it prints them. The programs differ in what they are for.
package importing

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/pkg/migration"
	"github.com/nth-project/nth/pkg/notify"
)

// Command is "config import" of the program of that name, whose settings judge reads.
type Command struct {
	Program, Usage string
	Queue          bool
	// Judge reads the text of a file of that name, as the program would.
	Judge func(name string, text []byte) error
}

// Run reads the file that args name, and prints what comes of it. Secrets go into files of their own.
func (c Command) Run(args []string, to program.Streams) error {
	target := migration.Target{Queue: c.Queue}
	name := c.Program + " config import"
	set := flag.NewFlagSet(name, flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.StringVar(&target.Secrets, "secrets", "", "")
	switch err := set.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		_, err := io.WriteString(to.Out, c.Usage)
		return err
	case err != nil:
		return program.UsageError{Message: fmt.Sprintf("%s: %s, see %q", name, err, c.Program+" config --help")}
	}
	if set.NArg() != 1 {
		return program.UsageError{Message: fmt.Sprintf(`%s: one FILE is needed, behind all flags, or "-" for standard input, see %q`, name, c.Program+" config --help")}
	}
	if target.Secrets != "" && !filepath.IsAbs(target.Secrets) {
		return program.UsageError{Message: fmt.Sprintf("%s: --secrets %q: must be an absolute path, as the settings name it", name, target.Secrets)}
	}
	result, err := c.result(set.Arg(0), target)
	if err != nil {
		return err
	}
	if err := keep(target.Secrets, result.Secrets); err != nil {
		return fmt.Errorf("keeping the secrets: %w", err)
	}
	_, err = io.WriteString(to.Out, result.Text)
	return err
}

// result reads a file and judges what comes of it. Nothing is written.
func (c Command) result(name string, target migration.Target) (migration.Result, error) {
	file := os.Stdin
	if name != "-" {
		var err error
		if file, err = os.Open(name); err != nil {
			return migration.Result{}, err
		}
		defer func() { _ = file.Close() }() // it was only read
	}
	settings, err := migration.Read(file)
	var result migration.Result
	if err == nil {
		result, err = settings.For(target)
	}
	if err == nil {
		err = c.Judge(c.Program+".toml", []byte(result.Text))
	}
	if err == nil && result.Template != "" {
		_, err = notify.CompileTemplate("WEBHOOK_TEMPLATE", result.Template, notify.Destination{Headers: result.Headers}.ContentType())
	}
	if err != nil {
		return migration.Result{}, program.ConfigError{Fault: fmt.Errorf("importing %s: %w", name, err)}
	}
	return result, nil
}

// keep puts secrets into files that only their owner reads. One that is there is not written over: it may be another's.
func keep(dir string, secrets map[string]string) error {
	if len(secrets) == 0 {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, path := range slices.Sorted(maps.Keys(secrets)) {
		if err := create(path, secrets[path]); err != nil {
			return err
		}
	}
	return nil
}

func create(path, content string) error {
	if before, err := os.ReadFile(path); err == nil && string(before) == content+"\n" {
		return os.Chmod(path, 0o600)
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.WriteString(file, content+"\n")
	if closing := file.Close(); err == nil {
		err = closing
	}
	return err
}
