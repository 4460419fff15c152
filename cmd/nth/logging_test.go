package main_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	nth "github.com/nth-project/nth/cmd/nth"
	"github.com/nth-project/nth/pkg/config"
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
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "<3>testdata/wrong.toml: line 2: events.") || !strings.HasPrefix(lines[1], "<3>testdata/wrong.toml: line 5: imds.") {
		t.Errorf("got\n%s", got)
	}
}
