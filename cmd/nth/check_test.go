package main_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
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
	t.Setenv("STATE_DIRECTORY", filepath.Join(b.host, "state"))
	t.Setenv("RUNTIME_DIRECTORY", filepath.Join(b.host, "run"))
	for _, name := range []string{"HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"} {
		t.Setenv(name, "")
		t.Setenv(strings.ToLower(name), "")
	}
	return b
}

// set writes the settings, with some more lines at the top and perhaps a table after them.
func (b *bench) set(t *testing.T, more string) {
	t.Helper()
	const form = "host_root = %q\n%s\n[imds]\nendpoint = %q\n[kubernetes]\nkubeconfig = \"/absent\"\n"
	text := fmt.Appendf(nil, form, b.host, more, b.imds.URL)
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

func TestCheck_ends_with_a_summary(t *testing.T) {
	b := newBench(t)
	mustSay(t, b.check(t, "--offline"), `warn  settings    imds\.endpoint = "http://127\.0\.0\.1:\d+": nth sees only what is announced there, .*`,
		`(ok  |warn|fail)  summary     \d failed, \d deserve a look, \d ok`)
	status, stdout, _ := call(t, "check --offline --json --config testdata/wrong.toml")
	want := `{
  "findings": [
    {
      "verdict": "fail",
      "subject": "settings",
      "text": "testdata/wrong.toml: line 2: events.spot-interruption.action = \"drian\": must be one of \"ignore\", \"notify\", \"cordon\", \"drain\""
    },
    {
      "verdict": "fail",
      "subject": "settings",
      "text": "testdata/wrong.toml: line 5: imds.intervall: unknown key; [imds] has endpoint, interval, withdrawn_after"
    },
    {
      "verdict": "fail",
      "subject": "summary",
      "text": "2 failed, 0 deserve a look, 0 ok"
    }
  ],
  "verdict": "fail"
}
`
	if status != 78 || stdout != want {
		t.Errorf("status %d, and the JSON is\n%s", status, stdout)
	}
}

func TestCheck_without_root_says_so_and_nothing_else(t *testing.T) {
	process := exec.CommandContext(t.Context(), "/proc/self/exe", "check", "--offline")
	process.Dir, process.Env = "/", append(os.Environ(), asProgram+"=nth", "STATE_DIRECTORY=/nth-state-of-root")
	if os.Geteuid() == 0 {
		process.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	said, err := process.Output()
	want := `(?s)^.*fail  user        run as root: sudo nth check\nfail  summary     1 failed, \d deserve a look, \d ok\n$`
	if process.ProcessState.ExitCode() != 1 || !regexp.MustCompile(want).Match(said) || bytes.Contains(said, []byte("permission denied")) {
		t.Errorf("it ended with %v, and said\n%s", err, said)
	}
}

func TestCheckOfAnImageAsksNobody(t *testing.T) {
	b := newBench(t)
	b.imds.Close()
	said := b.check(t, "--offline")
	mustSay(t, said, `ok    settings    .*nth\.toml`, `ok    memory      .*/state can be written to`)
	for _, subject := range []string{"metadata", "identity", "right", "eviction", "daemon"} {
		if strings.Contains(said, "  "+subject+" ") {
			t.Errorf("in an image that is being made it looks at %s:\n%s", subject, said)
		}
	}
}

func TestCheck_FindsWhatSettingsAndHostSay(t *testing.T) {
	const kubelet = "var/lib/kubelet/config.yaml"
	for want, c := range map[string]struct{ settings, file, text string }{
		`fail  memory      .*/state.*`:                                             {file: "state", text: "a file in place of a directory"},
		`warn  settings    dry_run = true: .*`:                                     {settings: "dry_run = true"},
		`ok    shutdown    ignored by configuration: events\.shutdown\.action`:     {settings: "[events.shutdown]\naction = \"ignore\""},
		`ok    shutdown    the kubelet holds it for 1m0s as well; where logind .*`: {file: kubelet, text: "shutdownGracePeriod: 60s\n"},
		`ok    shutdown    the kubelet does not delay it`:                          {file: kubelet, text: "shutdownGracePeriod: 0s\n"},
		`warn  shutdown    reading the kubelet's configuration .*`:                 {file: kubelet, text: "shutdownGracePeriod: a while\n"},
	} {
		b := newBench(t)
		b.set(t, c.settings)
		if c.file != "" {
			b.put(t, c.file, c.text)
		}
		mustSay(t, b.check(t, ""), want)
	}
}

func TestCheckGoesOnAfterWhatItMisses(t *testing.T) {
	b := newBench(t)
	mustSay(t, b.check(t, ""),
		`ok    metadata    session token received from http://127\.0\.0\.1:\d+`,
		`ok    metadata    spot/instance-action: nothing is announced`,
		`fail  identity    .*/absent.*`,
		`warn  shutdown    no advance notice: connecting to the system bus: .*`,
		`ok    shutdown    the kubelet does not delay it`)
}

func TestCheck_EndsWithItsSummaryWhateverTheEnvironmentHas(t *testing.T) {
	b := newBench(t)
	t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "IPv5")
	status, stdout, stderr := call(t, "check --json --config "+b.settings)
	want := `AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE=\"IPv5\": it must be IPv4 or IPv6`
	if status != 78 || stderr != "" || !strings.Contains(stdout, want) || !strings.HasSuffix(stdout, "\"verdict\": \"fail\"\n}\n") {
		t.Errorf("status %d, standard error %q, standard output\n%s", status, stderr, stdout)
	}
}
