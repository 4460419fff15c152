package config

import (
	"bufio"
	"fmt"
	"io"
)

// Table describes one table of the configuration file; Name is "" for the top of the file.
type Table struct {
	Name, Doc string
	Settings  []Setting
}

// Setting describes one key of a table. Default is written in TOML, Allowed in words, Doc in Markdown.
type Setting struct {
	Name, Default, Allowed, Doc string
}

// Describe lists every table and key there is, in the order in which files and documentation have them.
func Describe() []Table {
	cfg := Default()
	return describe(cfg.tables())
}

func describe(tables []table) []Table {
	var described []Table
	for _, t := range tables {
		settings := make([]Setting, len(t.settings))
		for i, s := range t.settings {
			settings[i] = Setting{Name: s.name, Default: s.value.show(), Allowed: s.value.allowed(), Doc: s.doc}
		}
		described = append(described, Table{Name: t.name, Doc: t.doc, Settings: settings})
	}
	return described
}

// Encode writes every setting of cfg as TOML. What it writes loads again to the same settings, but for secrets, of which
// a comment says that they are set.
func Encode(w io.Writer, cfg Config) error { return encode(w, cfg.tables()) }

// encode writes what the tables describe.
func encode(w io.Writer, tables []table) error {
	b := bufio.NewWriter(w)
	for _, t := range tables {
		if t.name != "" {
			fmt.Fprintf(b, "\n[%s]\n", t.name)
		}
		for _, s := range t.settings {
			fmt.Fprintln(b, printed(s))
		}
	}
	return b.Flush()
}
