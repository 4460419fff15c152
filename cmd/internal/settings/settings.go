// Package settings loads a program's settings from its files and from the credentials that systemd passes to the service, and validates
// them completely. A command that operators run while the service runs looks for the credentials where the unit gets them from, so that
// a missing one is found before the service needs it. It also has the command "config".
package settings

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/cmd/internal/importing"
	"github.com/nth-project/nth/pkg/config"
)

// Program describes where a program's settings come from.
type Program[C any, P config.Pointer[C]] struct {
	Name  string
	Place config.Place[C, P]
	// Settle sets what the files leave to the host. This and all following functions may be nil.
	Settle func(P)
	// Root returns the root directory of the service's unit; "" is "/".
	Root func(P) string
	// Identity sets the identity that the service gets as a credential, if it gets one, and returns findings about that.
	Identity func(P, Given) []Finding
	// Lacks returns why "run" cannot start with the settings; nil if it can.
	Lacks func(P) error
}

// Findings are what was found out about files and credentials that the settings name, and about the unit of the service.
type Findings struct {
	Identity, Webhook []Finding
	Unit              Unit
}

// Files loads the files at a path, or the default ones if it is empty. If the error is a config.Degraded, the settings can be used.
func (p Program[C, P]) Files(path string) (C, error) {
	cfg, err := p.Place.Load(path)
	if _, fatal := Degraded(err); fatal != nil {
		return cfg, cli.ConfigError{Fault: fatal}
	}
	p.settle(&cfg)
	return cfg, err
}

// Defaults returns the settings that hold without any file.
func (p Program[C, P]) Defaults() C {
	cfg := p.Place.Defaults
	p.settle(&cfg)
	return cfg
}

// settle sets what the files leave to the host, and the directories that systemd has made for the service.
func (p Program[C, P]) settle(cfg P) {
	if p.Settle != nil {
		p.Settle(cfg)
	}
	base := cfg.Base()
	base.StateDirectory = directoryFrom("STATE_DIRECTORY", base.StateDirectory)
	base.RuntimeDirectory = directoryFrom("RUNTIME_DIRECTORY", base.RuntimeDirectory)
}

// directoryFrom returns the first directory that systemd lists in an environment variable; otherwise if it lists none.
func directoryFrom(variable, otherwise string) string {
	first, _, _ := strings.Cut(os.Getenv(variable), ":")
	if filepath.IsAbs(first) {
		return first
	}
	return otherwise
}

// Read is Files with full validation, and with the credentials of this process.
func (p Program[C, P]) Read(path string) (C, error) {
	cfg, _, err := p.ReadWith(path, Own)
	return cfg, err
}

// ReadWith is Read with other credentials, and returns the findings about them.
func (p Program[C, P]) ReadWith(path string, given Given) (C, Findings, error) {
	cfg, err := p.Files(path)
	found, err := p.validate(&cfg, err, given)
	return cfg, found, err
}

// ReadAsService is Read for a command of operators: with the credentials that the service gets by its unit. It also
// returns the findings.
func (p Program[C, P]) ReadAsService(path string) (C, Findings, error) {
	cfg, err := p.Files(path)
	if _, fatal := Degraded(err); fatal == nil {
		if lack := p.lack(&cfg); lack != nil {
			err = lack
		}
	}
	root := ""
	if p.Root != nil {
		root = p.Root(&cfg)
	}
	unit := ReadUnit(root, p.Name+".service")
	found, err := p.validate(&cfg, err, unit.Find)
	found.Unit = unit
	return cfg, found, err
}

// validate validates the files and credentials that the settings name. It adds their faults to reading, which is the error of reading the
// settings.
func (p Program[C, P]) validate(cfg P, reading error, given Given) (Findings, error) {
	if _, fatal := Degraded(reading); fatal != nil {
		return Findings{}, reading
	}
	var found Findings
	if p.Identity != nil {
		found.Identity = p.Identity(cfg, given)
	}
	found.Webhook = Look(&cfg.Base().Webhook, p.Name, given)
	if err := Add(reading, slices.Concat(found.Identity, found.Webhook)); err != nil {
		return found, cli.ConfigError{Fault: err}
	}
	return found, nil
}

