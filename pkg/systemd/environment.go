package systemd

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"unicode"
)

// ReadEnvironment returns the name of the first of these services that has a unit below root ("" for "/"), and its environment. variables has
// "NAME=value" for each variable that Environment= or a file of EnvironmentFile= sets. If no service has a unit, the results are empty.
func ReadEnvironment(root string, services ...string) (service string, variables []string, err error) {
	for _, service := range services {
		all, found, err := readUnit(root, service)
		var files []string
		for _, a := range all {
			value := strings.ReplaceAll(a.value, "%%", "%") // Other specifiers are left, as only systemd can resolve them.
			switch a.name {
			case "Environment":
				variables = append(variables, words(value)...)
				if value == "" { // It resets the list, here and below.
					variables = nil
				}
			case "EnvironmentFile":
				files = append(files, strings.TrimPrefix(value, "-")) // "-": the file may be missing.
				if value == "" {
					files = nil
				}
			}
		}
		if err == nil {
			variables, err = addFiles(variables, root, files)
		}
		if found || err != nil {
			return service, variables, err
		}
	}
	return "", nil, nil
}

// words splits a value at whitespace outside quotes, and removes the quotes. It leaves escapes as they are: nth looks for the addresses of
// proxies, which have none.
func words(value string) []string {
	var found []string
	var word strings.Builder
	quote, begun := rune(0), false  // the quote that is open, if any; whether a word has begun, which may be empty: ""
	for _, r := range value + " " { // The space ends the last word.
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

// addFiles adds to variables those of files below root. As in EnvironmentFile=, a path may be a pattern. addFiles ignores a file that does not
// exist. A file that cannot be read is an error.
func addFiles(variables []string, root string, paths []string) ([]string, error) {
	for _, path := range paths {
		found, _ := filepath.Glob(filepath.Join("/", root, path)) // A malformed pattern matches nothing.
		for _, file := range found {
			text, err := readFile(file)
			if errors.Is(err, fs.ErrNotExist) {
				continue // It was removed meanwhile, or it is a link to nothing.
			}
			if err != nil {
				return nil, fmt.Errorf("reading the environment in %s: %w", file, err)
			}
			variables = append(variables, environmentIn(string(text))...)
		}
	}
	return variables, nil
}

// environmentIn parses the text of an EnvironmentFile=, and returns "NAME=value" for each variable. It removes quotes around a value, but
// resolves no escapes: the addresses of proxies have none.
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
