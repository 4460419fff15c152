package main_test

import (
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	nth "github.com/nth-project/nth/cmd/nth"
)

const (
	manual      = "../../packaging/man/nth.8"
	completions = "../../packaging/completions/nth."
)

func shipped(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// flagsOf lists the flags in a text, sorted, each once.
func flagsOf(text string) []string {
	flags := regexp.MustCompile(`--[a-z][a-z-]*`).FindAllString(text, -1)
	slices.Sort(flags)
	return slices.Compact(flags)
}

// known are the commands, sorted, with "help", which has no entry of its own.
func known() []string {
	return slices.Sorted(slices.Values(append(slices.Collect(maps.Keys(nth.Usages())), "help")))
}

func TestTheManualKnowsEveryCommandAndFlagAndNoOthers(t *testing.T) {
	text := strings.ReplaceAll(shipped(t, manual), `\-`, "-")
	synopsis, _, _ := strings.Cut(text, ".SH DESCRIPTION")
	parts := strings.Split(synopsis, ".B nth ")[1:]
	var commands []string
	for _, part := range parts {
		command := strings.Fields(part)[0]
		commands = append(commands, command)
		if got, want := flagsOf(part), flagsOf(nth.Usages()[command]); !slices.Equal(got, want) {
			t.Errorf("nth %s: the manual has the flags %q, the program %q", command, got, want)
		}
		if !strings.Contains(text, "\n.TP\n.B "+command+"\n") {
			t.Errorf("nth %s is not explained", command)
		}
	}
	slices.Sort(commands)
	if !slices.Equal(commands, known()) {
		t.Errorf("the manual has the commands %q, the program %q", commands, known())
	}
}

func TestTheManualsCanBeRead(t *testing.T) {
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Skip("there is no groff to read them with")
	}
	for _, page := range []string{manual, "../../packaging/man/nth.toml.5"} {
		said, err := exec.CommandContext(t.Context(), groff, "-man", "-ww", "-z", "-Tutf8", page).CombinedOutput()
		if err != nil || len(said) > 0 {
			t.Errorf("groff says about %s: %v\n%s", page, err, said)
		}
	}
}

// complete asks bash what it would offer after these words.
func complete(t *testing.T, words ...string) []string {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash")
	}
	const script = `source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_nth nth "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"; printf '%s\n' "${COMPREPLY[@]}"`
	args := append([]string{"-c", script, "bash", completions + "bash", "nth"}, words...)
	out, err := exec.CommandContext(t.Context(), bash, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("completing %q: %v\n%s", words, err, out)
	}
	offered := strings.Fields(string(out))
	slices.Sort(offered)
	return offered
}

func TestBashOffersWhatThereIs(t *testing.T) {
	if got := complete(t, ""); !slices.Equal(got, known()) {
		t.Errorf("after nth: %q, want %q", got, known())
	}
	if got := complete(t, "st"); !slices.Equal(got, []string{"status"}) {
		t.Errorf("after nth st: %q", got)
	}
	for command, usage := range nth.Usages() {
		want := append(flagsOf(usage), "--help")
		slices.Sort(want)
		if got := complete(t, command, ""); !slices.Equal(got, want) {
			t.Errorf("after nth %s: %q, want %q", command, got, want)
		}
	}
	if got := complete(t, "run", "--config", "main_te"); !slices.Equal(got, []string{"main_test.go"}) {
		t.Errorf("after nth run --config main_te: %q", got)
	}
}

func TestZshAndFishOfferWhatThereIs(t *testing.T) {
	zsh, fish := shipped(t, completions+"zsh"), shipped(t, completions+"fish")
	for command, usage := range nth.Usages() {
		branch := regexp.MustCompile(`(?m)^\t` + command + `\) flags=(.*) ;;$`).FindStringSubmatch(zsh)
		if branch == nil || !strings.Contains(zsh, "'"+command+":") || !strings.Contains(fish, "-a "+command+" ") {
			t.Errorf("nth %s is not offered", command)
			continue
		}
		inZsh := flagsOf(strings.NewReplacer(`"$config"`, "--config", `"$help"`, "").Replace(branch[1]))
		if want := flagsOf(usage); !slices.Equal(inZsh, want) {
			t.Errorf("zsh offers %q after nth %s, want %q", inZsh, command, want)
		}
		var inFish []string
		for line := range strings.Lines(fish) {
			flag := regexp.MustCompile(`-n '__fish_seen_subcommand_from ([a-z ]+).*' -l ([a-z-]+)`).FindStringSubmatch(line)
			if flag != nil && slices.Contains(strings.Fields(flag[1]), command) && flag[2] != "help" {
				inFish = append(inFish, "--"+flag[2])
			}
		}
		slices.Sort(inFish)
		if want := flagsOf(usage); !slices.Equal(inFish, want) {
			t.Errorf("fish offers %q after nth %s, want %q", inFish, command, want)
		}
	}
}
