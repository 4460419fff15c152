package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Load reads the settings from path and its drop-ins, path.d/*.toml, in lexical order; a later file overrides single
// keys of an earlier one. The empty path is DefaultFile, which may be absent. The error has one line for each fault.
func Load(path string) (Config, error) {
	files, err := Files(path)
	if err != nil {
		return Config{}, err
	}
	cfg := Default()
	var faults []error
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			faults = append(faults, fileFault(file, err))
			continue
		}
		if err := Decode(file, data, &cfg); err != nil {
			faults = append(faults, err)
		}
	}
	if len(faults) > 0 {
		return Config{}, errors.Join(faults...)
	}
	return cfg, nil
}

// Files lists the files that Load reads for path, in order.
func Files(path string) ([]string, error) {
	var files []string
	if path != "" {
		files = append(files, path)
	} else {
		path = DefaultFile
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
