package machine_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/test/internal/machine"
)

// boot boots a machine that makes groups below its own.
func boot(t *testing.T) *machine.Machine {
	t.Helper()
	m := machine.BootWith(t, "bookworm", machine.Options{Controllers: true})
	m.Run(t, "sh", "-c", `for at in /sys/fs/cgroup/ /sys/fs/cgroup/*/; do
		mount -o remount,rw,bind "$at" 2>/dev/null || :
		[ ! -e "$at/cgroup.procs" ] || mkdir -p "$at/made/below"
	done`)
	return m
}

// victim, in the environment, makes the next test boot a machine and wait for its end.
const victim = "NTH_TEST_VICTIM"

func TestMachine_LeavesNothingWhenItsTestIsKilled(t *testing.T) {
	if os.Getenv(victim) != "" {
		fmt.Printf("\nbooted %s\n", boot(t).Name)
		<-t.Context().Done() // which does not come
		return
	}
	t.Parallel()
	test := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	test.Env = append(os.Environ(), victim+"=1")
	stdout, err := test.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := test.Start(); err != nil {
		t.Fatal(err)
	}
	name := ""
	for lines := bufio.NewScanner(stdout); name == "" && lines.Scan(); {
		name, _ = strings.CutPrefix(lines.Text(), "booted ")
		if !strings.HasPrefix(name, "nth-machine-") {
			name = ""
		}
	}
	if name != "" && len(traces(t, name)) == 0 {
		t.Error("there is no trace of the machine while it runs: this test looks in the wrong place")
	}
	_ = test.Process.Kill() // fails only if it has ended, which the next line tells
	_ = test.Wait()         // it was killed
	if name == "" {
		t.Fatal("the other test did not boot a machine")
	}
	for limit := time.Now().Add(time.Minute); len(traces(t, name)) > 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("there is still %q", traces(t, name))
		}
	}
}

// traces finds what the host has of a machine: processes that bear its name, mounts and control groups.
func traces(t *testing.T, name string) []string {
	t.Helper()
	if name == "" {
		t.Fatal("the machine has no name")
	}
	var found []string
	processes, _ := exec.Command("pgrep", "--full", "--list-full", name+" |="+name).Output() // status 1: there is none
	for line := range strings.Lines(string(processes)) {
		if !strings.Contains(line, "pgrep") {
			found = append(found, "the process "+strings.TrimSpace(line))
		}
	}
	mounts, err := os.ReadFile("/proc/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if strings.Contains(line, "/.cache/machine/mnt") {
			found = append(found, "the mount "+line)
		}
		if fields[2] == "cgroup" || fields[2] == "cgroup2" {
			// One that goes meanwhile is an error, and none that is there.
			groups, _ := exec.Command("find", fields[1], "-name", name).Output()
			for group := range strings.Lines(string(groups)) {
				found = append(found, "the control group "+strings.TrimSpace(group))
			}
		}
	}
	return found
}
