package config

import (
	"fmt"
	"strings"

	"github.com/BurntSushi/toml"
)

// Decode reads the text of one file over cfg: keys that the text does not name keep their values. The name is used in
// errors. Faults leave their keys as they were; the error has one line for each, and is Degraded if all concern what is told.
func Decode(name string, text []byte, cfg *Config) error { return decode(name, text, cfg.tables()) }

// DecodeQueue reads the text of one file over nth-queue's settings, as Decode does over nth's.
func DecodeQueue(name string, text []byte, cfg *Queue) error { return decode(name, text, cfg.tables()) }

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
