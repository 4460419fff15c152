package record_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/record"
)

func TestADirectoryThatIsWritableOrCanBeMadeIsAndStaysAsItWas(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{dir, filepath.Join(dir, "a", "b")} {
		if err := record.Writable(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if left := listing(t, dir); left != "" {
		t.Errorf("left behind: %s", left)
	}
}

func TestWhatKeepsADirectoryFromBeingWrittenToIsTold(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, filepath.Join(file, "state"), "/proc/nth/state"} {
		if err := record.Writable(path); err == nil || !strings.HasPrefix(err.Error(), "writing to ") {
			t.Errorf("%s: %v", path, err)
		}
	}
}
