// Package settings loads a program's settings from its files and from the credentials that systemd passes to the service. It also has
// the command "config".
package settings

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/migration"
)

// Program describes where a program's settings come from.
type Program[C any, P config.Pointer[C]] struct {
	Name     string
	File     string // is read unless --config names another one; need not exist
	Defaults C      // the settings without any file
	// Settle, if set, sets what the files leave open and the host determines.
	Settle func(P)
	// Lacks returns why "run" cannot start with the settings; nil if it can.
	Lacks func(P) error
}

// Load loads the file at a path and its drop-ins, or the default files if path is "". An error is a cli.ConfigError.
func (p Program[C, P]) Load(path string) (config.Loaded[C], error) {
	l, err := config.Load[C, P](cmp.Or(path, p.File), path != "", p.Defaults)
	if err != nil {
		return l, cli.ConfigError{Fault: err}
	}
	if p.Settle != nil {
		p.Settle(&l.Config)
	}
	base := P(&l.Config).Base()
	base.StateDirectory = p.StateDirectory()
	base.RuntimeDirectory = RuntimeDirectory(p.Name)
	return l, nil
}

// LoadToRun is Load, but also fails if the settings lack something without which the program cannot run.
func (p Program[C, P]) LoadToRun(path string) (config.Loaded[C], error) {
	l, err := p.Load(path)
	if err != nil {
		return l, err
	}
	if lack := p.Lacks(&l.Config); lack != nil {
		return l, cli.ConfigError{Fault: lack}
	}
	return l, nil
}

// StateDirectory returns the directory in which the daemon keeps its record, unless it is a dry run.
func (p Program[C, P]) StateDirectory() string {
	return directoryFrom("STATE_DIRECTORY", cmp.Or(P(&p.Defaults).Base().StateDirectory, "/var/lib/"+p.Name))
}

// RuntimeDirectory returns the directory in which the daemon of that name keeps its status.
func RuntimeDirectory(program string) string {
	return directoryFrom("RUNTIME_DIRECTORY", "/run/"+program)
}

// directoryFrom returns the first directory that systemd lists in an environment variable. It returns fallback if systemd lists none.
func directoryFrom(variable, fallback string) string {
	first, _, _ := strings.Cut(os.Getenv(variable), ":")
	if filepath.IsAbs(first) {
		return first
	}
	return fallback
}

// Credential returns the file of a credential that systemd passes to a program's service, for example by LoadCredential=. It returns "" if systemd
// passes none. A command that an operator runs finds the file while the service runs.
func Credential(program, name string) string {
	file := filepath.Join(directoryFrom("CREDENTIALS_DIRECTORY", "/run/credentials/"+program+".service"), name)
	found, err := os.Stat(file)
	if err != nil {
		return ""
	}
	isPlaceholder := found.Mode().IsRegular() && found.Size() <= int64(len("\n")) // The unit sets it for a missing file: SetCredential=NAME:\n
	if isPlaceholder {
		return ""
	}
	return file
}

// ConfigFlag defines --config, and returns a pointer to its value. Without the flag, the value is "", for the default files. The flag refuses an
// empty value, such as that of a variable that is not set.
func (p Program[C, P]) ConfigFlag(cmd *cobra.Command) *string {
	path := new(string)
	usage := fmt.Sprintf("read this file, with its drop-ins, instead of %s", p.File)
	cmd.Flags().Func("config", usage, func(value string) error {
		if value == "" {
			return errors.New("must name a file")
		}
		*path = value
		return nil
	})
	_ = cmd.MarkFlagFilename("config", "toml") // An error would mean that the flag is not defined.
	return path
}

// RunFlags defines the flags of "run". It returns a function that reads the settings as the flags ask, at the start and at each reload.
func (p Program[C, P]) RunFlags(cmd *cobra.Command) (read func() (config.Loaded[C], error)) {
	path := p.ConfigFlag(cmd)
	dryRun := cmd.Flags().Bool("dry-run", false, "log what would be done, but change nothing in the cluster")
	return func() (config.Loaded[C], error) {
		l, err := p.LoadToRun(*path)
		if cmd.Flags().Changed("dry-run") { // --dry-run=false overrides the setting, too.
			P(&l.Config).Base().DryRun = *dryRun
		}
		return l, err
	}
}

// Command returns the command "config". queue says that "config import" makes settings for nth-queue, not for nth.
func (p Program[C, P]) Command(queue bool) *cobra.Command {
	cmd := &cobra.Command{
		Use: "config", Short: "print, validate or import the configuration", Args: cobra.NoArgs,
		Long: "Prints the settings in effect, all of them, as a valid configuration file.",
	}
	path := p.ConfigFlag(cmd)
	check := cmd.Flags().Bool("check", false, "only validate, with the service's credentials: one line for each file that was read or ignored")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *check {
			return p.check(*path, cmd.OutOrStdout())
		}
		l, err := p.Load(*path)
		if err != nil {
			return err
		}
		err = config.Encode[C, P](cmd.OutOrStdout(), l.Config)
		return cmp.Or(faulty(l.Warnings), err)
	}
	cmd.AddCommand(p.importCommand(queue))
	return cmd
}

// check is "config --check". It prints one line for each file that was read or ignored, and a last line "ok" unless something is wrong.
func (p Program[C, P]) check(path string, out io.Writer) error {
	l, err := p.LoadToRun(path)
	if err != nil {
		return err
	}
	for _, file := range l.Files {
		fmt.Fprintf(out, "%s: read\n", file)
	}
	for _, ignored := range l.Ignored {
		fmt.Fprintln(out, strings.Replace(ignored, ": ", ": ignored: ", 1)) // from "FILE: REASON"
	}
	_, faults := Webhook(P(&l.Config).Base().Webhook, p.Name)
	if err := faulty(append(l.Warnings, faults...)); err != nil {
		return err
	}
	if len(l.Files) == 0 {
		l.Files = []string{p.File + " (absent)"}
	}
	_, err = fmt.Fprintf(out, "%s: ok\n", strings.Join(l.Files, ", "))
	return err
}

// faulty returns a cli.ConfigError for faults with which the program would start nevertheless; nil without faults.
func faulty(faults []string) error {
	if len(faults) == 0 {
		return nil
	}
	return cli.ConfigError{Fault: errors.New(strings.Join(faults, "\n"))}
}

// importCommand returns "config import". queue says that it makes settings for nth-queue.
func (p Program[C, P]) importCommand(queue bool) *cobra.Command {
	return &cobra.Command{
		Use: "import FILE", Short: "convert the settings of aws-node-termination-handler", Args: cobra.ExactArgs(1),
		Long: `Converts the settings of aws-node-termination-handler and prints them. FILE has its manifest
("kubectl get daemonset -o yaml"); "-" is standard input.
Comments name each setting that is not converted, and each file to make for a secret. The result is
validated before it is printed: status 78 and one line for each fault.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			read := func() ([]byte, error) { return os.ReadFile(args[0]) }
			if args[0] == "-" {
				read = func() ([]byte, error) { return io.ReadAll(os.Stdin) }
			}
			text := ""
			manifest, err := read()
			if err == nil {
				text, err = migration.Convert(manifest, queue)
			}
			if err == nil {
				cfg := p.Defaults // Decoding validates the text. The result is not needed.
				err = config.Decode[C, P]("the converted settings (not printed)", []byte(text), &cfg)
			}
			if err != nil {
				return cli.ConfigError{Fault: fmt.Errorf("converting the settings of aws-node-termination-handler in %s: %w", args[0], err)}
			}
			_, err = io.WriteString(cmd.OutOrStdout(), text)
			return err
		},
	}
}
