package systemd

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/coreos/go-systemd/v22/journal"
)

// unitDirectories are systemd's unit directories, in the order of their precedence.
var unitDirectories = []string{"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"}

// assignment is a line "Name=value" of a unit. An empty value resets a list.
type assignment struct{ name, value string }

// readUnit returns the assignments in the section [Service] of a service's unit and its drop-ins, below root ("" for "/"), in the order in
// which systemd applies them.
func readUnit(root, service string) (all []assignment, found bool, err error) {
	paths := unitFiles(root, service)
	for _, path := range paths {
		text, err := readFile(path)
		if err != nil {
			return nil, false, fmt.Errorf("reading the unit %s: %w", path, err)
		}
		all = append(all, serviceAssignments(string(text))...)
	}
	return all, len(paths) > 0, nil
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
// such as "LoadCredential=ID:PATH". It is for where systemd cannot be asked. If there is no such unit, found is false.
func ReadCredentials(root, service string) (lines []string, found bool, err error) {
	all, found, err := readUnit(root, service)
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
	return lines, found, err
}

// JournalEnabled tells whether the journal accepts entries with fields.
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

// The characters that systemd takes for the end of a line, for whitespace, and for the beginning of a comment.
const (
	newline  = "\n\r"
	space    = " \t" + newline
	comments = "#;"
)

// serviceAssignments parses the section [Service] of a unit file, as systemd.syntax(7) describes it. A line that ends with a backslash
// continues in the next line that is no comment.
func serviceAssignments(text string) (all []assignment) {
	section, begun := "", ""
	for line := range strings.Lines(text + "\n\n") { // An empty line ends the last one if that is to be continued.
		line = strings.TrimLeft(strings.TrimRight(line, newline), space)
		if line != "" && strings.ContainsAny(line[:1], comments) {
			continue
		}
		line = begun + line
		if begun = continued(line); begun != "" {
			continue
		}
		line = strings.Trim(line, space)
		if header, found := strings.CutPrefix(line, "["); found {
			section = strings.TrimSuffix(header, "]")
			continue
		}
		if name, value, found := strings.Cut(line, "="); found && section == "Service" {
			all = append(all, assignment{strings.Trim(name, space), strings.Trim(value, space)})
		}
	}
	return all
}

// continued returns the line with a space for the unescaped backslash at its end; "" if there is none.
func continued(line string) string {
	whole := strings.TrimRight(line, `\`)
	if (len(line)-len(whole))%2 == 0 {
		return ""
	}
	return line[:len(line)-1] + " "
}

// words splits a value at whitespace outside quotes, and removes quotes and escapes, as systemd.syntax(7) describes. Like
// systemd, it ignores everything from the first syntax error on.
func words(value string) []string {
	var found []string
	for {
		value = strings.TrimLeft(value, space)
		if value == "" {
			return found
		}
		word, rest, ok := firstWord(value)
		if !ok {
			return found
		}
		found, value = append(found, word), rest
	}
}

// firstWord returns the first word of a value, and what follows.
func firstWord(value string) (word, rest string, ok bool) {
	var read []byte
	quote := byte(0)
	for value != "" {
		c := value[0]
		switch {
		case c == '\\':
			if read, value, ok = unescaped(read, value[1:]); !ok {
				return "", "", false
			}
			continue
		case c == quote:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote = c
		case quote == 0 && strings.IndexByte(space, c) >= 0:
			return string(read), value, true
		default:
			read = append(read, c)
		}
		value = value[1:]
	}
	return string(read), "", quote == 0
}

// unescaped appends what an escape stands for, and returns what follows it. The text begins after the backslash.
func unescaped(read []byte, text string) (added []byte, rest string, ok bool) {
	if text == "" {
		return nil, "", false
	}
	switch text[0] {
	case 's':
		return append(read, ' '), text[1:], true
	case '"', '\'':
		return append(read, text[0]), text[1:], true
	}
	letter, many, rest, err := strconv.UnquoteChar(`\`+text, 0) // The others are those of C and Go.
	if err != nil || letter == 0 {
		return nil, "", false
	}
	if many {
		return append(read, string(letter)...), rest, true
	}
	return append(read, byte(letter)), rest, true
}

// environmentFile is the rest of an EnvironmentFile=, while it is parsed.
type environmentFile struct{ text string }

// environmentIn parses the text of an EnvironmentFile=, as systemd.exec(5) describes it. It returns "NAME=value" for each variable.
func environmentIn(text string) []string {
	file := &environmentFile{text}
	var variables []string
	for {
		file.text = strings.TrimLeft(file.text, space)
		if file.text == "" {
			return variables
		}
		end := strings.IndexAny(file.text, newline+"=")
		if strings.ContainsAny(file.text[:1], comments) {
			end = strings.IndexAny(file.text, newline)
		}
		if end < 0 {
			return variables
		}
		name, next := file.text[:end], file.text[end]
		file.text = file.text[end+1:]
		if next == '=' && !strings.ContainsAny(name[:min(1, len(name))], comments) {
			variables = append(variables, strings.Trim(name, space)+"="+file.value())
		}
	}
}

// value parses the value after an equals sign. Quotes are special until the first unquoted character, and whitespace around them is
// dropped; a backslash escapes the next character.
func (f *environmentFile) value() string {
	var read []byte
	whole, bare := 0, false // the length without trailing whitespace, and whether there was an unquoted character
	for f.text != "" {
		c := f.text[0]
		f.text = f.text[1:]
		switch {
		case strings.IndexByte(newline, c) >= 0:
			return string(read[:whole])
		case c == '\\':
			bare = true
			if f.text != "" && strings.IndexByte(newline, f.text[0]) < 0 {
				read = append(read, f.text[0])
			}
			f.text = f.text[min(1, len(f.text)):]
			whole = len(read)
		case !bare && (c == '"' || c == '\''):
			read = append(read, f.quoted(c)...)
			whole = len(read)
		case strings.IndexByte(space, c) < 0:
			bare = true
			read = append(read, c)
			whole = len(read)
		case bare:
			read = append(read, c)
		}
	}
	return string(read[:whole])
}

// quoted parses up to the closing quote, which may be on another line. Within double quotes, a backslash escapes what is special to a
// shell, and removes the end of a line.
func (f *environmentFile) quoted(quote byte) []byte {
	var read []byte
	for f.text != "" {
		c := f.text[0]
		f.text = f.text[1:]
		switch {
		case c == quote:
			return read
		case c != '\\' || quote == '\'':
			read = append(read, c)
			continue
		case f.text == "":
			return read
		}
		switch next := f.text[0]; {
		case strings.IndexByte("\"\\`$", next) >= 0:
			read = append(read, next)
		case next != '\n':
			read = append(read, '\\', next)
		}
		f.text = f.text[1:]
	}
	return read
}
