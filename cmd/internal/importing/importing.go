// Package importing is "config import": it converts the settings of aws-node-termination-handler to those of a program, which
// validates them before it prints them.
package importing

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/pkg/migration"
	"github.com/nth-project/nth/pkg/notify"
)

// Command returns the command "config import" of a program; queue: the program is nth-queue. decode reads the text of a configuration
// file of that name, as the program does.
func Command(program string, queue bool, decode func(name string, text []byte) error) *cobra.Command {
	target := migration.Target{Queue: queue, CheckTemplate: checkTemplate}
	cmd := &cobra.Command{
		Use: "import FILE", Short: "convert the settings of aws-node-termination-handler", Args: cobra.ExactArgs(1),
		Long: `Converts the settings of aws-node-termination-handler and prints them. FILE has its environment
("NAME=value" lines), the values of its Helm chart, or its manifest ("kubectl get daemonset -o yaml")
with the ConfigMaps and Secrets that it refers to; "-" is standard input. Comments name each setting that
is not converted. The result is validated before it is printed: status 78 and one line for each fault.`,
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
	if err != nil {
		return migration.Result{}, cli.ConfigError{Fault: fmt.Errorf("importing %s: %w", name, err)}
	}
	return result, nil
}

func checkTemplate(template string, headers map[string]string) error {
	return notify.TryTemplate("the template", template, notify.Destination{Headers: headers}.ContentType())
}

// keep writes secrets to files that only their owner may read. If one of the files has other content, it writes none.
func keep(dir string, secrets map[string]string) error {
	missing := map[string]string{}
	for path, secret := range secrets {
		switch before, err := os.ReadFile(path); {
		case errors.Is(err, fs.ErrNotExist):
			missing[path] = secret
		case err != nil:
			return err
		case string(before) != secret+"\n":
			return fmt.Errorf("%s already exists with other content: move it away, or choose another directory", path)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for path, secret := range missing {
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = io.WriteString(file, secret+"\n")
		if err := errors.Join(err, file.Close()); err != nil {
			return err
		}
	}
	return nil
}
