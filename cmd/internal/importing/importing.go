// Package importing is "config import": it converts the settings of aws-node-termination-handler to those of a program, which
// validates them before it prints them.
package importing

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/pkg/migration"
	"github.com/nth-project/nth/pkg/notify"
)

// Command returns the command "config import" of a program; queue: the program is nth-queue. decode reads the text of a configuration
// file of that name, as the program does.
func Command(program string, queue bool, decode func(name string, text []byte) error) *cobra.Command {
	target := migration.Target{Queue: queue}
	cmd := &cobra.Command{
		Use: "import FILE", Short: "convert the settings of aws-node-termination-handler", Args: cobra.ExactArgs(1),
		Long: `Converts the settings of aws-node-termination-handler and prints them. FILE holds its environment
("NAME=value" lines), the values of its Helm chart, or its manifest ("kubectl get daemonset -o yaml"),
with the ConfigMaps and Secrets that it takes settings from, behind lines "---"; "-" is standard input.
The result is validated before it is printed: status 78 and one line for each fault if anything cannot
be taken over as it is.`,
	}
	cli.Flag(cmd, "secrets", "DIR", "put the webhook's URL and headers into files of mode 0600 in DIR; without it, they are only named", func(dir string) error {
		target.Secrets = dir
		if !filepath.IsAbs(dir) {
			return errors.New("must be an absolute path, as the settings name it")
		}
		return nil
	})
	_ = cmd.MarkFlagDirname("secrets") // It fails only for a flag that is not defined.
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		result, err := convert(program, args[0], target, decode)
		if err != nil {
			return err
		}
		if err := keep(target.Secrets, result.Secrets); err != nil {
			return fmt.Errorf("keeping the secrets: %w", err)
		}
		_, err = io.WriteString(cmd.OutOrStdout(), result.Text)
		return err
	}
	return cmd
}

// convert converts a file and validates the result. It writes nothing.
func convert(program, name string, target migration.Target, decode func(name string, text []byte) error) (migration.Result, error) {
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
		err = decode(program+".toml", []byte(result.Text))
	}
	if err == nil && result.Template != "" {
		err = notify.TryTemplate("WEBHOOK_TEMPLATE", result.Template, notify.Destination{Headers: result.Headers}.ContentType())
	}
	if err != nil {
		return migration.Result{}, cli.ConfigError{Fault: fmt.Errorf("importing %s: %w", name, err)}
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
