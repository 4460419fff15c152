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

// readUnit reads what the files of a service's unit below root ("" for "/") set for it, in the order in which they count. An empty value takes
// back what came before it.
func readUnit(root, service string, set func(name, value string)) (found bool, err error) {
	paths := unitFiles(root, service)
	for _, path := range paths {
		if err := readUnitFile(path, set); err != nil {
			return false, fmt.Errorf("reading the unit %s: %w", path, err)
		}
	}
	return len(paths) > 0, nil
}

// unitFiles lists the unit of a service and its drop-ins, in the order in which they count; nothing if there is no unit.
func unitFiles(root, service string) []string {
	main := ""
	for _, directory := range slices.Backward(unitDirectories) {
		path := filepath.Join("/", root, directory, service)
		if _, err := os.Stat(path); err == nil {
			main = path
		}
	}
	if main == "" {
		return nil
	}
	dropIns := map[string]string{} // the paths, by their names: of two files of one name, one counts
	for _, name := range dropInNames(service) {
		for _, directory := range slices.Backward(unitDirectories) {
			found, _ := filepath.Glob(filepath.Join("/", root, directory, name, "*.conf")) // The pattern is right.
			for _, path := range found {
				dropIns[filepath.Base(path)] = path
			}
		}
	}
	paths := []string{main}
	for _, name := range slices.Sorted(maps.Keys(dropIns)) {
		paths = append(paths, dropIns[name])
	}
	return paths
}

// dropInNames are those of the directories for a service's drop-ins, the one that wins last: for all services, for those whose names begin as
// this one's does, up to a dash, and for this one.
func dropInNames(service string) []string {
	names := []string{"service.d"}
	for i, r := range service {
		if r == '-' {
			names = append(names, service[:i+1]+".service.d")
		}
	}
	return append(names, service+".d")
}

// readUnitFile reads one file.
func readUnitFile(path string, set func(name, value string)) error {
	text, err := readFile(path)
	if err != nil {
		return err
	}
	for name, value := range assignments(string(text), "Service") {
		set(name, value)
	}
	return nil
}

// readFile reads a file, or /dev/null in the place of one, but nothing that would be read for ever.
func readFile(path string) ([]byte, error) {
	if info, err := os.Stat(path); err == nil && info.Mode()&(fs.ModeNamedPipe|fs.ModeSocket) != 0 {
		return nil, errors.New("it is no file")
	}
	return os.ReadFile(path)
}

// credentialLists are the settings of credentials, with the list that an empty value of each empties.
var credentialLists = map[string]string{
	"LoadCredential": "Load", "LoadCredentialEncrypted": "Load", "SetCredential": "Set", "SetCredentialEncrypted": "Set", "ImportCredential": "Import",
}

// ReadCredentials reads from files, below root ("" for "/"), which credentials a service is given by its unit and the drop-ins: each is a line
// such as "LoadCredential=ID:PATH". It is for where systemd cannot be asked. If there is no such unit, found is false.
func ReadCredentials(root, service string) (lines []string, found bool, err error) {
	found, err = readUnit(root, service, func(name, value string) {
		list := credentialLists[name]
		switch {
		case list == "":
		case value == "":
			lines = slices.DeleteFunc(lines, func(line string) bool { return strings.HasPrefix(line, list) })
		default:
			lines = append(lines, name+"="+strings.ReplaceAll(value, "%%", "%"))
		}
	})
	return lines, found, err
}
