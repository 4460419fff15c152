package main_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

func TestRun_WhileTheServiceRuns(t *testing.T) {
	b := newBench(t)
	service := b.serveNth(t)
	service.awaitStatus(t, b, "process "+strconv.Itoa(service.process.Process.Pid))

	status, stdout, stderr := typed(t, "run", "--config", b.settings)
	if want := fmt.Sprintf("nth: nth already runs (pid %d)\n", service.process.Process.Pid); status != 1 || stdout != "" || stderr != want {
		t.Errorf("a second one: status %d, on standard output %q, on standard error %q, want %q", status, stdout, stderr, want)
	}

	b.set(t, "dry_run = true")
	dry := b.serveNth(t)
	if said := dry.stop(t); !strings.Contains(said, "dry run") {
		t.Errorf("the dry run said\n%s", said)
	}
	status, stdout, _ = call(t, "status --config "+b.settings)
	if want := fmt.Sprintf("process %d,", service.process.Process.Pid); status != 0 || !strings.Contains(stdout, want) || strings.Contains(stdout, "dry run") {
		t.Errorf("the status after a dry run, %d, is not the service's:\n%s", status, stdout)
	}
	service.stop(t)

	b.set(t, "")
	b.serveNth(t).stop(t)
}
