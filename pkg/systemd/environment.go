package systemd

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// unitDirectories are where units lie, the one that wins first.
var unitDirectories = []string{"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"}

// ReadEnvironment reads from files, below root ("" for "/"), what systemd would tell of the environment of the first of these
// services that there is: what Environment= sets in the unit and its drop-ins, "NAME=value" each, and the paths that
// EnvironmentFile= names. It is for where systemd cannot be asked. If there is none of the services, all are empty.
func ReadEnvironment(root string, services ...string) (service string, variables, files []string, err error) {
	for _, service := range services {
		paths := unitFiles(root, service)
		for _, path := range paths {
			if err := readUnit(path, &variables, &files); err != nil {
				return "", nil, nil, fmt.Errorf("reading the unit %s: %w", path, err)
			}
		}
		if len(paths) > 0 {
			return service, variables, files, nil
		}
	}
	return "", nil, nil, nil
}

// unitFiles lists the unit of a service and its drop-ins, in the order in which they count; nothing if there is no unit.
func unitFiles(root, service string) []string {
	main := ""
	dropIns := map[string]string{} // the paths, by their names
	for _, directory := range slices.Backward(unitDirectories) {
		path := filepath.Join("/", root, directory, service)
		if _, err := os.Stat(path); err == nil {
			main = path
		}
		found, _ := filepath.Glob(path + ".d/*.conf") // The pattern is right.
		for _, path := range found {
			dropIns[filepath.Base(path)] = path
		}
	}
	if main == "" {
		return nil
	}
	paths := []string{main}
	for _, name := range slices.Sorted(maps.Keys(dropIns)) {
		paths = append(paths, dropIns[name])
	}
	return paths
}

// readUnit takes over what one file says. An empty value takes back what came before it.
func readUnit(path string, variables, files *[]string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for name, value := range assignments(string(text), "Service") {
		switch {
		case name == "Environment" && value == "":
			*variables = nil
		case name == "Environment":
			for _, word := range words(value) {
				if variable, ok := unspecified(word); ok {
					*variables = append(*variables, variable)
				}
			}
		case name == "EnvironmentFile" && value == "":
			*files = nil
		case name == "EnvironmentFile":
			if file, ok := unspecified(value); ok {
				*files = append(*files, strings.TrimPrefix(file, "-"))
			}
		}
	}
	return nil
}

// unspecified takes the percent signs from a text that are doubled to be no specifiers. What specifiers stand for, only systemd
// knows; there is none that is a digit, such as in an address that was escaped for nobody but URLs, and systemd ignores the text.
func unspecified(text string) (string, bool) {
	single := strings.ReplaceAll(text, "%%", "\x00")
	for i := range len(single) - 1 {
		if next := single[i+1]; single[i] == '%' && next >= '0' && next <= '9' {
			return "", false
		}
	}
	return strings.ReplaceAll(single, "\x00", "%"), true
}

// ReadEnvironmentFiles reads files as EnvironmentFile= does, below root: "NAME=value" in each line, perhaps in quotes. Paths may
// be patterns. What is not there is passed over, and what cannot be read is an error.
func ReadEnvironmentFiles(root string, paths []string) (variables []string, err error) {
	for _, path := range paths {
		found, _ := filepath.Glob(filepath.Join("/", root, path)) // A pattern that is wrong finds nothing.
		for _, file := range found {
			info, err := os.Stat(file)
			if err == nil && info.Mode()&(fs.ModeNamedPipe|fs.ModeSocket) != 0 { // It would be read for ever.
				return nil, fmt.Errorf("reading the environment in %s: it is no file", file)
			}
			text, err := os.ReadFile(file)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("reading the environment in %s: %w", file, err)
			}
			variables = append(variables, environmentIn(string(text))...)
		}
	}
	return variables, nil
}
