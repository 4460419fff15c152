package packages

import (
	"os"
	"strings"
	"testing"
)

// The front page says which systems were booted: these, with their versions.
func TestTheFrontPageNamesTheSystemsThatAreBooted(t *testing.T) {
	page, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, row, found := strings.Cut(string(page), "\n| system | ")
	row, _, _ = strings.Cut(row, " | ")
	if !found {
		t.Fatal("README.md does not say which systems were booted")
	}
	onEverySuite(t, func(t *testing.T, suite string) {
		h := bareHost(t, suite)
		is := h.Run(t, "sh", "-c", `. /etc/os-release; echo "Debian $VERSION_ID (systemd $(systemctl --version | sed -n 's/^systemd \([0-9]*\).*/\1/p'))"`)
		if !strings.Contains(row, is) {
			t.Errorf("README.md says that %s were booted, and not %s", row, is)
		}
	})
}
