package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// Place is where the settings of a program are if nobody names a file, and what they are without one.
type Place[C any, P Pointer[C]] struct {
	File     string // may be absent
	Defaults C
}

// Usual is the place of nth's settings on a machine.
func Usual() Place[Config, *Config] { return Place[Config, *Config]{DefaultFile, Default()} }

// UsualQueue is the place of nth-queue's settings.
func UsualQueue() Place[Queue, *Queue] { return Place[Queue, *Queue]{QueueFile, DefaultQueue()} }

// Load reads the settings from path and its drop-ins, path.d/*.toml, in lexical order; a later file overrides single
// keys of an earlier one. The empty path is the place's File. The error has one line for each fault. With a Degraded, the
// settings are of use: all else in them is as it should be.
func (p Place[C, P]) Load(path string) (C, error) {
	cfg := p.Defaults
	sources, err := p.Sources(path)
	if err == nil {
		err = read(sources, P(&cfg).tables())
	}
	if _, degraded := errors.AsType[Degraded](err); err != nil && !degraded {
		var none C
		return none, err
	}
	return cfg, err
}

// Degraded are faults in what is only told: in the tables [log], [webhook] and [metrics]. A key with a fault keeps the value that it
// had. It has one line for each.
type Degraded struct{ Faults []error }

func (d Degraded) Error() string { return errors.Join(d.Faults...).Error() }

// tellsOnly tells whether nothing but what is told follows from a key.
func tellsOnly(key string) bool {
	table, _, _ := strings.Cut(key, ".")
	return slices.Contains([]string{"log", "webhook", "metrics"}, table)
}

// read reads files, one after the other, into what the tables describe.
func read(sources []Source, tables []table) error {
	var faults []error
	works := true
	for _, s := range sources {
		if s.Passed != "" {
			continue
		}
		data, err := os.ReadFile(s.File)
		if err != nil {
			err = fileFault(s.File, err)
		} else {
			err = decode(s.File, data, tables)
		}
		if degraded, ok := errors.AsType[Degraded](err); ok {
			faults = append(faults, degraded.Faults...)
		} else if err != nil {
			faults, works = append(faults, err), false
		}
	}
	return joined(faults, works)
}

// joined makes one error of faults, a Degraded if the settings are of use all the same.
func joined(faults []error, works bool) error {
	if works && len(faults) > 0 {
		return Degraded{faults}
	}
	return errors.Join(faults...)
}

// Source is a file where settings may stand.
type Source struct {
	File string
	// Passed is why it is passed over; empty for one that is read.
	Passed string
}

// Sources lists the files that Load reads for path, in order, with those beside them that it does not.
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
		case strings.HasPrefix(entry.Name(), "."): // Hidden files are what editors leave beside the file they have open.
			s.Passed = "its name begins with a dot"
		case filepath.Ext(entry.Name()) != ".toml":
			s.Passed = "its name does not end with .toml"
		}
		sources = append(sources, s)
	}
	return sources, nil
}

// fileFault tells why a file can't be read, naming it once.
func fileFault(file string, err error) error {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		err = pathErr.Err
	}
	return fmt.Errorf("%s: %w", file, err)
}

// Decode reads the text of one file over cfg: keys that the text does not name keep their values. The name is used in
// errors. Faults leave their keys as they were; the error has one line for each, and is Degraded if all concern what is told.
func Decode[C any, P Pointer[C]](name string, text []byte, cfg P) error {
	return decode(name, text, cfg.tables())
}

// decode reads the text of one file into what the tables describe.
func decode(name string, text []byte, tables []table) error {
	var tree map[string]any
	meta, err := toml.Decode(string(text), &tree)
	d := decoder{file: name, tree: tree, settings: map[string]value{}, tables: map[string]bool{}, done: map[string]bool{}, works: true}
	for _, t := range tables {
		d.know(t)
	}
	if err != nil {
		return d.syntaxFault(string(text), err)
	}
	for _, key := range meta.Keys() {
		d.place(key)
	}
	return joined(d.faults, d.works)
}

