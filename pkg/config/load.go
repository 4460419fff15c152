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

// Place is where a program's settings are unless a file is named, and what they are without a file.
type Place[C any, P Pointer[C]] struct {
	File     string // need not exist
	Defaults C
}

// Usual is the place of nth's settings on a machine.
func Usual() Place[Config, *Config] { return Place[Config, *Config]{DefaultFile, Default()} }

// UsualQueue is the place of nth-queue's settings.
func UsualQueue() Place[Queue, *Queue] { return Place[Queue, *Queue]{QueueFile, DefaultQueue()} }

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

// Load reads the settings from path and its drop-ins, path.d/*.toml, in lexical order; a later file overrides single
// keys of an earlier one. An empty path stands for p.File. The error has one line for each fault in all files.
func (p Place[C, P]) Load(path string) (Loaded[C], error) {
	l := Loaded[C]{Config: p.Defaults, Origins: map[string]string{}}
	if err := l.find(cmp.Or(path, p.File), path != ""); err != nil {
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
		case strings.HasPrefix(entry.Name(), "."): // Editors leave hidden files next to the one they have open.
			l.Ignored = append(l.Ignored, name+": its name begins with a dot")
		case filepath.Ext(name) != ".toml":
			l.Ignored = append(l.Ignored, name+": its name does not end with .toml")
		default:
			l.Files = append(l.Files, name)
		}
	}
	return nil
}

// Limits of a file. The decoder's memory grows with the square of the depth: 20,000 levels took 12 GB.
const (
	maxSize  = 1 << 20 // bytes
	maxDepth = 500     // brackets that are open, in texts and comments as well, or dots on one line
)

// readFile reads a file. It reads at most one byte more than maxSize, so that decode refuses a file that is too large.
func readFile(name string) (string, error) {
	file, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }() // It was only read.
	text, err := io.ReadAll(io.LimitReader(file, maxSize+1))
	return string(text), err
}

// checkLimits returns an error for a text that is so large or so deep that the TOML decoder would take too much memory.
func checkLimits(text string) error {
	if len(text) > maxSize {
		return fmt.Errorf("the file must have at most %d MiB", maxSize>>20)
	}
	depth, number := 0, 0 // of open brackets, and of the line
	for line := range strings.Lines(text) {
		number++
		depth += strings.Count(line, "[") + strings.Count(line, "{")
		if max(depth, strings.Count(line, ".")) > maxDepth {
			return fmt.Errorf("line %d: lists, tables or keys are nested more than %d deep", number, maxDepth)
		}
		depth = max(0, depth-strings.Count(line, "]")-strings.Count(line, "}"))
	}
	return nil
}

// Decode reads the text of one file into cfg; keys that it does not contain, and faulty ones, keep their values. The name of the file is
// for the error, which has one line for each fault.
func Decode[C any, P Pointer[C]](name string, text []byte, cfg P) error {
	d := decoder{file: name, known: knownOf(cfg.tables()), origins: map[string]string{}}
	d.decode(string(text))
	return d.err()
}

// known has what a file may have, by full key: settings, and nil for tables.
type known map[string]value

func knownOf(tables []Table) known {
	k := known{}
	for _, t := range tables {
		for name := t.Name; name != ""; name = name[:max(0, strings.LastIndexByte(name, '.'))] {
			k[name] = nil // Tables that contain others are tables, too.
		}
		for _, s := range t.Settings {
			k[fullKey(t, s)] = s.value
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
	if err := checkLimits(text); err != nil {
		d.fatal = append(d.fatal, fault{file: d.file, text: err.Error()})
		return
	}
	var tree map[string]toml.Primitive
	meta, err := toml.Decode(text, &tree)
	if err != nil {
		d.fatal = append(d.fatal, d.syntaxFault(err))
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
			d.add(key, entry, wrong(key, got, setting.allowed()))
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
