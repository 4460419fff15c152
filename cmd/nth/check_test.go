package main_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/imds/imdstest"
)

// A bench is what "nth check" looks at: a host's file system, and settings that name nothing outside of it.
type bench struct {
	host, settings string
	imds           *imdstest.Server
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{host: t.TempDir(), settings: filepath.Join(t.TempDir(), "nth.toml"), imds: imdstest.NewServer()}
	t.Cleanup(b.imds.Close)
	b.set(t, "")
	return b
}

// set writes the settings, with some more lines at the top and perhaps a table after them.
func (b *bench) set(t *testing.T, more string) {
	t.Helper()
	const form = "state_directory = %q\nhost_root = %q\n%s\n[imds]\nendpoint = %q\n[kubernetes]\nkubeconfig = \"/absent\"\n"
	text := fmt.Appendf(nil, form, filepath.Join(b.host, "state"), b.host, more, b.imds.URL)
	if err := os.WriteFile(b.settings, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// put writes a file of the host.
func (b *bench) put(t *testing.T, path, text string) {
	t.Helper()
	path = filepath.Join(b.host, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// check runs "nth check", and fails the test unless its status goes with what it has found.
func (b *bench) check(t *testing.T, flags string) string {
	t.Helper()
	status, stdout, stderr := call(t, "check --config "+b.settings+" "+flags)
	want := 0
	if regexp.MustCompile(`(?m)^fail `).MatchString(stdout) {
		want = 1
	}
	if status != want || stderr != "" {
		t.Errorf("status %d, want %d; standard error has %q; it says\n%s", status, want, stderr, stdout)
	}
	return stdout
}

// mustSay fails the test unless each pattern matches a whole line.
func mustSay(t *testing.T, said string, patterns ...string) {
	t.Helper()
	for _, pattern := range patterns {
		if !regexp.MustCompile(`(?m)^` + pattern + `$`).MatchString(said) {
			t.Errorf("there is no line %q in\n%s", pattern, said)
		}
	}
}

func TestCheckSaysWhatIsWrongWithTheSettingsAndNothingElse(t *testing.T) {
	status, stdout, stderr := call(t, "check --config testdata/wrong.toml")
	if status != 78 || stderr != "" || strings.Count(stdout, "\n") != 2 {
		t.Errorf("status %d, standard error %q, standard output\n%s", status, stderr, stdout)
	}
	mustSay(t, stdout, `fail  settings    testdata/wrong\.toml: events\.spot-interruption\.action = .*`,
		`fail  settings    testdata/wrong\.toml: imds\.urgent_intervall: unknown key.*`)
}

func TestCheckOfAnImageAsksNobody(t *testing.T) {
	b := newBench(t)
	b.imds.Close()
	said := b.check(t, "--offline")
	mustSay(t, said, `ok    settings    .*nth\.toml`, `ok    memory      .*/state can be written to`)
	for _, subject := range []string{"metadata", "identity", "right", "clock", "eviction"} {
		if strings.Contains(said, "  "+subject+" ") {
			t.Errorf("in an image that is being made it looks at %s:\n%s", subject, said)
		}
	}
}

func TestCheckFindsAStateDirectoryThatCannotBeWrittenTo(t *testing.T) {
	b := newBench(t)
	b.put(t, "state", "a file, where a directory is to be")
	mustSay(t, b.check(t, "--offline"), `fail  memory      .*/state.*`)
}

func TestCheckWarnsOfADryRun(t *testing.T) {
	b := newBench(t)
	b.set(t, "dry_run = true")
	mustSay(t, b.check(t, "--offline"), `warn  settings    dry_run = true: .*`)
}

func TestCheckGoesOnAfterWhatItMisses(t *testing.T) {
	b := newBench(t)
	mustSay(t, b.check(t, ""),
		`ok    metadata    it gives a session token`,
		`ok    metadata    spot/instance-action: nothing is announced`,
		`ok    clock       it agrees with that of the metadata service`,
		`fail  identity    .*/absent.*`,
		`warn  shutdown    it cannot be heard of in advance: connecting to the system bus: .*`,
		`ok    shutdown    the kubelet does not hold it`)
}

func TestCheckTellsWhatTheKubeletMakesOfAShutdown(t *testing.T) {
	for name, c := range map[string]struct{ config, want string }{
		"it holds it":         {"shutdownGracePeriod: 60s", `ok    shutdown    the kubelet holds it for 1m0s beside nth`},
		"it does not hold it": {"shutdownGracePeriod: 0s", `ok    shutdown    the kubelet does not hold it`},
		"nobody knows":        {"shutdownGracePeriod: a while", `warn  shutdown    reading the kubelet's configuration .*`},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.put(t, "var/lib/kubelet/config.yaml", c.config+"\n")
			mustSay(t, b.check(t, ""), c.want)
		})
	}
}

func TestCheckLeavesAShutdownAloneThatIsToBeIgnored(t *testing.T) {
	b := newBench(t)
	b.set(t, "[events.shutdown]\naction = \"ignore\"")
	said := b.check(t, "")
	mustSay(t, said, `ok    shutdown    the settings say that it is to be ignored: events\.shutdown\.action`)
	if strings.Contains(said, "the kubelet") && strings.Contains(said, "hold it") {
		t.Errorf("it looks at the kubelet all the same:\n%s", said)
	}
}
