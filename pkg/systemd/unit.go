package systemd

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/coreos/go-systemd/v22/journal"
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

// JournalAnswers tells whether there is a journal to write entries with fields to.
func JournalAnswers() bool { return journal.Enabled() }

// The places of what a package installs, the one that wins first.
var (
	unitPaths    = []string{"/etc/systemd/system/nth.service", "/run/systemd/system/nth.service", "/usr/lib/systemd/system/nth.service", "/lib/systemd/system/nth.service"}
	wantedPaths  = []string{"/etc/systemd/system/multi-user.target.wants/nth.service", "/usr/lib/systemd/system/multi-user.target.wants/nth.service"}
	catalogPaths = []string{"/usr/lib/systemd/catalog/nth.catalog", "/lib/systemd/catalog/nth.catalog"}
	dropInPaths  = []string{"/etc/systemd/logind.conf.d/80-nth.conf", "/usr/lib/systemd/logind.conf.d/80-nth.conf", "/lib/systemd/logind.conf.d/80-nth.conf"}
)

// Installed is what of nth is installed for systemd, each as the path of a file; empty if it is not there.
type Installed struct {
	// Unit is the service's, and Enabled the link that starts it at boot.
	Unit, Enabled string
	// Catalog explains the messages in the journal, and DropIn makes logind grant a drain its time.
	Catalog, DropIn string
}

// FindInstalled looks below root, "/" for the machine itself. It asks nobody, so that it works while an image is made.
func FindInstalled(root string) Installed {
	return Installed{
		Unit: firstOf(root, unitPaths), Enabled: firstOf(root, wantedPaths),
		Catalog: firstOf(root, catalogPaths), DropIn: firstOf(root, dropInPaths),
	}
}

// firstOf returns the first path that is there. A link counts, wherever it leads: in an image that is being made, an
// absolute one leads out of it.
func firstOf(root string, paths []string) string {
	for _, path := range paths {
		if _, err := os.Lstat(filepath.Join(root, path)); err == nil {
			return path
		}
	}
	return ""
}

// What systemd takes for the end of a line, for space, and for the beginning of a comment.
const (
	newline  = "\n\r"
	space    = " \t" + newline
	comments = "#;"
)

// assignments returns the names and values in one section of a unit, as systemd.syntax(7) has them. A line that ends in a
// backslash goes on in the next one that is no comment.
func assignments(text, section string) iter.Seq2[string, string] {
	return func(yield func(name, value string) bool) {
		in, begun := "", ""
		for line := range strings.Lines(text + "\n\n") { // An empty line ends what the last one may have begun.
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
				in = strings.TrimSuffix(header, "]")
				continue
			}
			name, value, found := strings.Cut(line, "=")
			if found && in == section && !yield(strings.Trim(name, space), strings.Trim(value, space)) {
				return
			}
		}
	}
}

// continued returns the line with a space for the backslash at its end; "" if there is none that does not belong to another.
func continued(line string) string {
	whole := strings.TrimRight(line, `\`)
	if (len(line)-len(whole))%2 == 0 {
		return ""
	}
	return line[:len(line)-1] + " "
}

// words splits a value at its spaces, except within quotes, which are dropped, and reads the escapes of systemd.syntax(7). Like
// systemd, it takes nothing from where the syntax is wrong on.
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

// firstWord returns the word that a value begins with, and what follows.
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

// unescaped adds what the escape stands for that a text begins with, without its backslash, and returns what follows.
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
	letter, many, rest, err := strconv.UnquoteChar(`\`+text, 0) // The others are those of C, as in Go.
	if err != nil || letter == 0 {
		return nil, "", false
	}
	if many {
		return append(read, string(letter)...), rest, true
	}
	return append(read, byte(letter)), rest, true
}

// An environmentFile is what is left to read of one.
type environmentFile struct{ text string }

// environmentIn reads what systemd.exec(5) says of EnvironmentFile=: "NAME=value" each.
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

// value reads what stands on the right of an equals sign. Quotes count before the first letter that is in none, as does the space
// around them not; a backslash takes the letter behind it for what it is.
func (f *environmentFile) value() string {
	var read []byte
	whole, bare := 0, false // how much of it is not space at its end, and whether it has begun without quotes
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

// quoted reads until the quote ends, over lines. Between double quotes, a backslash stands before what would have a meaning to a
// shell, or before the end of a line, which goes.
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
