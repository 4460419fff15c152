package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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
// keys of an earlier one. The empty path is the place's File. The error has one line for each fault.
func (p Place) Load(path string) (Config, error) {
	files, err := p.Files(path)
	if err != nil {
		return Config{}, err
	}
	cfg := p.Defaults
	if err := read(files, cfg.tables()); err != nil {
		return Config{}, err
	}
	return cfg, nil
}

// read reads files, one after the other, into what the tables describe.
func read(files []string, tables []table) error {
	var faults []error
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			faults = append(faults, fileFault(file, err))
			continue
		}
		if err := decode(file, data, tables); err != nil {
			faults = append(faults, err)
		}
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
