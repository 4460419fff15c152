package packages

import (
	"slices"
	"strings"
	"testing"

	"github.com/nth-project/nth/test/internal/host"
	"github.com/nth-project/nth/test/internal/machine"
)

// The installed files are tried in the shells themselves.
func TestCompletion_in_zsh_and_fish(t *testing.T) {
	t.Parallel()
	m := machine.Boot(t, "trixie", tasters...)
	m.Put(t, host.Package(t, host.Older, "deb"), "/root/nth.deb")
	m.Run(t, "dpkg", "--install", "/root/nth.deb")
	installQueueVersion(t, m, host.Older)
	for line, want := range map[string]string{
		"nth sta\t":            "status",
		"nth check --off\t":    "check --offline",
		"nth status --j\t":     "status --json",
		"nth run --config\t":   "run --config",
		"nth help conf\t":      "help config",
		"nth version --h\t":    "version --help",
		"nth config --no-such": "config --no-such",
		"nth-queue sta\t":      "status",
		"nth-queue run --d\t":  "run --dry-run",
	} {
		if got := typed(t, m, line); got != want {
			t.Errorf("zsh makes %q of %q, want %q", got, line, want)
		}
	}
	for line, want := range map[string][]string{
		"nth ":                              {"check", "config", "drain", "help", "rehearse", "run", "status", "version"},
		"nth sta":                           {"status"},
		"nth check --off":                   {"--offline"},
		"nth status --":                     {"--config", "--help", "--json"},
		"nth help ":                         {"check", "config", "drain", "help", "rehearse", "run", "status", "version"},
		"nth config --config /etc/nth/nth.": {"/etc/nth/nth.toml", "/etc/nth/nth.toml.d/"},
		"nth-queue status --":               {"--config", "--help", "--json"},
	} {
		if got := offered(t, m, line); !slices.Equal(got, want) {
			t.Errorf("fish offers %q after %q, want %q", got, line, want)
		}
	}
}

// typed is what zsh makes of a line that somebody types, tabs and all: the arguments that the command gets.
func typed(t *testing.T, m *machine.Machine, line string) string {
	t.Helper()
	m.Write(t, "/root/.zshrc", "autoload -Uz compinit && compinit -u\n"+
		"nth() { if [[ $1 == __complete* ]]; then command nth $*; else print -r -- $* >/root/typed; exit; fi }\n"+
		"nth-queue() { if [[ $1 == __complete* ]]; then command nth-queue $*; else nth $*; fi }\n")
	// The shell has a terminal, and reads a key when it has dealt with the one before.
	const script = `rm -f /root/typed; printf '%s\n' "$1" | script --quiet --command 'zsh -i' /dev/null >/dev/null; cat /root/typed`
	return strings.TrimSpace(m.Run(t, "sh", "-c", script, "sh", line))
}

// offered is what fish offers after a line, without its explanations.
func offered(t *testing.T, m *machine.Machine, line string) []string {
	t.Helper()
	var found []string
	for candidate := range strings.Lines(m.Run(t, "fish", "--command", `complete --do-complete "$argv"`, line) + "\n") {
		if word, _, _ := strings.Cut(strings.TrimSpace(candidate), "\t"); word != "" {
			found = append(found, word)
		}
	}
	slices.Sort(found)
	return found
}
