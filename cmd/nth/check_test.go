package main_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/pkg/rehearsal"
	"github.com/nth-project/nth/pkg/state"
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
		`fail  memory      .*/state.*`:                                         {file: "state", text: "a file in place of a directory"},
		`warn  settings    dry_run = true: .*`:                                 {settings: "dry_run = true"},
		`ok    shutdown    ignored by configuration: events\.shutdown\.action`: {settings: "[events.shutdown]\naction = \"ignore\""},
		`ok    shutdown    the kubelet holds it for 1m0s as well; if logind announces a reboot or another shutdown, .*`: {file: kubelet, text: "shutdownGracePeriod: 60s\n"},
		`ok    shutdown    the kubelet does not delay it`:                                                               {file: kubelet, text: "shutdownGracePeriod: 0s\n"},
		`warn  shutdown    reading the kubelet's configuration .*`:                                                      {file: kubelet, text: "shutdownGracePeriod: a while\n"},
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
		`warn  shutdown    logind gives no advance notice of a shutdown: connecting to the D-Bus system bus: .*`,
		`ok    shutdown    the kubelet does not delay it`)
}

func TestCheck_EndsWithItsSummaryWhateverTheEnvironmentHas(t *testing.T) {
	b := newBench(t)
	t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "IPv5")
	status, stdout, stderr := call(t, "check --json --config "+b.settings)
	want := `AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE is \"IPv5\", but must be IPv4 or IPv6`
	if status != 78 || stderr != "" || !strings.Contains(stdout, want) || !strings.HasSuffix(stdout, "\"verdict\": \"fail\"\n}\n") {
		t.Errorf("status %d, standard error %q, standard output\n%s", status, stderr, stdout)
	}
}

// leave has a daemon of the bench leave a status.
func (b *bench) leave(t *testing.T, s state.Status) {
	t.Helper()
	writeStatus(t, filepath.Join(b.host, "run"), s)
}

// join gives the machine that checks a kubeconfig of a node, whatever the daemon sees of it.
func (b *bench) join(t *testing.T) {
	t.Helper()
	server := httptest.NewServer(rehearsal.New("00000000-0000-0000-0000-000000000001"))
	t.Cleanup(server.Close)
	b.put(t, "absent", string(rehearsal.Kubeconfig(server.URL)))
}

// watching is the status of a daemon that has nothing to do.
func watching() state.Status {
	now := time.Now()
	return state.Status{
		Version: state.StatusVersion, PID: os.Getpid(), Started: now.Add(-time.Hour), Updated: now,
		Node: rehearsal.Node, Documents: []state.DocumentStatus{{Kind: event.SpotInterruption, LastGood: now}},
	}
}

func TestCheckFailsUnlessTheDaemonRunsAndCouldActItself(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*state.Status) // nil leaves no status
		joined bool                // as far as the check can see
		want   string
	}{
		"all is well":            {func(*state.Status) {}, true, `ok    daemon      process \d+ watches for node made-up-node`},
		"it was never started":   {nil, true, `fail  daemon      nth is not running, or has just started: no status in .*/run: this node would not be drained.*`},
		"it was stopped":         {func(s *state.Status) { s.Stopped = s.Updated }, true, `fail  daemon      nth is not running: stopped at .*`},
		"it has crashed":         {func(s *state.Status) { s.PID = 1 << 30 }, true, `fail  daemon      nth is not running: process 1073741824 died.*`},
		"it hangs":               {func(s *state.Status) { s.Program = hung }, true, `fail  daemon      nth may be hung: .*`},
		"it sees no kubeconfig":  {without, true, `fail  daemon      it has no credential: there is no kubeconfig\. This check has found one in .*/absent: .*PrivateTmp=.*`},
		"nor does anybody":       {without, false, `fail  daemon      it has no credential: there is no kubeconfig`},
		"its credential expired": {func(s *state.Status) { s.Identity.Trouble = "401" }, true, `fail  daemon      it has no credential: 401\. .*`},
		"it is another node's":   {func(s *state.Status) { s.Node = "other" }, true, `fail  daemon      it acts for node other, and the credential in .*/absent is of node made-up-node: .*`},
		"it hears nothing":       {deafFor(time.Minute), true, `fail  daemon      it has been unable to look for spot-interruption since .*: refused`},
		"it missed one look":     {deafFor(time.Second), true, `ok    daemon      process \d+ watches for node made-up-node`},
		"it is only talking":     {func(s *state.Status) { s.DryRun = true }, true, `warn  daemon      it runs as a dry run: .*`},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			if c.joined {
				b.join(t)
			}
			if c.change != nil {
				s := watching()
				c.change(&s)
				b.leave(t, s)
			}
			mustSay(t, b.check(t, ""), c.want)
		})
	}
}

func without(s *state.Status) { s.Node, s.Identity.Trouble = "", "there is no kubeconfig" }

func deafFor(d time.Duration) func(*state.Status) {
	return func(s *state.Status) {
		s.Documents[0].Trouble, s.Documents[0].Since = "refused", s.Updated.Add(-d)
	}
}

// Who has just installed nth looks at once, and must not be told what will be over in a moment.
func TestCheckGivesADaemonThatBeginsAMomentToFindItsCredential(t *testing.T) {
	b := newBench(t)
	b.join(t)
	s := watching()
	s.Started = s.Updated
	without(&s)
	b.leave(t, s)
	joined := time.AfterFunc(time.Second, func() { b.leave(t, watching()) })
	defer joined.Stop()
	if said := b.check(t, ""); strings.Contains(said, "fail  daemon") {
		t.Errorf("it says\n%s", said)
	}
}

func TestCheck_SaysWhichFilesWereRead(t *testing.T) {
	b := newBench(t)
	for name, text := range map[string]string{"50-webhook.toml": "[webhook]\nproxy = \"http://me:hunter2@a.test\"\n", "60-old.toml.bak": "no TOML"} {
		if err := os.MkdirAll(b.settings+".d", 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(b.settings+".d", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	said := b.check(t, "--offline")
	mustSay(t, said, `ok    settings    read .*/nth\.toml`, `ok    settings    read .*/nth\.toml\.d/50-webhook\.toml`,
		`warn  settings    ignored .*/60-old\.toml\.bak: its name does not end with \.toml`,
		`ok    webhook     no webhook configured`)
	status, stdout, stderr := call(t, "config --check --config "+b.settings)
	mustSay(t, stdout, `.*/nth\.toml: read`, `.*/50-webhook\.toml: read`, `.*/60-old\.toml\.bak: ignored: its name does not end with \.toml`, `.*/nth\.toml, .*/50-webhook\.toml: ok`)
	if status != 0 || stderr != "" || strings.Contains(said+stdout, "hunter2") {
		t.Errorf("status %d: %s%s", status, stdout, stderr)
	}
}

// In a host container, the kubeconfig is below the host's root.
func TestCheck_TheTestOfTheWebhookNamesTheNode(t *testing.T) {
	b := newBench(t)
	b.join(t)
	posted := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		posted <- string(text)
	}))
	t.Cleanup(server.Close)
	b.set(t, "[webhook]\nurl_file = \""+file(t, server.URL)+"\"")
	mustSay(t, b.check(t, "--webhook"), `ok    webhook     test message delivered`)
	if text := <-posted; !strings.Contains(text, rehearsal.Node) {
		t.Errorf("what is posted does not name the node: %s", text)
	}
}
