package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/nth-project/nth/pkg/text"
)

// Loaded is the result of Load.
type Loaded[C any] struct {
	Config C
	// Files are the files that were read, in this sequence. Ignored are other files in the drop-in directory, each with the reason.
	Files, Ignored []string
	// Warnings are faults in the tables that only concern reporting: [log], [webhook] and [metrics]. A faulty key has no effect.
	Warnings []string
}

// Load reads the settings from a file and its drop-ins, file.d/*.toml, in lexical order. A later file overrides single keys of an earlier file.
// Settings that no file sets are those in defaults. If named is true, an operator has named the file, and it must exist. The error has one line for
// each fault in all files.
func Load[C any, P Pointer[C]](file string, named bool, defaults C) (Loaded[C], error) {
	l := Loaded[C]{Config: defaults}
	if err := l.find(file, named); err != nil {
		return Loaded[C]{}, err
	}
	d := decoder{known: knownOf(P(&l.Config).tables())}
	for _, file := range l.Files {
		d.file = file
		content, err := text.ReadFile(file, text.File)
		if err != nil {
			d.fatal = append(d.fatal, fileFault(file, err))
			continue
		}
		d.decode(string(content))
	}
	if len(d.fatal) > 0 {
		return Loaded[C]{}, d.err() // Half-read settings must not be used.
	}
	for _, warning := range d.warnings {
		l.Warnings = append(l.Warnings, warning.Error())
	}
	return l, nil
}

// find sets l.Files to file and its drop-ins, and l.Ignored. It leaves out file if that does not exist and was not named. The error is that the
// drop-in directory cannot be read.
func (l *Loaded[C]) find(file string, named bool) error {
	if _, err := os.Stat(file); named || !errors.Is(err, fs.ErrNotExist) { // text.ReadFile reports any other error.
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

// Decode reads the text of one file into cfg. The fields of keys that the text lacks, and of faulty keys, keep their values. The error has one line
// for each fault, and names the file by name.
func Decode[C any, P Pointer[C]](name string, text []byte, cfg P) error {
	d := decoder{file: name, known: knownOf(cfg.tables())}
	d.decode(string(text))
	return d.err()
}

// known has every key and table that a file may have, by the full key, such as "drain.margin". The value of a table is nil.
type known map[string]*value

// knownOf returns the keys and tables that these tables describe.
func knownOf(tables []Table) known {
	k := known{}
	for _, t := range tables {
		for name := t.Name; name != ""; name = name[:max(0, strings.LastIndexByte(name, '.'))] {
			k[name] = nil // "events.shutdown" is a table, and "events" is one, too.
		}
		for _, s := range t.Settings {
			k[fullKey(t, s)] = &s.value
		}
	}
	return k
}

// decoder decodes files, one after the other: it stores the value of each key in the key's field, and collects faults.
type decoder struct {
	known           known
	file            string        // the name of the current file
	meta            toml.MetaData // of the current file
	fatal, warnings []fault       // warnings are faults in the tables that only concern reporting
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

// err returns all faults, warnings included, sorted by file and line; nil if there are none.
func (d *decoder) err() error {
	var all []error
	for _, f := range slices.SortedStableFunc(slices.Values(slices.Concat(d.fatal, d.warnings)), byLine) {
		all = append(all, f)
	}
	return errors.Join(all...)
}

// byLine compares faults by their position.
func byLine(a, b fault) int { return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.line, b.line)) }

// decode decodes the text of d.file. It adds what is wrong to d.fatal and d.warnings.
func (d *decoder) decode(text string) {
	var tree map[string]toml.Primitive
	meta, err := toml.Decode(text, &tree)
	if err != nil { // The fault lacks the parser's text, which quotes the file, and so perhaps a secret.
		parse, _ := errors.AsType[toml.ParseError](err)
		d.fatal = append(d.fatal, fault{d.file, parse.Position.Line, "not valid TOML; a text needs quotes, and a key or table stands once"})
		return
	}
	d.meta = meta
	d.store("", tree)
	slices.SortStableFunc(d.warnings, byLine) // store has added them in random sequence.
}

// store stores the entries of a table in their fields. table is the full key of the table, "" for the top of the file. An entry is a key or a table.
func (d *decoder) store(table string, entries map[string]toml.Primitive) {
	for name, entry := range entries {
		key := join(table, name)
		setting, ok := d.known[key]
		switch {
		case !ok:
			d.add(key, entry, d.unknown(table, name))
		case setting == nil: // The entry is a table.
			var below map[string]toml.Primitive
			if err := d.meta.PrimitiveDecode(entry, &below); err != nil || below == nil { // nil: the entry is no table, which is no error.
				d.add(key, entry, key+": must be a table: ["+key+"]")
				continue
			}
			d.store(key, below)
		default:
			var got any
			if err := d.meta.PrimitiveDecode(entry, &got); err != nil || !setting.set(got) {
				d.add(key, entry, wrong(key, got, setting.allowed))
			}
		}
	}
}

// add adds a fault of the key at an entry of the current file: to d.warnings if its table only concerns reporting, and else to d.fatal.
func (d *decoder) add(key string, at toml.Primitive, text string) {
	f := fault{d.file, d.line(at), text}
	switch table, _, _ := strings.Cut(key, "."); table {
	case "log", "webhook", "metrics":
		d.warnings = append(d.warnings, f)
	default:
		d.fatal = append(d.fatal, f)
	}
}

// probe is a value that cannot be decoded, for line: the TOML decoder gives the line of an entry only in an error.
type probe struct{}

// UnmarshalTOML implements toml.Unmarshaler.
func (probe) UnmarshalTOML(any) error { return errors.New("this is only for its line") }

// line returns the line of an entry of the current file. It decodes the entry into a probe, and takes the line from the error.
func (d *decoder) line(entry toml.Primitive) int {
	parse, _ := errors.AsType[toml.ParseError](d.meta.PrimitiveDecode(entry, &probe{}))
	return parse.Position.Line
}

// fileFault returns the fault that a file cannot be read. It drops the name of the file from err, as fault adds it.
func fileFault(file string, err error) fault {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		err = pathErr.Err
	}
	return fault{file: file, text: err.Error()}
}

// fullKey returns a setting's key with its table, such as "drain.margin".
func fullKey(t Table, s Setting) string { return strings.TrimPrefix(t.Name+"."+s.Name, ".") }

// join appends a part to a key that may be "". It quotes the part if TOML needs that.
func join(key, part string) string {
	return strings.TrimPrefix(key+"."+toml.Key{part}.String(), ".")
}
