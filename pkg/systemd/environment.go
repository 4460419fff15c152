package systemd

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
)

// ReadEnvironment reads, below root ("" for "/"), the unit files of the first of these services that exists: "NAME=value" for each
// variable that Environment= sets, and the paths that EnvironmentFile= names. It is for where systemd cannot be asked. If none of
// the services exists, all are empty.
func ReadEnvironment(root string, services ...string) (service string, variables, files []string, err error) {
	for _, service := range services {
		all, found, err := readUnit(root, service)
		for _, a := range all {
			switch {
			case a.name == "Environment" && a.value == "":
				variables = nil
			case a.name == "Environment":
				for _, word := range words(a.value) {
					if variable, ok := unspecified(word); ok {
						variables = append(variables, variable)
					}
				}
			case a.name == "EnvironmentFile" && a.value == "":
				files = nil
			case a.name == "EnvironmentFile":
				if file, ok := unspecified(a.value); ok {
					files = append(files, strings.TrimPrefix(file, "-"))
				}
			}
		}
		if found || err != nil {
			return service, variables, files, err
		}
	}
	return "", nil, nil, nil
}

// unspecified replaces "%%" with "%". Other specifiers are left, as only systemd can resolve them. It is not ok if a digit follows a
// percent sign, as in a URL that was not escaped for systemd: there is no such specifier, and systemd ignores the text.
func unspecified(text string) (value string, ok bool) {
	single := strings.ReplaceAll(text, "%%", "\x00")
	for i := range len(single) - 1 {
		if next := single[i+1]; single[i] == '%' && next >= '0' && next <= '9' {
			return "", false
		}
	}
	return strings.ReplaceAll(single, "\x00", "%"), true
}

// ReadEnvironmentFiles reads files below root as EnvironmentFile= does, and returns "NAME=value" for each variable. Paths may
// be patterns. Files that do not exist are ignored; those that cannot be read are an error.
func ReadEnvironmentFiles(root string, paths []string) (variables []string, err error) {
	for _, path := range paths {
		found, _ := filepath.Glob(filepath.Join("/", root, path)) // A malformed pattern matches nothing.
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
