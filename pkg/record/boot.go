package record

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// bootIDShape is how the kernel writes a UUID.
var bootIDShape = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// BootID returns the kernel's identity of this boot, from proc/sys/kernel/random/boot_id below root ("" or "/" is the
// machine itself). It changes with every boot and with nothing else.
func BootID(root string) (string, error) {
	path := filepath.Join("/", root, "proc/sys/kernel/random/boot_id")
	content, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("reading the boot ID: %w", err)
	}
	id := strings.TrimSpace(string(content))
	if !bootIDShape.MatchString(id) {
		return "", fmt.Errorf("reading the boot ID: %s holds %q, which is no UUID", path, id)
	}
	return id, nil
}
