package config

import (
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

// Load reads the settings from path and its drop-ins, path.d/*.toml, in lexical order; a later file overrides single
// keys of an earlier one. An empty path stands for p.File. The error has one line for each fault. If it is a Degraded, the
// settings can be used.
func (p Place[C, P]) Load(path string) (C, error) {
	cfg := p.Defaults
	sources, err := p.Sources(path)
	if err == nil {
		err = read(sources, P(&cfg).tables(), nil)
	}
	if _, degraded := errors.AsType[Degraded](err); err != nil && !degraded {
		var none C
		return none, err // Half-read settings must not be used.
	}
	return cfg, err
}

// Origins returns which line sets each setting that Load reads for path: "FILE: line N", by the setting's key. Settings that no file sets
// are left out.
func (p Place[C, P]) Origins(path string) map[string]string {
	cfg, origins := p.Defaults, map[string]string{}
	sources, _ := p.Sources(path)                // Load has reported the error,
	_ = read(sources, P(&cfg).tables(), origins) // and this one.
	return origins
}

// Degraded lists faults in the tables that only concern reporting: [log], [webhook] and [metrics]. A faulty key keeps its value.
type Degraded struct{ Faults []error }

func (d Degraded) Error() string { return errors.Join(d.Faults...).Error() }

// reportsOnly reports whether a key is in one of the tables that only concern reporting.
func reportsOnly(key string) bool {
	table, _, _ := strings.Cut(key, ".")
	return slices.Contains([]string{"log", "webhook", "metrics"}, table)
}

// read reads files, one after the other, into the fields that the tables describe. Unless origins is nil, it gets the line that sets each setting,
// by its key. The error is a Degraded if the settings can be used.
func read(sources []Source, tables []Table, origins map[string]string) error {
	var faults []error
	usable := true
	for _, s := range sources {
		if s.Passed != "" {
			continue // Sources ignores the file.
		}
		data, err := readFile(s.File)
		if err != nil {
			err = fileFault(s.File, err)
		} else {
			err = decode(s.File, data, tables, origins)
		}
		if degraded, ok := errors.AsType[Degraded](err); ok {
			faults = append(faults, degraded.Faults...)
		} else if err != nil {
			faults, usable = append(faults, err), false
		}
	}
	return joined(faults, usable)
}

// readFile reads a file. It reads at most one byte more than maxSize, so that decode refuses a file that is too large.
func readFile(name string) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // It was only read.
	return io.ReadAll(io.LimitReader(file, maxSize+1))
}

// joined makes one error of the faults: a Degraded if the settings are usable in spite of them.
func joined(faults []error, usable bool) error {
	if usable && len(faults) > 0 {
		return Degraded{faults}
	}
	return errors.Join(faults...)
}

// Source is a file that may contain settings.
type Source struct {
	File string
	// Passed says why the file is ignored; empty if it is read.
	Passed string
}

// Sources lists the files that Load reads for path, in this sequence, and the files among the drop-ins that Load ignores.
func (p Place[C, P]) Sources(path string) ([]Source, error) {
	var sources []Source
	if path != "" {
		sources = append(sources, Source{File: path})
	} else {
		path = p.File
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			sources = append(sources, Source{File: path})
		}
	}
	dropins, err := os.ReadDir(path + ".d")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fileFault(path+".d", err)
	}
	for _, entry := range dropins {
		s := Source{File: filepath.Join(path+".d", entry.Name())}
		switch {
		case strings.HasPrefix(entry.Name(), "."): // Editors leave hidden files next to the one they have open.
			s.Passed = "its name begins with a dot"
		case filepath.Ext(entry.Name()) != ".toml":
			s.Passed = "its name does not end with .toml"
		}
		sources = append(sources, s)
	}
	return sources, nil
}

// fileFault returns an error that says why a file cannot be read. It names the file once.
func fileFault(file string, err error) error {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		err = pathErr.Err
	}
	return fmt.Errorf("%s: %w", file, err)
}

// Decode reads the text of one file into cfg; keys that it does not contain, and faulty ones, keep their values. The name of the file is
// for errors, which have one line for each fault, and are a Degraded if all faults only concern reporting.
func Decode[C any, P Pointer[C]](name string, text []byte, cfg P) error {
	return decode(name, text, cfg.tables(), nil)
}

// decode reads the text of one file into the fields that the tables describe. For origins, see read.
func decode(name string, text []byte, tables []Table, origins map[string]string) error {
	if err := checkLimits(string(text)); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	var tree map[string]any
	meta, err := toml.Decode(string(text), &tree)
	d := decoder{
		file: name, text: string(text), tree: tree, settings: map[string]value{}, tables: map[string]bool{}, done: map[string]bool{},
		origins: origins, usable: true,
	}
	for _, t := range tables {
		d.know(t)
	}
	if err != nil {
		return d.syntaxFault(err)
	}
	for _, key := range meta.Keys() {
		d.store(key)
	}
	return joined(d.faults, d.usable)
}

// decoder stores the keys of one file in their fields.
type decoder struct {
	file     string
	text     string
	tree     map[string]any
	settings map[string]value  // by full key
	tables   map[string]bool   // the names of tables, and of the tables that contain them
	done     map[string]bool   // the keys that were stored or found faulty as a whole
	origins  map[string]string // see read
	faults   []error
	usable   bool // all faults only concern reporting
}

