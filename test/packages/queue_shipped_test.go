package packages

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/systemd"
)

func shipped(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile("../../" + file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// usages are what the program prints about each of its commands, as its source has it.
func usages(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, m := range regexp.MustCompile("const ([a-z]+)Usage = `([^`]*)`").FindAllStringSubmatch(shipped(t, "cmd/nth-queue/main.go"), -1) {
		found[m[1]] = m[2]
	}
	if len(found) < 5 {
		t.Fatalf("the source has the usage of %d commands", len(found))
	}
	return found
}

// flagsOf lists the flags in a text, sorted, each once.
func flagsOf(text string) []string {
	flags := regexp.MustCompile(`--[a-z][a-z-]*`).FindAllString(text, -1)
	slices.Sort(flags)
	return slices.Compact(flags)
}

func TestTheManualOfNTHQueueKnowsEveryCommandAndFlagAndNoOthers(t *testing.T) {
	t.Parallel()
	known := usages(t)
	text := strings.ReplaceAll(shipped(t, "packaging/man/nth-queue.8"), `\-`, "-")
	synopsis, _, _ := strings.Cut(text, ".SH DESCRIPTION")
	var commands []string
	for _, part := range strings.Split(synopsis, ".B nth-queue ")[1:] {
		command := strings.Fields(part)[0]
		commands = append(commands, command)
		if got, want := flagsOf(part), flagsOf(known[command]); !slices.Equal(got, want) {
			t.Errorf("nth-queue %s: the manual has the flags %q, the program %q", command, got, want)
		}
		if !strings.Contains(text, "\n.TP\n.B "+command+"\n") {
			t.Errorf("nth-queue %s is not explained", command)
		}
	}
	if want := sortedWith(known, "help"); !slices.Equal(slices.Sorted(slices.Values(commands)), want) {
		t.Errorf("the manual has the commands %q, the program %q", commands, want)
	}
}

func TestTheCompletionsOfNTHQueueKnowEveryCommandAndFlag(t *testing.T) {
	t.Parallel()
	known := usages(t)
	bash, zsh := shipped(t, "packaging/completions/nth-queue.bash"), shipped(t, "packaging/completions/nth-queue.zsh")
	fish := shipped(t, "packaging/completions/nth-queue.fish")
	for shell, pattern := range map[string]string{
		bash: `compgen -W '([a-z ]+)'`, zsh: `(?m)^\t\t'([a-z]+):`, fish: `__fish_use_subcommand -a ([a-z]+) `,
	} {
		var offered []string
		for _, found := range regexp.MustCompile(pattern).FindAllStringSubmatch(shell, -1) {
			offered = append(offered, strings.Fields(found[1])...)
		}
		if want := sortedWith(known, "help"); !slices.Equal(slices.Sorted(slices.Values(offered)), want) {
			t.Errorf("the completion that begins %.32q offers the commands %q, want %q", shell, offered, want)
		}
	}
	for command, usage := range known {
		want := append(flagsOf(usage), "--help")
		slices.Sort(want)
		line := regexp.MustCompile(`(?m)^\t` + command + `\) flags='([^']*)'`).FindStringSubmatch(bash)
		if line == nil || !slices.Equal(flagsOf(line[1]), want) {
			t.Errorf("bash offers %q after nth-queue %s, want %q", line, command, want)
		}
		line = regexp.MustCompile(`(?m)^\t` + command + `\) flags=\((.*)\)`).FindStringSubmatch(zsh)
		if line == nil {
			t.Errorf("zsh does not know nth-queue %s", command)
			continue
		}
		offered := strings.NewReplacer(`"$config"`, "--config", `"$help"`, "--help").Replace(line[1])
		if !slices.Equal(flagsOf(offered), want) {
			t.Errorf("zsh offers %q after nth-queue %s, want %q", flagsOf(offered), command, want)
		}
	}
}

func sortedWith(known map[string]string, more string) []string {
	return slices.Sorted(slices.Values(append(slices.Collect(maps.Keys(known)), more)))
}

// onlyNTH are messages of nth on a node: nth-queue has no kubelet's identity, and is told of hooks by the queue.
var onlyNTH = []string{"IdentityWaiting", "IdentityFound", "HookFound", "PowerButton", "TargetStateUnknown", "Stalled"}

func TestTheCatalogOfNTHQueueExplainsItsMessages(t *testing.T) {
	t.Parallel()
	explained := map[string]bool{}
	for _, entry := range strings.Split(shipped(t, "systemd/nth-queue.catalog"), "\n-- ")[1:] {
		id, rest, _ := strings.Cut(entry, "\n")
		if explained[id] {
			t.Errorf("%s is explained twice", id)
		}
		explained[id] = true
		if head, body, _ := strings.Cut(rest, "\n\n"); !strings.HasPrefix(head, "Subject: ") || len(strings.Split(strings.TrimSpace(body), "\n\n")) < 2 {
			t.Errorf("%s is not explained, or what to do is not told:\n%s", id, rest)
		}
	}
	for name, id := range systemd.Messages() {
		if explained[id] == slices.Contains(onlyNTH, name) {
			t.Errorf("the message %s, %s, is explained: %t", name, id, explained[id])
		}
		delete(explained, id)
	}
	for id := range explained {
		t.Errorf("there is no message %s", id)
	}
}
