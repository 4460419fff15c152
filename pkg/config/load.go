package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// Loaded is the result of Load.
type Loaded[C any] struct {
	Config C
	// Files are those that were read, in this sequence, and Ignored are the files among the drop-ins that were not, each with the reason.
	Files, Ignored []string
	// Origins says which line sets each setting: "FILE: line N", by the setting's key. It lacks those that no file sets.
	Origins map[string]string
	// Warnings are faults in the tables that only concern reporting: [log], [webhook] and [metrics]. A faulty key keeps its value.
	Warnings []string
}

// Load reads the settings from a file and its drop-ins, file.d/*.toml, in lexical order; a later file overrides single keys of an earlier one,
// and the defaults are those of an empty file. If named, the file must exist. The error has one line for each fault in all files.
func Load[C any, P Pointer[C]](file string, named bool, defaults C) (Loaded[C], error) {
	l := Loaded[C]{Config: defaults, Origins: map[string]string{}}
	if err := l.find(file, named); err != nil {
		return Loaded[C]{}, err
	}
	d := decoder{known: knownOf(P(&l.Config).tables()), origins: l.Origins}
	for _, file := range l.Files {
		d.file = file
		if text, err := readFile(file); err != nil {
			d.fatal = append(d.fatal, fileFault(file, err))
		} else {
			d.decode(text)
		}
	}
	if len(d.fatal) > 0 {
		return Loaded[C]{}, d.err() // Half-read settings must not be used.
	}
	for _, warning := range d.warnings {
		l.Warnings = append(l.Warnings, warning.Error())
	}
	return l, nil
}

// find lists the files to read: file, which must exist if it was named, and its drop-ins.
func (l *Loaded[C]) find(file string, named bool) error {
	if _, err := os.Stat(file); named || !errors.Is(err, fs.ErrNotExist) {
		l.Files = append(l.Files, file)
	}
	dropins, err := os.ReadDir(file + ".d")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fileFault(file+".d", err)
	}
	for _, entry := range dropins {
		switch name := filepath.Join(file+".d", entry.Name()); {
		case filepath.Ext(name) != ".toml":
			l.Ignored = append(l.Ignored, name+": its name does not end with .toml")
		case strings.HasPrefix(entry.Name(), "."): // Editors leave hidden files next to the one they have open.
			l.Ignored = append(l.Ignored, name+": its name begins with a dot")
		default:
			l.Files = append(l.Files, name)
		}
	}
	return nil
}

// maxSize is the largest size of a file, in bytes.
const maxSize = 1 << 20

// readFile reads a file. It reads at most one byte more than maxSize, so that decode refuses a file that is too large.
func readFile(name string) (string, error) {
	info, err := os.Stat(name)
	if err != nil {
		return "", err
	}
	if info.Mode().Type()&fs.ModeNamedPipe != 0 { // Opening a pipe may take for ever.
		return "", errors.New("must be a file, not a pipe")
	}
	file, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }() // It was only read.
	text, err := io.ReadAll(io.LimitReader(file, maxSize+1))
	return string(text), err
}

// Decode reads the text of one file into cfg; keys that it does not contain, and faulty ones, keep their values. The name of the file is
// for the error, which has one line for each fault.
func Decode[C any, P Pointer[C]](name string, text []byte, cfg P) error {
	d := decoder{file: name, known: knownOf(cfg.tables()), origins: map[string]string{}}
	d.decode(string(text))
	return d.err()
}

// known has what a file may have, by full key: settings, and nil for tables.
type known map[string]*value

func knownOf(tables []Table) known {
	k := known{}
	for _, t := range tables {
		for name := t.Name; name != ""; name = name[:max(0, strings.LastIndexByte(name, '.'))] {
			k[name] = nil // Tables that contain others are tables, too.
		}
		for _, s := range t.Settings {
			k[fullKey(t, s)] = &s.value
		}
	}
	return k
}