// decoder takes the keys of one file to their places.
type decoder struct {
	file     string
	tree     map[string]any
	settings map[string]value // by full key
	tables   map[string]bool  // by name, with the tables above them
	done     map[string]bool  // keys already stored or found faulty, with all that is below them
	faults   []error
	works    bool // none of them but in what is only told
}

func (d *decoder) know(t table) {
	parts := strings.Split(t.name, ".")
	for i := range parts {
		d.tables[strings.Join(parts[:i+1], ".")] = true
	}
	for _, s := range t.settings {
		d.settings[fullKey(t, s)] = s.value
	}
}

// place follows a key from the top of the file until it meets a setting or something that should not be there.
func (d *decoder) place(key toml.Key) {
	for i := range key {
		at := key[:i+1]
		name := at.String()
		setting, known := d.settings[name]
		switch {
		case d.done[name]:
			return
		case known:
			d.done[name] = true
			setting.set(lookUp(d.tree, at), func(sub string, got any, want string) { d.fault(join(name, shownBelow(name, sub)), got, want) })
			return
		case !d.tables[name]:
			d.done[name] = true
			d.note(name, d.unknown(join(key[:i].String(), shownBelow(name, key[i]))))
			return
		}
		if _, isTable := lookUp(d.tree, at).(map[string]any); !isTable {
			d.done[name] = true
			d.fault(name, lookUp(d.tree, at), fmt.Sprintf("a table: [%s]", name))
			return
		}
	}
}

// fault notes that a key's value is not what it should be; without a wish, the key itself should not be.
func (d *decoder) fault(key string, got any, want string) {
	if want == "" {
		d.note(key, d.unknown(key))
		return
	}
	shown := render(got)
	if secretive(key) {
		shown = render(notShown) // A secret may have got to the wrong key.
	}
	d.note(key, fmt.Errorf("%s: %s = %s: must be %s", d.file, key, shown, want))
}

func (d *decoder) note(key string, fault error) {
	d.faults, d.works = append(d.faults, fault), d.works && tellsOnly(key)
}

// lookUp finds the value of a key; nil if there is none.
func lookUp(tree map[string]any, key toml.Key) any {
	var at any = tree
	for _, part := range key {
		table, _ := at.(map[string]any)
		at = table[part]
	}
	return at
}

func fullKey(t table, s setting) string {
	if t.name == "" {
		return s.name
	}
	return t.name + "." + s.name
}

// join appends one part to a key, with quotes if it needs them.
func join(key, sub string) string {
	switch {
	case sub == "":
		return key
	case key == "":
		return toml.Key{sub}.String()
	case sub == notShown:
		return key + "." + sub
	}
	return key + "." + toml.Key{sub}.String()
}

// Diff names the settings in which two configurations differ, as in "drain.margin", in the order of the documentation.
func Diff[C any, P Pointer[C]](a, b C) []string {
	before, now := P(&a), P(&b)
	return append(diff(before.tables(), now.tables()), before.Base().Webhook.rewritten(now.Base().Webhook)...)
}

// rewritten names the file of the template if it is the same and what is in it is not.
func (c *Webhook) rewritten(now Webhook) []string {
	if now.TemplateFile == "" || c.TemplateFile != now.TemplateFile || c.TemplateText == now.TemplateText {
		return nil
	}
	return []string{"webhook.template_file"}
}

func diff(a, b []table) []string {
	of := map[string]string{}
	for _, t := range a {
		for _, s := range t.settings {
			of[fullKey(t, s)] = s.value.show()
		}
	}
	var names []string
	for _, t := range b {
		for _, s := range t.settings {
			if name := fullKey(t, s); s.value.show() != of[name] {
				names = append(names, name)
			}
		}
	}
	return names
}
