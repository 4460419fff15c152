package main_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	"github.com/sirupsen/logrus"

	nth "github.com/nth-project/nth/cmd/nth"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/rehearsal"
	"github.com/nth-project/nth/pkg/systemd"
)

var noon = time.Date(2026, 1, 31, 12, 0, 0, 250e6, time.UTC)

func TestLogging_Formats(t *testing.T) {
	for format, want := range map[string]string{
		"auto": `2026-01-31 12:00:00.250  info     cordoned the node  node=ip-10-0-0-1 why="spot interruption"
2026-01-31 12:00:00.250  warning  two
2026-01-31 12:00:00.250  debug    three
`,
		"prefix": `<6>cordoned the node  node=ip-10-0-0-1 why="spot interruption"
<4>two
<7>three
`,
		"json": `{"MESSAGE_ID":"` + systemd.Cordoned + `","NTH_NODE":"ip-10-0-0-1","level":"info","msg":"cordoned the node","time":"2026-01-31T12:00:00.25Z","why":"spot interruption"}
{"level":"warning","msg":"two","time":"2026-01-31T12:00:00.25Z"}
{"level":"debug","msg":"three","time":"2026-01-31T12:00:00.25Z"}
`,
	} {
		var out bytes.Buffer
		logger := nth.NewLogger(config.Log{Level: "debug", Format: format}, &out)
		logger.WithTime(noon).WithFields(logrus.Fields{
			systemd.FieldMessageID: systemd.Cordoned, systemd.FieldNode: "ip-10-0-0-1", "why": "spot interruption",
		}).Info("cordoned the node")
		logger.WithTime(noon).Warning("two\n")
		logger.WithTime(noon).Debug("three")
		if out.String() != want {
			t.Errorf("%s: got\n%s", format, &out)
		}
	}
}

func TestLogging_EachFaultHasItsPriorityInTheJournal(t *testing.T) {
	if _, err := os.Stat("/run/systemd/journal/socket"); err == nil {
		t.Skip("this machine has a journal, which would take the entries")
	}
	stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stderr.Close() }()
	var stat syscall.Stat_t
	if err := syscall.Fstat(int(stderr.Fd()), &stat); err != nil {
		t.Fatal(err)
	}
	program := exec.CommandContext(t.Context(), os.Args[0], "run", "--config", "testdata/wrong.toml")
	program.Env = append(os.Environ(), asProgram+"=nth", fmt.Sprintf("JOURNAL_STREAM=%d:%d", stat.Dev, stat.Ino))
	program.Stderr = stderr
	_ = program.Run()
	if code := program.ProcessState.ExitCode(); code != 78 {
		t.Errorf("ended with %v", program.ProcessState)
	}
	got, err := os.ReadFile(stderr.Name())
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(got)), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], "<3>testdata/wrong.toml: line 2: events.") || !strings.HasPrefix(lines[1], "<3>testdata/wrong.toml: line 5: imds.") || lines[2] != "<3>invalid configuration; not starting" {
		t.Errorf("got\n%s", got)
	}
}

// hostile is what somebody who names a pod, sends a message or answers as a server may write: a forged line, a terminal's escapes, and a
// change of the direction of writing.
const hostile = "web\nok    identity    forged\r\x1b[2J\u009b1m\u202eevil"

// mustBeVisible fails the test unless the output shows the hostile text, on the line that quotes it, and nothing that cannot be seen.
func mustBeVisible(t *testing.T, output string) {
	t.Helper()
	if !strings.Contains(output, "web") || !strings.Contains(output, `\x1b[2J\u009b1m\u202eevil`) {
		t.Errorf("the hostile text is not shown:\n%s", output)
	}
	for line := range strings.Lines(output) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "ok    identity    forged") || strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("the line is forged, or cannot be seen: %q", line)
		}
	}
}

func TestVisible_what_an_API_server_says(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":%s}`,
			strings.NewReplacer("\n", `\n`, "\r", `\r`, "\x1b", `\u001b`, "\u009b", `\u009b`).Replace(`"`+hostile+`"`))
	}))
	defer server.Close()
	b := newBench(t)
	b.put(t, "absent", string(rehearsal.Kubeconfig(server.URL)))
	mustBeVisible(t, b.check(t, ""))
	settings := file(t, fmt.Sprintf("[kubernetes]\nkubeconfig = %q\n", filepath.Join(b.host, "absent")))
	status, stdout, stderr := call(t, "drain --dry-run --config "+settings)
	if status != 1 || stdout != "" || strings.Count(stderr, "\n") != 1 {
		t.Errorf("drain: status %d, on standard output %q", status, stdout)
	}
	mustBeVisible(t, stderr)
}

func TestVisible_what_the_status_has(t *testing.T) {
	s := draining(os.Getpid())
	s.Sentence, s.Step.HeldBy, s.Off[0].Why = hostile, map[string]string{hostile: hostile}, hostile
	s.Events[0].Error, s.Documents[1].Trouble, s.Identity.Trouble, s.Degraded = hostile, hostile, hostile, []string{hostile}
	s.Documents[0].Kind = event.Kind(hostile)
	_, stdout, _ := statusOf(t, &s, "")
	mustBeVisible(t, stdout)
}

func TestVisible_what_is_logged(t *testing.T) {
	for _, format := range []string{"text", "prefix", "json"} {
		var out bytes.Buffer
		nth.NewLogger(config.Log{Level: "info", Format: format}, &out).WithField("NTH_POD", hostile).Error("evicting " + hostile)
		mustBeVisible(t, strings.ReplaceAll(out.String(), `\\`, `\`))
		if strings.Count(out.String(), "\n") != 1 {
			t.Errorf("%s: %q is not one line", format, &out)
		}
	}
}