// ConfigFlag defines --config, and returns where the path will be: "" stands for the default files.
func (p Program[C, P]) ConfigFlag(cmd *cobra.Command) *string {
	path := cli.FileFlag(cmd, "config", fmt.Sprintf("read FILE and the drop-ins in FILE.d instead of %s and its drop-ins", p.Place.File))
	_ = cmd.MarkFlagFilename("config", "toml") // It fails only for a flag that is not defined.
	return path
}

// RunFlags defines the flags of "run", and returns a function that reads the settings with them.
func (p Program[C, P]) RunFlags(cmd *cobra.Command) (read func() (C, error)) {
	path := p.ConfigFlag(cmd)
	dryRun := cmd.Flags().Bool("dry-run", false, "log what would be done, but change nothing in the cluster")
	return func() (C, error) {
		cfg, err := p.Read(*path)
		if _, fatal := Degraded(err); fatal != nil {
			return cfg, err
		}
		if cmd.Flags().Changed("dry-run") { // --dry-run=false overrides the setting, too.
			P(&cfg).Base().DryRun = *dryRun
		}
		if lack := p.lack(&cfg); lack != nil {
			return cfg, lack
		}
		return cfg, err
	}
}

// lack returns an error if the settings lack something without which the program cannot run.
func (p Program[C, P]) lack(cfg P) error {
	if p.Lacks != nil {
		if lack := p.Lacks(cfg); lack != nil {
			return cli.ConfigError{Fault: lack}
		}
	}
	return nil
}

// Command returns the command "config". queue says that "config import" makes settings for nth-queue, not nth.
func (p Program[C, P]) Command(queue bool) *cobra.Command {
	cmd := &cobra.Command{
		Use: "config", Short: "print, validate or import the configuration", Args: cobra.NoArgs,
		Long: "Prints the settings in effect, all of them, as a valid configuration file.",
	}
	path := p.ConfigFlag(cmd)
	origin := cmd.Flags().Bool("origin", false, "add where each setting is from: a file with its line, or the default")
	check := cmd.Flags().Bool("check", false, "only validate, with the service's credentials: one line for each file that was read or ignored")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *check {
			return p.check(*path, cmd.OutOrStdout())
		}
		cfg, err := p.Read(*path)
		if _, fatal := Degraded(err); fatal != nil {
			return err
		}
		var origins map[string]string
		if *origin {
			origins = p.Place.Origins(*path)
		}
		return errors.Join(config.Encode[C, P](cmd.OutOrStdout(), cfg, origins), err)
	}
	cmd.AddCommand(importing.Command(p.Name, queue, func(name string, text []byte) error {
		cfg := p.Place.Defaults
		return config.Decode[C, P](name, text, &cfg)
	}))
	return cmd
}

// check is "config --check". It writes one line for each file and credential that was read or ignored, and "ok" unless something is
// wrong.
func (p Program[C, P]) check(path string, out io.Writer) error {
	_, found, wrong := p.ReadAsService(path)
	if _, fatal := Degraded(wrong); fatal != nil {
		return wrong
	}
	sources, err := p.Place.Sources(path)
	if err != nil {
		return cli.ConfigError{Fault: err}
	}
	for _, f := range slices.Concat(FromFiles(sources), found.Identity, found.Webhook) {
		switch {
		case f.Source == "" || f.Fault != nil: // It is about the settings themselves, or a fault, which wrong has.
		case f.Passed != "":
			fmt.Fprintf(out, "%s: ignored: %s\n", f.Source, f.Passed)
		default:
			fmt.Fprintf(out, "%s: read\n", f.Source)
		}
	}
	if doubt := found.Unit.Doubt(); doubt != "" {
		fmt.Fprintln(out, doubt)
	}
	if wrong != nil {
		return wrong
	}
	var files []string
	for _, s := range sources {
		if s.Passed == "" {
			files = append(files, s.File)
		}
	}
	if len(files) == 0 {
		files = []string{p.Place.File + " (absent)"}
	}
	_, err = fmt.Fprintf(out, "%s: ok\n", strings.Join(files, ", "))
	return err
}

// FromFiles returns a finding for each file of the settings.
func FromFiles(sources []config.Source) []Finding {
	found := make([]Finding, len(sources))
	for i, s := range sources {
		found[i] = Finding{Source: s.File, Passed: s.Passed}
	}
	return found
}
