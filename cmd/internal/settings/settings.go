// Package settings loads a program's settings from its files and from the credentials that systemd passes to the service, and validates
// them completely. A command that people run beside the service looks for the credentials where the unit gets them from, so that
// a missing one is found before the service needs it. It also has the command "config".
package settings

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/nth-project/nth/cmd/internal/importing"
	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/pkg/config"
)

// Program describes where a program's settings come from.
type Program[C any, P config.Pointer[C]] struct {
	Name  string
	Place config.Place[C, P]
	// Settle sets what the files leave to the environment. This and all following functions may be nil.
	Settle func(P)
	// Root returns the root directory of the service's unit; "" is "/".
	Root func(P) string
	// Identity uses the identity that the service gets as a credential, if any, and returns its findings.
	Identity func(P, Given) []Finding
	// Lacks returns why "run" cannot start with the settings.
	Lacks func(P) error
}

// Findings are what was found out about files and credentials that the settings name, and about the unit of the service.
type Findings struct {
	Identity, Webhook []Finding
	Unit              Unit
}

// Files loads the files at a path, or the default ones if it is empty. Directories from systemd override those of the files. If the
// error is a config.Degraded, the settings can be used.
func (p Program[C, P]) Files(path string) (C, error) {
	cfg, err := p.Place.Load(path)
	if _, fatal := Degraded(err); fatal != nil {
		return cfg, program.ConfigError{Fault: fatal}
	}
	if p.Settle != nil {
		p.Settle(&cfg)
	}
	base := P(&cfg).Base()
	base.StateDirectory = program.DirectoryFrom("STATE_DIRECTORY", base.StateDirectory)
	base.RuntimeDirectory = program.DirectoryFrom("RUNTIME_DIRECTORY", base.RuntimeDirectory)
	return cfg, err
}

// Read is Files with full validation, and with the credentials of this process.
func (p Program[C, P]) Read(path string) (C, error) {
	cfg, _, err := p.ReadWith(path, Own)
	return cfg, err
}

// ReadWith is Read with other credentials, and returns the findings about them.
func (p Program[C, P]) ReadWith(path string, given Given) (C, Findings, error) {
	cfg, err := p.Files(path)
	found, err := p.judge(&cfg, err, given)
	return cfg, found, err
}

// Beside is Read with the credentials that the service gets by its unit. If offline, systemd is not asked.
func (p Program[C, P]) Beside(ctx context.Context, path string, offline bool) (C, Findings, error) {
	cfg, err := p.Files(path)
	root := ""
	if p.Root != nil {
		root = p.Root(&cfg)
	}
	unit := Beside(ctx, root, p.Name+".service", offline)
	found, err := p.judge(&cfg, err, unit.Find)
	found.Unit = unit
	return cfg, found, err
}

// judge validates what the settings name, and adds the faults to the error of reading them.
func (p Program[C, P]) judge(cfg P, reading error, given Given) (Findings, error) {
	if _, fatal := Degraded(reading); fatal != nil {
		return Findings{}, reading
	}
	var found Findings
	if p.Identity != nil {
		found.Identity = p.Identity(cfg, given)
	}
	found.Webhook = Look(&cfg.Base().Webhook, p.Name, given)
	if err := Add(reading, slices.Concat(found.Identity, found.Webhook)); err != nil {
		return found, program.ConfigError{Fault: err}
	}
	return found, nil
}

// ParseRun parses the flags of "run", and returns a function that reads the settings with them. If done is true, help was printed.
func (p Program[C, P]) ParseRun(usage string, args []string, to program.Streams) (read func() (C, error), done bool, err error) {
	var path string
	var dryRun *bool // nil leaves it to the files
	done, err = program.Parse(p.Name+" run", usage, args, to, func(flags *flag.FlagSet) {
		program.ConfigFlag(flags, &path)
		flags.BoolFunc("dry-run", "", func(text string) error {
			value, err := strconv.ParseBool(text)
			if err != nil {
				return errors.New("must be true or false")
			}
			dryRun = &value
			return nil
		})
	})
	return func() (C, error) {
		cfg, err := p.Read(path)
		if _, fatal := Degraded(err); fatal != nil {
			return cfg, err
		}
		if dryRun != nil {
			P(&cfg).Base().DryRun = *dryRun
		}
		if p.Lacks != nil {
			if lack := p.Lacks(&cfg); lack != nil {
				return cfg, program.ConfigError{Fault: lack}
			}
		}
		return cfg, err
	}, done, err
}

// Command is the command "config". queue says for which program "config import" makes settings.
func (p Program[C, P]) Command(ctx context.Context, usage string, queue bool, args []string, to program.Streams) error {
	if len(args) > 0 && args[0] == "import" {
		decode := func(name string, text []byte) error {
			cfg := p.Place.Defaults
			return config.Decode[C, P](name, text, &cfg)
		}
		return importing.Command{Program: p.Name, Usage: usage, Queue: queue, Decode: decode}.Run(args[1:], to)
	}
	var path string
	var check bool
	done, err := program.Parse(p.Name+" config", usage, args, to, func(flags *flag.FlagSet) {
		program.ConfigFlag(flags, &path)
		flags.BoolVar(&check, "check", false, "")
	})
	switch {
	case done || err != nil:
		return err
	case check:
		return p.check(ctx, path, to.Out)
	}
	cfg, err := p.Read(path)
	if _, fatal := Degraded(err); fatal != nil {
		return err
	}
	return errors.Join(config.Encode[C, P](to.Out, cfg), err)
}

// check is "config --check". It writes one line for each file and credential that was read or ignored, and "ok" unless something is
// wrong.
func (p Program[C, P]) check(ctx context.Context, path string, out io.Writer) error {
	_, found, wrong := p.Beside(ctx, path, false)
	if _, fatal := Degraded(wrong); fatal != nil {
		return wrong
	}
	sources, err := p.Place.Sources(path)
	if err != nil {
		return program.ConfigError{Fault: err}
	}
	for _, f := range slices.Concat(FromFiles(sources), found.Identity, found.Webhook) {
		switch {
		case f.Source == "" || f.Fault != nil:
		case f.Passed != "":
			fmt.Fprintf(out, "%s: ignored: %s\n", f.Source, f.Passed)
		default:
			fmt.Fprintf(out, "%s: read\n", f.Source)
		}
	}
	for _, why := range found.Unit.Doubts() {
		fmt.Fprintln(out, why)
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

// FromFiles returns a finding for each file.
func FromFiles(sources []config.Source) []Finding {
	found := make([]Finding, len(sources))
	for i, s := range sources {
		found[i] = Finding{Source: s.File, Passed: s.Passed}
	}
	return found
}
