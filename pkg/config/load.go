package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Place is where the settings are if nobody names a file, and what they are without one.
type Place struct {
	File     string // may be absent
	Defaults Config
}

// Usual is the place on a machine.
func Usual() Place { return Place{File: DefaultFile, Defaults: Default()} }

// Load reads the settings as Place.Load does, from the usual place.
func Load(path string) (Config, error) { return Usual().Load(path) }

// Load reads the settings from path and its drop-ins, path.d/*.toml, in lexical order; a later file overrides single
// keys of an earlier one. The empty path is the place's File. The error has one line for each fault. With a Degraded, the
// settings are of use: all else in them is as it should be.
func (p Place) Load(path string) (Config, error) {
	sources, err := p.Sources(path)
	if err != nil {
		return Config{}, err
	}
	cfg := p.Defaults
	if err = read(sources, cfg.tables()); !usable(err) {
		return Config{}, err
	}
	return cfg, err
}

// Degraded are faults in what is only told: in the tables [log], [webhook] and [metrics]. A key with a fault keeps the value that it
// had. It has one line for each.
type Degraded struct{ Faults []error }

func (d Degraded) Error() string { return errors.Join(d.Faults...).Error() }

// Telling returns c with what is only told as it is in other.
func (c Config) Telling(other Config) Config {
	c.Log, c.Webhook, c.Metrics = other.Log, other.Webhook, other.Metrics
	return c
}

// Telling returns c with what is only told as it is in other.
func (c Queue) Telling(other Queue) Queue {
	c.Log, c.Webhook, c.Metrics = other.Log, other.Webhook, other.Metrics
	return c
}

// usable tells whether settings with such faults, or none, are of use.
func usable(faults error) bool {
	_, degraded := errors.AsType[Degraded](faults)
	return faults == nil || degraded
}

// tellsOnly tells whether nothing but what is told follows from a key.
func tellsOnly(key string) bool {
	table, _, _ := strings.Cut(key, ".")
	return slices.Contains([]string{"log", "webhook", "metrics"}, table)
}

// read reads files, one after the other, into what the tables describe.
func read(sources []Source, tables []table) error {
	var faults []error
	works := true
	for _, s := range sources {
		if s.Passed != "" {
			continue
		}
		data, err := os.ReadFile(s.File)
		if err != nil {
			err = fileFault(s.File, err)
		} else {
			err = decode(s.File, data, tables)
		}
		if degraded, ok := errors.AsType[Degraded](err); ok {
			faults = append(faults, degraded.Faults...)
		} else if err != nil {
			faults, works = append(faults, err), false
		}
	}
	return joined(faults, works)
}

// joined makes one error of faults, a Degraded if the settings are of use all the same.
func joined(faults []error, works bool) error {
	if works && len(faults) > 0 {
		return Degraded{faults}
	}
	return errors.Join(faults...)
}

// Source is a file where settings may stand.
type Source struct {
	File string
	// Passed is why it is passed over; empty for one that is read.
	Passed string
}

// Sources lists the files that Load reads for path, in order, with those beside them that it does not.
func (p Place) Sources(path string) ([]Source, error) { return sourcesAt(path, p.File) }

// sourcesAt lists the files for path or, if that is empty, for usual, which may be absent.
func sourcesAt(path, usual string) ([]Source, error) {
	var sources []Source
	if path != "" {
		sources = append(sources, Source{File: path})
	} else {
		path = usual
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			sources = append(sources, Source{File: path})
		}
	}
	dropins, err := os.ReadDir(path + ".d")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fileFault(path+".d", err)
	}
	for _, entry := range dropins {
		s := Source{File: filepath.Join(path+".d", entry.Name())}
		switch {
		case strings.HasPrefix(entry.Name(), "."): // Hidden files are what editors leave beside the file they have open.
			s.Passed = "its name begins with a dot"
		case filepath.Ext(entry.Name()) != ".toml":
			s.Passed = "its name does not end with .toml"
		}
		sources = append(sources, s)
	}
	return sources, nil
}

// fileFault tells why a file can't be read, naming it once.
func fileFault(file string, err error) error {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		err = pathErr.Err
	}
	return fmt.Errorf("%s: %w", file, err)
}
