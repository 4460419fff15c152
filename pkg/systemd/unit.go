package systemd

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/coreos/go-systemd/v22/journal"
)

// unitDirectories are systemd's unit directories, in the order of their precedence.
var unitDirectories = []string{"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"}

// readUnit returns the assignments in the section [Service] of a service's unit and its drop-ins, below root ("" for "/"). Their sequence is
// that in which systemd applies them. If an assignment's value is empty, the caller has to reset the list.
func readUnit(root, service string) (all []assignment, err error) {
	for _, path := range unitFiles(root, service) {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("reading the unit %s: %w", path, err)
		}
		all = append(all, assignments(string(text))...)
	}
	return slices.DeleteFunc(all, func(a assignment) bool { return a.section != "[Service]" }), nil
}

// assignment is a line "name=value" below a line "[section]".
type assignment struct{ section, name, value string }

// assignments parses the text of a unit (systemd.syntax(7)). A line that ends with a backslash continues in the next one that is not a comment.
// Lines that are not assignments are ignored, as by systemd.
func assignments(text string) (all []assignment) {
	section, begun := "", ""                         // begun is the text of a line that continues
	for line := range strings.Lines(text + "\n\n") { // The empty line ends the last line, which may have a backslash.
		line = strings.TrimSpace(line)
		if line != "" && strings.ContainsAny(line[:1], "#;") {
			continue // It is a comment.
		}
		if part, continued := strings.CutSuffix(line, `\`); continued {
			begun += part + " "
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

// unitFiles returns the paths of a service's unit file and its drop-ins, in the sequence in which systemd applies them; nil if there is no
// unit file.
func unitFiles(root, service string) []string {
	main := ""
	for _, directory := range slices.Backward(unitDirectories) { // The last one found has the highest precedence, here and below.
		path := filepath.Join("/", root, directory, service)
		if _, err := os.Stat(path); err == nil {
			main = path
		}
	}
	if main == "" {
		return nil
	}
	dropIns := map[string]string{} // paths by file name: of several drop-ins with one name, one is used
	for _, directory := range slices.Backward(unitDirectories) {
		found, _ := filepath.Glob(filepath.Join("/", root, directory, service+".d", "*.conf")) // It fails only for a malformed pattern.
		for _, path := range found {
			dropIns[filepath.Base(path)] = path
		}
	}
	paths := []string{main}
	for _, name := range slices.Sorted(maps.Keys(dropIns)) {
		paths = append(paths, dropIns[name])
	}
	return paths
}

// credentialLists has the settings of a unit for credentials. Several share one list, which an empty value of any of them resets: those with
// this prefix.
var credentialLists = map[string]string{
	"LoadCredential": "Load", "LoadCredentialEncrypted": "Load", "SetCredential": "Set", "SetCredentialEncrypted": "Set", "ImportCredential": "Import",
}

// ReadCredentials returns which credentials a service gets by its unit files below root ("" for "/"): a line such as
// "LoadCredential=ID:PATH" for each; nil if there is no such unit.
func ReadCredentials(root, service string) (lines []string, err error) {
	all, err := readUnit(root, service)
	for _, a := range all {
		list := credentialLists[a.name]
		switch {
		case list == "": // It is not about credentials.
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

// Where the packages of nth, or operators, install its files. The first that exists counts.
var (
	unitPaths    = []string{"/etc/systemd/system/nth.service", "/run/systemd/system/nth.service", "/usr/lib/systemd/system/nth.service", "/lib/systemd/system/nth.service"}
	wantedPaths  = []string{"/etc/systemd/system/multi-user.target.wants/nth.service", "/usr/lib/systemd/system/multi-user.target.wants/nth.service"}
	catalogPaths = []string{"/usr/lib/systemd/catalog/nth.catalog", "/lib/systemd/catalog/nth.catalog"}
	dropInPaths  = []string{"/etc/systemd/logind.conf.d/80-nth.conf", "/usr/lib/systemd/logind.conf.d/80-nth.conf", "/lib/systemd/logind.conf.d/80-nth.conf"}
)

// Installed has the paths of nth's files for systemd; "" for a file that is not installed.
type Installed struct {
	// Unit is the service's unit file, and Enabled the link that starts it at boot.
	Unit, Enabled string
	// Catalog is the message catalog, and DropIn configures logind to delay shutdowns.
	Catalog, DropIn string
}

// FindInstalled looks for nth's files below root. It does not ask systemd, so that it works while an image is built.
func FindInstalled(root string) Installed {
	return Installed{
		Unit: firstOf(root, unitPaths), Enabled: firstOf(root, wantedPaths),
		Catalog: firstOf(root, catalogPaths), DropIn: firstOf(root, dropInPaths),
	}
}

// firstOf returns the first path that exists below root; "" if none does. A dangling link counts as well: an absolute link in an image that is
// being built leads to a path of the machine that builds.
func firstOf(root string, paths []string) string {
	for _, path := range paths {
		if _, err := os.Lstat(filepath.Join(root, path)); err == nil {
			return path
		}
	}
	return ""
}
