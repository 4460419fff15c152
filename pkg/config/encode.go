package config

import (
	"bufio"
	"fmt"
	"io"
)

// Encode writes every setting of cfg as TOML. What it writes loads again to the same settings.
func Encode(w io.Writer, cfg Config) error {
	b := bufio.NewWriter(w)
	for _, t := range cfg.tables() {
		if t.name != "" {
			fmt.Fprintf(b, "\n[%s]\n", t.name)
		}
		for _, s := range t.settings {
			fmt.Fprintf(b, "%s = %s\n", s.name, s.value.show())
		}
	}
	return b.Flush()
}
