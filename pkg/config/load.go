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
	files, err := p.Files(path)
	if err != nil {
		return Config{}, err
	}
	cfg := p.Defaults
	if err = read(files, cfg.tables()); !usable(err) {
		return Config{}, err
	}
	return cfg, err
}

// Degraded are faults in what is only told: in the tables [log], [webhook] and [metrics]. A key with a fault keeps the value that it
// had. It has one line for each.
type Degraded struct{ Faults []error }

func (d Degraded) Error() string { return errors.Join(d.Faults...).Error() }

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
func read(files []string, tables []table) error {
	var faults []error
	works := true
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			err = fileFault(file, err)
		} else {
			err = decode(file, data, tables)
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

// Files lists the files that Load reads for path, in order.
func (p Place) Files(path string) ([]string, error) { return filesAt(path, p.File) }

// filesAt lists the files to read for path or, if that is empty, for usual, which may be absent.
func filesAt(path, usual string) ([]string, error) {
	var files []string
	if path != "" {
		files = append(files, path)
	} else {
		path = usual
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			files = append(files, path)
		}
	}
	dropins, err := os.ReadDir(path + ".d")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fileFault(path+".d", err)
	}
	for _, entry := range dropins {
		name := entry.Name()
		// Hidden files are what editors leave beside the file they have open.
		if filepath.Ext(name) == ".toml" && !strings.HasPrefix(name, ".") {
			files = append(files, filepath.Join(path+".d", name))
		}
	}
	return files, nil
}

// fileFault tells why a file can't be read, naming it once.
func fileFault(file string, err error) error {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		err = pathErr.Err
	}
	return fmt.Errorf("%s: %w", file, err)
}
