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

	"github.com/coreos/go-systemd/v22/unit"
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
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	options, err := unit.DeserializeOptions(file)
	if err != nil {
		return err
	}
	for _, o := range options {
		switch {
		case o.Section != "Service":
		case o.Name == "Environment" && o.Value == "":
			*variables = nil
		case o.Name == "Environment":
			*variables = append(*variables, words(strings.ReplaceAll(o.Value, "\\\n", " "))...)
		case o.Name == "EnvironmentFile" && o.Value == "":
			*files = nil
		case o.Name == "EnvironmentFile":
			*files = append(*files, strings.TrimPrefix(o.Value, "-"))
		}
	}
	return nil
}

// ReadEnvironmentFiles reads files as EnvironmentFile= does, below root: "NAME=value" in each line, perhaps in quotes. Paths may
// be patterns. What is not there is passed over, and what cannot be read is an error.
func ReadEnvironmentFiles(root string, paths []string) (variables []string, err error) {
	for _, path := range paths {
		found, _ := filepath.Glob(filepath.Join("/", root, path)) // A pattern that is wrong finds nothing.
		for _, file := range found {
			text, err := os.ReadFile(file)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("reading the environment in %s: %w", file, err)
			}
			for line := range strings.Lines(strings.ReplaceAll(string(text), "\\\n", "")) {
				name, value, found := strings.Cut(strings.TrimSpace(line), "=")
				if found && name != "" && !strings.ContainsAny(name[:1], "#;") {
					variables = append(variables, strings.TrimSpace(name)+"="+strings.Join(words(value), " "))
				}
			}
		}
	}
	return variables, nil
}

// words splits a line at its spaces, except within quotes, which are dropped.
func words(line string) []string {
	var found []string
	var word strings.Builder
	quote, begun, escaped := rune(0), false, false
	for _, r := range line {
		switch {
		case escaped:
			word.WriteRune(r)
			escaped = false
		case r == '\\':
			escaped, begun = true, true
		case r == quote:
			quote = 0
		case quote == 0 && (r == '"' || r == '\''):
			quote, begun = r, true
		case quote == 0 && (r == ' ' || r == '\t'):
			if begun {
				found = append(found, word.String())
			}
			word.Reset()
			begun = false
		default:
			word.WriteRune(r)
			begun = true
		}
	}
	if begun {
		found = append(found, word.String())
	}
	return found
}
