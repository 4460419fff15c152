// Package settings is how a program comes to its settings: from the files, and the credentials that systemd hands the service, judged also
// by what only their users can judge. A command that people run beside the service finds the credentials at their sources, as the unit
// names them, so that what is missing there is found before the service needs it. The command "config" shows what has come of it.
package settings

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/nth-project/nth/cmd/internal/importing"
	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/pkg/config"
)

// Program is how the program of that name comes to its settings.
type Program[C any, P config.Pointer[C]] struct {
	Name  string
	Place config.Place[C, P]
	// Settle replaces what the files leave to the surroundings. It may be nil, as may all that follow.
	Settle func(P)
	// Root is where the file system begins that the service's unit is in.
	Root func(P) string
	// Identity takes the identity that the service is given as a credential, and says what it has found.
	Identity func(P, Given) []Finding
	// Lacks is what "run" cannot do without.
	Lacks func(P) error
}

// Looked is what a command that people run beside the service has found: what was read and passed over, and what the unit hands the service.
type Looked struct {
	Identity, Webhook []Finding
	Unit              Unit
}

// Files reads the files at a path, or where it is empty the usual ones, and lets systemd's directories go before theirs. With
// config.Degraded in the error, the settings are of use.
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

// Read is Files, judged also by what only their users can judge, with the credentials that this process has been given.
func (p Program[C, P]) Read(path string) (C, error) {
	cfg, _, err := p.ReadWith(path, Own)
	return cfg, err
}

// ReadWith is Read with other credentials, and says what was found out about them.
func (p Program[C, P]) ReadWith(path string, given Given) (C, Looked, error) {
	cfg, err := p.Files(path)
	looked, err := p.judge(&cfg, err, given)
	return cfg, looked, err
}

// Beside is Read with the credentials that the service would get by its unit. Offline, systemd is not asked.
func (p Program[C, P]) Beside(ctx context.Context, path string, offline bool) (C, Looked, error) {
	cfg, err := p.Files(path)
	root := ""
	if p.Root != nil {
		root = p.Root(&cfg)
	}
	unit := Beside(ctx, root, p.Name+".service", offline)
	looked, err := p.judge(&cfg, err, unit.Find)
	looked.Unit = unit
	return cfg, looked, err
}

// judge adds to what reading the settings has told what is wrong with what they name.
func (p Program[C, P]) judge(cfg P, reading error, given Given) (Looked, error) {
	if _, fatal := Degraded(reading); fatal != nil {
		return Looked{}, reading
	}
	var looked Looked
	if p.Identity != nil {
		looked.Identity = p.Identity(cfg, given)
	}
	looked.Webhook = Look(&cfg.Base().Webhook, p.Name, given)
	if err := Add(reading, slices.Concat(looked.Identity, looked.Webhook)); err != nil {
		return looked, program.ConfigError{Fault: err}
	}
	return looked, nil
}

// ParseRun returns what reads the settings that "run" has with its flags; done tells that help was asked for instead.
func (p Program[C, P]) ParseRun(usage string, args []string, to program.Streams) (read func() (C, error), done bool, err error) {
	flags, done, err := program.ParseRun(p.Name, usage, args, to)
	if done || err != nil {
		return nil, done, err
	}
	return func() (C, error) {
		cfg, err := p.Read(flags.Config)
		if _, fatal := Degraded(err); fatal != nil {
			return cfg, err
		}
		base := P(&cfg).Base()
		base.DryRun = flags.DryRun(base.DryRun)
		if p.Lacks != nil {
			if lack := p.Lacks(&cfg); lack != nil {
				return cfg, program.ConfigError{Fault: lack}
			}
		}
		return cfg, err
	}, false, nil
}

// Command is "config". queue tells whose settings "config import" makes.
func (p Program[C, P]) Command(ctx context.Context, usage string, queue bool, args []string, to program.Streams) error {
	command := importing.Command{
		Program: p.Name, Usage: usage, Queue: queue,
		Judge: func(name string, text []byte) error {
			cfg := p.Place.Defaults
			return config.Decode[C, P](name, text, &cfg)
		},
		Check: func(path string) error { return p.check(ctx, path, to.Out) },
		Show: func(path string) error {
			cfg, err := p.Read(path)
			if _, fatal := Degraded(err); fatal != nil {
				return err
			}
			return errors.Join(config.Encode[C, P](to.Out, cfg), err)
		},
	}
	return command.Run(args, to)
}

// check is "config --check": it writes which files and credentials were read and which were passed over, one line each, and that all
// is right, unless something is not.
func (p Program[C, P]) check(ctx context.Context, path string, out io.Writer) error {
	_, looked, wrong := p.Beside(ctx, path, false)
	if _, fatal := Degraded(wrong); fatal != nil {
		return wrong
	}
	sources, err := p.Place.Sources(path)
	if err != nil {
		return program.ConfigError{Fault: err}
	}
	for _, f := range slices.Concat(FromFiles(sources), looked.Identity, looked.Webhook) {
		switch {
		case f.Source == "" || f.Fault != nil:
		case f.Passed != "":
			fmt.Fprintf(out, "%s: ignored: %s\n", f.Source, f.Passed)
		default:
			fmt.Fprintf(out, "%s: read\n", f.Source)
		}
	}
	for _, why := range looked.Unit.Doubts() {
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

// FromFiles says which files were read, and which passed over.
func FromFiles(sources []config.Source) []Finding {
	found := make([]Finding, len(sources))
	for i, s := range sources {
		found[i] = Finding{Source: s.File, Passed: s.Passed}
	}
	return found
}