// know adds a table and its settings to what the file may have.
func (d *decoder) know(t Table) {
	parts := strings.Split(t.Name, ".")
	for i := range parts {
		d.tables[strings.Join(parts[:i+1], ".")] = true
	}
	for _, s := range t.Settings {
		d.settings[fullKey(t, s)] = s.value
	}
}

// store stores the setting that a key of the file belongs to. It follows the key from its first part, as a setting may be a table of its own. It
// adds a fault if the key leads to no setting, or if a value stands for a table.
func (d *decoder) store(key toml.Key) {
	for i := range key {
		path := key[:i+1]
		name := path.String()
		setting, known := d.settings[name]
		switch {
		case d.done[name]: // An earlier key has stored all of it, or found it faulty.
			return
		case known:
			d.done[name] = true
			before, faults := setting.show(), len(d.faults)
			setting.set(lookUp(d.tree, path), func(sub string, got any, want string) { d.fault(join(name, shownBelow(name, sub)), got, want) })
			if d.origins != nil && (len(d.faults) == faults || setting.show() != before) { // A faulty key keeps its value, and the origin of that.
				d.origins[name] = d.position(name)
			}
			return
		case !d.tables[name]:
			d.done[name] = true
			d.addFault(name, d.unknown(join(key[:i].String(), shownBelow(name, key[i]))))
			return
		}
		if _, isTable := lookUp(d.tree, path).(map[string]any); !isTable {
			d.done[name] = true
			d.fault(name, lookUp(d.tree, path), fmt.Sprintf("a table: [%s]", name))
			return
		}
	}
}

// fault adds the fault that a key's value got is not want, which completes "must be ...". Without want, the fault is that there is no such key.
func (d *decoder) fault(key string, got any, want string) {
	if want == "" {
		d.addFault(key, d.unknown(key))
		return
	}
	shown := render(got)
	if secretive(key) {
		shown = render(notShown) // A secret may be at the wrong key.
	}
	d.addFault(key, fmt.Sprintf("%s = %s: must be %s", key, shown, want))
}

// addFault adds a fault of a key, with its position.
func (d *decoder) addFault(key, fault string) {
	d.faults = append(d.faults, fmt.Errorf("%s: %s", d.position(key), fault))
	d.usable = d.usable && reportsOnly(key)
}

// position returns where a key is, for an error: "FILE: line N". The TOML decoder does not say that, so position searches the text. For a key that
// it does not find, it returns the line of the key's table, or only the file.
func (d *decoder) position(key string) string {
	for key != "" {
		table, number, inText := "", 0, false
		for line := range strings.Lines(d.text) {
			number++
			continued := inText                                                 // The line belongs to a text of several lines, and begins no key.
			if (strings.Count(line, `"""`)+strings.Count(line, `'''`))%2 == 1 { // A text of several lines begins or ends here.
				inText = !inText
			}
			if continued {
				continue
			}
			line = strings.TrimSpace(line)
			name, _, _ := strings.Cut(line, "=")
			name = strings.TrimPrefix(table+"."+strings.TrimSpace(name), ".")
			if strings.HasPrefix(line, "[") {
				table, _, _ = strings.Cut(strings.TrimLeft(line, "[ "), "]")
				table = strings.TrimSpace(table)
				name = table
			}
			if name == key {
				return fmt.Sprintf("%s: line %d", d.file, number)
			}
		}
		key = key[:max(0, strings.LastIndexByte(key, '.'))] // The table that has it is searched next.
	}
	return d.file
}

// lookUp finds the value of a key; nil if there is none.
func lookUp(tree map[string]any, key toml.Key) any {
	var found any = tree
	for _, part := range key {
		table, _ := found.(map[string]any)
		found = table[part] // nil if found is no table
	}
	return found
}

// fullKey returns a setting's key with that of its table, such as "drain.margin".
func fullKey(t Table, s Setting) string { return strings.TrimPrefix(t.Name+"."+s.Name, ".") }

// join appends a part to a key, in quotes if TOML needs them. An empty part changes nothing.
func join(key, sub string) string {
	switch {
	case sub == "":
		return key
	case key == "":
		return toml.Key{sub}.String()
	case sub == notShown: // It is no key, and needs no quotes.
		return key + "." + sub
	}
	return key + "." + toml.Key{sub}.String()
}

// Diff returns the keys in which two configurations differ, such as "drain.margin", in the sequence of the documentation. webhook.template is one if
// the content of its file differs.
func Diff[C any, P Pointer[C]](a, b C) []string {
	var keys []string
	after := P(&b).tables()
	for i, t := range P(&a).tables() {
		for j, s := range t.Settings {
			if s.value.show() != after[i].Settings[j].value.show() {
				keys = append(keys, fullKey(t, s))
			}
		}
	}
	before, now := P(&a).Base().Webhook, P(&b).Base().Webhook
	if now.IsTemplateFile() && before.Template == now.Template && before.TemplateText != now.TemplateText {
		keys = append(keys, "webhook.template") // The file has changed.
	}
	return keys
}
