// Package importing is "config import": it converts the settings of aws-node-termination-handler to those of a program, which
// validates them before it prints them.
package importing

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/pkg/migration"
	"github.com/nth-project/nth/pkg/notify"
)

// Command is "config import" of a program.
type Command struct {
	// Program is the program's name, and Usage the help text of its command "config".
	Program, Usage string
	// Queue: the program is nth-queue.
	Queue bool
	// Decode reads the text of a configuration file of that name, as the program does.
	Decode func(name string, text []byte) error
}

// Run imports the file that args name and prints the result. Secrets are written to separate files.
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
		return program.UsageError{Message: fmt.Sprintf(`%s: exactly one FILE is required after the flags, or "-" for standard input, see %q`, name, c.Program+" config --help")}
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

// result converts a file and validates the result. It writes nothing.
func (c Command) result(name string, target migration.Target) (migration.Result, error) {
	file := os.Stdin
	if name != "-" {
		var err error
		if file, err = os.Open(name); err != nil {
			return migration.Result{}, err
		}
		defer func() { _ = file.Close() }() // It was only read.
	}
	settings, err := migration.Read(file)
	var result migration.Result
	if err == nil {
		result, err = settings.For(target)
	}
	if err == nil {
		err = c.Decode(c.Program+".toml", []byte(result.Text))
	}
	if err == nil && result.Template != "" {
		_, err = notify.CompileTemplate("WEBHOOK_TEMPLATE", result.Template, notify.Destination{Headers: result.Headers}.ContentType())
	}
	if err != nil {
		return migration.Result{}, program.ConfigError{Fault: fmt.Errorf("importing %s: %w", name, err)}
	}
	return result, nil
}

// keep writes secrets to files that only their owner may read: all of them, or none. A file that exists with other content is not
// overwritten.
func keep(dir string, secrets map[string]string) error {
	if len(secrets) == 0 {
		return nil
	}
	var missing []string
	for _, path := range slices.Sorted(maps.Keys(secrets)) {
		before, err := os.ReadFile(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			missing = append(missing, path)
		case err != nil:
			return err
		case string(before) != content(secrets[path]):
			return fmt.Errorf("%s already exists with other content: move it away, or choose another directory", path)
		default:
			if err := os.Chmod(path, 0o600); err != nil {
				return err
			}
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for i, path := range missing {
		if err := create(path, content(secrets[path])); err != nil {
			for _, written := range missing[:i] {
				err = errors.Join(err, os.Remove(written))
			}
			return err
		}
	}
	return nil
}

// content is the content of the file for a secret.
func content(secret string) string { return secret + "\n" }

// create writes a new file, or leaves none.
func create(path, text string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.WriteString(file, text)
	if closing := file.Close(); err == nil {
		err = closing
	}
	if err != nil {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}
