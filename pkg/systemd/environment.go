package systemd

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
)

// ReadEnvironment reads from files, below root ("" for "/"), what systemd would tell of the environment of the first of these
// services that there is: what Environment= sets in the unit and its drop-ins, "NAME=value" each, and the paths that
// EnvironmentFile= names. It is for where systemd cannot be asked. If there is none of the services, all are empty.
func ReadEnvironment(root string, services ...string) (service string, variables, files []string, err error) {
	for _, service := range services {
		found, err := readUnit(root, service, func(name, value string) {
			switch {
			case name == "Environment" && value == "":
				variables = nil
			case name == "Environment":
				for _, word := range words(value) {
					if variable, ok := unspecified(word); ok {
						variables = append(variables, variable)
					}
				}
			case name == "EnvironmentFile" && value == "":
				files = nil
			case name == "EnvironmentFile":
				if file, ok := unspecified(value); ok {
					files = append(files, strings.TrimPrefix(file, "-"))
				}
			}
		})
		if found || err != nil {
			return service, variables, files, err
		}
	}
	return "", nil, nil, nil
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
			text, err := readFile(file)
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
