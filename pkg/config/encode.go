package config

import (
	"bufio"
	"fmt"
	"io"
)

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
