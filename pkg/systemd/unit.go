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

	"github.com/coreos/go-systemd/v22/journal"
)

// unitDirectories are systemd's unit directories, in the order of their precedence.
var unitDirectories = []string{"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"}

// readUnit returns the assignments in the section [Service] of a service's unit and its drop-ins, below root ("" for "/"), in the order in
// which systemd applies them. An empty value resets a list.
func readUnit(root, service string) (all []assignment, found bool, err error) {
	paths := unitFiles(root, service)
	for _, path := range paths {
		text, err := readFile(path)
		if err != nil {
			return nil, false, fmt.Errorf("reading the unit %s: %w", path, err)
		}
		all = append(all, assignments(string(text), " ")...)
	}
	return slices.DeleteFunc(all, func(a assignment) bool { return a.section != "[Service]" }), len(paths) > 0, nil
}

// assignment is a line "name=value" below a line "[section]".
type assignment struct{ section, name, value string }

// assignments parses the text of a unit (systemd.syntax(7)), or of an EnvironmentFile=. A line that ends with a backslash continues in the
// next one that is no comment, with joint between them. What is no assignment is ignored, as by systemd.
func assignments(text, joint string) (all []assignment) {
	section, begun := "", ""
	for line := range strings.Lines(text + "\n\n") { // An empty line ends the last one if that is to be continued.
		line = strings.TrimSpace(line)
		if line != "" && strings.ContainsAny(line[:1], "#;") {
			continue
		}
		if part, continued := strings.CutSuffix(line, `\`); continued {
			begun += part + joint
			continue
		}
		line, begun = begun+line, ""
		if strings.HasPrefix(line, "[") {
			section = line
		} else if name, value, found := strings.Cut(line, "="); found {
			all = append(all, assignment{section, strings.TrimSpace(name), strings.TrimSpace(value)})
		}
	}
	return all
}

// unitFiles lists the unit file of a service and its drop-ins, in the order in which systemd applies them; nothing if there is no unit.
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
	dropIns := map[string]string{} // paths by file name: of several drop-ins with one name, one is used
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

// dropInNames are the directories for a service's drop-ins, in ascending order of their precedence: for all services, for those with a
// common prefix up to a dash, and for this one.
func dropInNames(service string) []string {
	names := []string{"service.d"}
	for i, r := range service {
		if r == '-' {
			names = append(names, service[:i+1]+".service.d")
		}
	}
	return append(names, service+".d")
}

// readFile reads a file, or /dev/null in place of one, but no pipe or socket, which might block.
func readFile(path string) ([]byte, error) {
	if info, err := os.Stat(path); err == nil && info.Mode()&(fs.ModeNamedPipe|fs.ModeSocket) != 0 {
		return nil, errors.New("it is no file")
	}
	return os.ReadFile(path)
}

// credentialLists has for each setting of credentials the prefix of the settings that share its list, which an empty value resets.
var credentialLists = map[string]string{
	"LoadCredential": "Load", "LoadCredentialEncrypted": "Load", "SetCredential": "Set", "SetCredentialEncrypted": "Set", "ImportCredential": "Import",
}

// ReadCredentials reads, below root ("" for "/"), which credentials a service gets by its unit files: each is a line
// such as "LoadCredential=ID:PATH". Without such a unit, it gets none.
func ReadCredentials(root, service string) (lines []string, err error) {
	all, _, err := readUnit(root, service)
	for _, a := range all {
		list := credentialLists[a.name]
		switch {
		case list == "":
		case a.value == "":
			lines = slices.DeleteFunc(lines, func(line string) bool { return strings.HasPrefix(line, list) })
		default:
			lines = append(lines, a.name+"="+strings.ReplaceAll(a.value, "%%", "%"))
		}
	}
	return lines, err
}

// JournalEnabled reports whether the journal accepts entries with fields.
func JournalEnabled() bool { return journal.Enabled() }

// The paths of what the packages of nth install, in the order of their precedence.
var (
	unitPaths    = []string{"/etc/systemd/system/nth.service", "/run/systemd/system/nth.service", "/usr/lib/systemd/system/nth.service", "/lib/systemd/system/nth.service"}
	wantedPaths  = []string{"/etc/systemd/system/multi-user.target.wants/nth.service", "/usr/lib/systemd/system/multi-user.target.wants/nth.service"}
	catalogPaths = []string{"/usr/lib/systemd/catalog/nth.catalog", "/lib/systemd/catalog/nth.catalog"}
	dropInPaths  = []string{"/etc/systemd/logind.conf.d/80-nth.conf", "/usr/lib/systemd/logind.conf.d/80-nth.conf", "/lib/systemd/logind.conf.d/80-nth.conf"}
)

// Installed has the paths of what is installed of nth for systemd; "" for what is not there.
type Installed struct {
	// Unit is the service's unit file, and Enabled the link that starts it at boot.
	Unit, Enabled string
	// Catalog is the message catalog, and DropIn configures logind to delay shutdowns.
	Catalog, DropIn string
}

// FindInstalled looks for files below root. It does not ask systemd, so that it works while an image is built.
func FindInstalled(root string) Installed {
	return Installed{
		Unit: firstOf(root, unitPaths), Enabled: firstOf(root, wantedPaths),
		Catalog: firstOf(root, catalogPaths), DropIn: firstOf(root, dropInPaths),
	}
}

// firstOf returns the first path that exists. A dangling link counts: in an image that is being built, an absolute one leads out of
// it.
func firstOf(root string, paths []string) string {
	for _, path := range paths {
		if _, err := os.Lstat(filepath.Join(root, path)); err == nil {
			return path
		}
	}
	return ""
}
