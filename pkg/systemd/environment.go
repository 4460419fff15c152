package systemd

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"unicode"
)

// ReadEnvironment reads, below root ("" for "/"), the unit files of the first of these services that exists: "NAME=value" for each
// variable that Environment= sets, and the paths that EnvironmentFile= names. It is for where systemd cannot be asked. If none of
// the services exists, all are empty.
func ReadEnvironment(root string, services ...string) (service string, variables, files []string, err error) {
	for _, service := range services {
		all, found, err := readUnit(root, service)
		for _, a := range all {
			value := strings.ReplaceAll(a.value, "%%", "%") // Other specifiers are left, as only systemd can resolve them.
			switch a.name {
			case "Environment":
				if variables = append(variables, words(value)...); value == "" {
					variables = nil
				}
			case "EnvironmentFile":
				if files = append(files, strings.TrimPrefix(value, "-")); value == "" {
					files = nil
				}
			}
		}
		if found || err != nil {
			return service, variables, files, err
		}
	}
	return "", nil, nil, nil
}

// words splits a value at whitespace outside quotes, and removes the quotes. Escapes are left: addresses have none.
func words(value string) []string {
	var found []string
	var word strings.Builder
	quote, begun := rune(0), false
	for _, r := range value + " " {
		switch {
		case quote == 0 && unicode.IsSpace(r):
			if begun {
				found = append(found, word.String())
				word.Reset()
			}
			begun = false
			continue
		case quote == 0 && (r == '"' || r == '\''):
			quote = r
		case r == quote:
			quote = 0
		default:
			word.WriteRune(r)
		}
		begun = true
	}
	return found
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

// environmentIn parses the text of an EnvironmentFile=, as far as addresses need it: a value may be in quotes. It returns "NAME=value" for
// each variable.
func environmentIn(text string) (variables []string) {
	for _, a := range assignments(text, "") {
		value := a.value
		if last := len(value) - 1; last > 0 && value[0] == value[last] && strings.ContainsAny(value[:1], `"'`) {
			value = value[1:last]
		}
		variables = append(variables, a.name+"="+value)
	}
	return variables
}
