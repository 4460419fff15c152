// Package importing is "config import": it converts the settings of aws-node-termination-handler to those of a program, which
// validates them before it prints them.
package importing

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/pkg/migration"
)

// Command returns the command "config import" of a program. queue says that the program is nth-queue. decode validates the text of a
// configuration file of that name, as the program does.
func Command(program string, queue bool, decode func(name string, text []byte) error) *cobra.Command {
	return &cobra.Command{
		Use: "import FILE", Short: "convert the settings of aws-node-termination-handler", Args: cobra.ExactArgs(1),
		Long: `Converts the settings of aws-node-termination-handler and prints them. FILE has its environment
("NAME=value" lines), the values of its Helm chart, or its manifest ("kubectl get daemonset -o yaml");
"-" is standard input. Comments name each setting that is not converted, and each file to make for a
secret. The result is validated before it is printed: status 78 and one line for each fault.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := convert(args[0], queue)
			if err == nil {
				err = decode(program+".toml", []byte(text))
			}
			if err != nil {
				return cli.ConfigError{Fault: fmt.Errorf("importing %s: %w", args[0], err)}
			}
			_, err = io.WriteString(cmd.OutOrStdout(), text)
			return err
		},
	}
}

// convert returns a file's settings as a configuration file of nth, or nth-queue if queue is true. The name "-" is standard input.
func convert(name string, queue bool) (string, error) {
	file := os.Stdin
	if name != "-" {
		var err error
		if file, err = os.Open(name); err != nil {
			return "", err
		}
		defer func() { _ = file.Close() }() // It was only read.
	}
	settings, err := migration.Read(file)
	if err != nil {
		return "", err
	}
	return settings.For(queue)
}
