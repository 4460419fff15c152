package main_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	nth "github.com/nth-project/nth/cmd/nth"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/rehearsal"
)

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
