package record_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/record"
)

func TestTheBootIDIsReadBelowTheRoot(t *testing.T) {
	for name, test := range map[string]struct{ content, id, says string }{
		"as the kernel writes it": {content: boot + "\n", id: boot},
		"empty":                   {content: "", says: `holds "", which is no UUID`},
		"something else":          {content: "no boot\n", says: "which is no UUID"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			path := filepath.Join(root, "proc/sys/kernel/random/boot_id")
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(test.content), 0o600); err != nil {
				t.Fatal(err)
			}
			id, err := record.BootID(root)
			if id != test.id {
				t.Errorf("BootID is %q, want %q", id, test.id)
			}
			if test.says == "" && err != nil || test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)) {
				t.Errorf("error %v, want %q", err, test.says)
			}
		})
	}
	if _, err := record.BootID(t.TempDir()); err == nil {
		t.Error("no error for a root without /proc")
	}
}

func TestThisMachineHasABootIDThatStays(t *testing.T) {
	first, err := record.BootID("")
	if err != nil {
		t.Skipf("no Linux: %v", err)
	}
	if second, _ := record.BootID("/"); first != second {
		t.Errorf("first %q, then %q", first, second)
	}
}