// decoder stores the keys of files in their fields, one file after the other.
type decoder struct {
	known           known
	file            string
	meta            toml.MetaData     // of that file
	origins         map[string]string // see Loaded
	fatal, warnings []fault
}

// fault is what is wrong with a line of a file; 0 stands for the whole file.
type fault struct {
	file string
	line int
	text string
}

func (f fault) Error() string {
	if f.line > 0 {
		return fmt.Sprintf("%s: line %d: %s", f.file, f.line, f.text)
	}
	return f.file + ": " + f.text
}

// err returns all faults, in the sequence of the files; nil if there are none.
func (d *decoder) err() error {
	var all []error
	for _, f := range slices.SortedStableFunc(slices.Values(slices.Concat(d.fatal, d.warnings)), byLine) {
		all = append(all, f)
	}
	return errors.Join(all...)
}

// byLine compares faults by their position.
func byLine(a, b fault) int { return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.line, b.line)) }

// decode reads the text of a file.
func (d *decoder) decode(text string) {
	if len(text) > maxSize {
		d.fatal = append(d.fatal, fault{file: d.file, text: fmt.Sprintf("the file must have at most %d MiB", maxSize>>20)})
		return
	}
	var tree map[string]toml.Primitive
	meta, err := toml.Decode(text, &tree)
	if err != nil { // The parser's text is left out: it repeats what it finds, which may be a secret.
		parse, _ := errors.AsType[toml.ParseError](err)
		d.fatal = append(d.fatal, fault{d.file, parse.Position.Line, "not valid TOML; a text needs quotes, and a key or table stands once"})
		return
	}
	d.meta = meta
	d.store("", tree)
	slices.SortStableFunc(d.warnings, byLine)
}

// store stores the settings in a table of the file.
func (d *decoder) store(table string, found map[string]toml.Primitive) {
	for name, entry := range found {
		key := join(table, name)
		setting, ok := d.known[key]
		var got any
		var below map[string]toml.Primitive
		switch {
		case !ok:
			d.add(key, entry, d.unknown(table, name))
		case setting == nil && (d.meta.PrimitiveDecode(entry, &below) != nil || below == nil):
			d.add(key, entry, key+": must be a table: ["+key+"]")
		case setting == nil:
			d.store(key, below)
		case d.meta.PrimitiveDecode(entry, &got) != nil || !setting.set(got):
			d.add(key, entry, wrong(key, got, setting.allowed))
		default:
			d.origins[key] = fmt.Sprintf("%s: line %d", d.file, d.line(entry))
		}
	}
}

// add adds a fault of a key.
func (d *decoder) add(key string, at toml.Primitive, text string) {
	f := fault{d.file, d.line(at), text}
	switch table, _, _ := strings.Cut(key, "."); table {
	case "log", "webhook", "metrics": // They only concern reporting.
		d.warnings = append(d.warnings, f)
	default:
		d.fatal = append(d.fatal, f)
	}
}

// probe is a value that cannot be decoded. The TOML decoder gives the position of a key only in an error.
type probe struct{}

// UnmarshalTOML implements toml.Unmarshaler.
func (probe) UnmarshalTOML(any) error { return errors.New("this is only for its line") }

// line returns the line of an entry of the file.
func (d *decoder) line(entry toml.Primitive) int {
	parse, _ := errors.AsType[toml.ParseError](d.meta.PrimitiveDecode(entry, &probe{}))
	return parse.Position.Line
}

// fileFault says why a file cannot be read. It names the file once.
func fileFault(file string, err error) fault {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		err = pathErr.Err
	}
	return fault{file: file, text: err.Error()}
}

// fullKey returns a setting's key with that of its table, such as "drain.margin".
func fullKey(t Table, s Setting) string { return strings.TrimPrefix(t.Name+"."+s.Name, ".") }

// join appends a part to a key, in quotes if TOML needs them.
func join(key, part string) string {
	return strings.TrimPrefix(key+"."+toml.Key{part}.String(), ".")
}
