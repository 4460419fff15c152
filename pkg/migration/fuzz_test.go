package migration_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/BurntSushi/toml"

	"github.com/nth-project/nth/pkg/migration"
)

// The result is always TOML, and the same each time.
func FuzzRead(f *testing.F) {
	inputs, err := filepath.Glob("testdata/*.in")
	if err != nil || len(inputs) == 0 {
		f.Fatal("testdata is empty", err)
	}
	for _, input := range inputs {
		content, err := os.ReadFile(input)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content)
	}
	f.Add([]byte("WEBHOOK_TEMPLATE=a\x00b\nLOG_LEVEL=$(A)"))
	f.Add([]byte(pod(`args: ["--webhook-url=$(A)", -x, "$$", "--=", "--log-level="]`)))
	f.Fuzz(func(t *testing.T, content []byte) {
		for _, queue := range []bool{false, true} {
			var before string
			for range 3 {
				settings, err := migration.Read(bytes.NewReader(content))
				if err != nil {
					return
				}
				text, err := settings.For(queue)
				got := text
				if err != nil {
					got = err.Error()
				}
				if before != "" && got != before {
					t.Fatalf("first\n%s\nthen\n%s", before, got)
				}
				before = got
				if _, err := toml.Decode(text, &map[string]any{}); err != nil {
					t.Fatalf("%v:\n%s", err, text)
				}
			}
		}
	})
}
