package config

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
