package main_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/cmd/internal/daemon"
	nth "github.com/nth-project/nth/cmd/nth"
)

var update = flag.Bool("update", false, "write the golden files anew")

// asProgram makes this test's binary a program: nth itself, or one that heeds the first signal by one word and then
// never ends.
const asProgram = "NTH_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) == "" { // What systemd has set is for the test itself.
		_, _ = os.Unsetenv("STATE_DIRECTORY"), os.Unsetenv("RUNTIME_DIRECTORY")
	}
	switch os.Getenv(asProgram) {
	case "nth":
		os.Exit(nth.Run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	case "stubborn":
		beStubborn()
	default:
		os.Exit(m.Run())
	}
}

func beStubborn() {
	ctx, stop := daemon.UntilSignal(context.Background())
	defer stop()
	fmt.Println("watching")
	<-ctx.Done()
	fmt.Println("stopping:", context.Cause(ctx))
	// Longer than any test waits for it, but not for ever, should the test that started it be killed.
	time.Sleep(10 * time.Minute)
}

// call runs nth with arguments that are separated by spaces.
func call(t *testing.T, args string) (status int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	status = nth.Run(t.Context(), strings.Fields(args), &out, &err)
	return status, out.String(), err.String()
}

// file writes a text into a file of its own, and returns its path.
func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := "testdata/" + name + ".txt"
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (-update writes it anew):\n%s", path, got)
	}
}

func TestOutput_of_commands_that_only_print(t *testing.T) {
	for _, c := range []struct{ args, golden string }{
		{"help", "help"},
		{"--help", "help"},
		{"-h", "help"},
		{"help drain", "help-drain"},
		{"drain --help", "help-drain"},
		{"drain -h", "help-drain"},
		{"config import --help", "help-config-import"},
		{"config --config testdata/spot.toml", "config-spot"},
		{"config --check --config testdata/spot.toml", "config-check-spot"},
		{"__complete", "complete-command"},
		{"__complete drain --", "complete-flag"},
		{"__complete run --config", "complete-file"},
	} {
		t.Run(c.args, func(t *testing.T) {
			var out, errs bytes.Buffer
			args := strings.Fields(c.args)
			completes := args[0] == "__complete"
			if completes && len(args) == 1 || c.golden == "complete-file" {
				args = append(args, "")
			}
			status := nth.Run(t.Context(), args, &out, &errs)
			if status != 0 || errs.Len() > 0 && !completes {
				t.Errorf("status %d, on standard error: %s", status, &errs)
			}
			golden(t, c.golden, out.String())
		})
	}
}

func TestUsage_errors_are_one_line(t *testing.T) {
	for _, c := range []struct{ args, stderr string }{
		{"evict", `nth: unknown command "evict" for "nth"; see "nth --help"`},
		{"stauts", `nth: unknown command "stauts" for "nth"; did you mean status; see "nth --help"`},
		{"--verbose", `nth: unknown flag: --verbose; see "nth --help"`},
		{"run --verbose", `nth run: unknown flag: --verbose; see "nth run --help"`},
		{"run now", `nth run: unknown command "now" for "nth run"; see "nth run --help"`},
		{"run --config", `nth run: flag needs an argument: --config; see "nth run --help"`},
		{"run --dry-run=perhaps", `nth run: invalid argument "perhaps" for "--dry-run" flag: strconv.ParseBool: parsing "perhaps": invalid syntax; see "nth run --help"`},
		{"run --config=", `nth run: invalid argument "" for "--config" flag: must name a file; see "nth run --help"`},
		{"rehearse --deadline 1h", `nth rehearse: --deadline must be from 5s to 2m0s, the longest spot notice; see "nth rehearse --help"`},
		{"drain --deadline 0", `nth drain: --deadline must be a duration such as 90s or 10m; see "nth drain --help"`},
		{"config import", `nth config import: accepts 1 arg(s), received 0; see "nth config import --help"`},
	} {
		t.Run(c.args, func(t *testing.T) {
			status, stdout, stderr := call(t, c.args)
			if status != 64 || stdout != "" || stderr != c.stderr+"\n" {
				t.Errorf("status %d, stdout %q, stderr %s", status, stdout, stderr)
			}
		})
	}
}

func TestUsage_without_a_command_is_help_and_an_error(t *testing.T) {
	status, stdout, stderr := call(t, "")
	if status != 64 || stdout != "" {
		t.Errorf("status %d, stdout %q", status, stdout)
	}
	golden(t, "help", stderr)
}

func TestWrongSettingsAreStatus78AndOneLineEach(t *testing.T) {
	for _, args := range []string{"run", "rehearse", "config", "config --check"} {
		t.Run(args, func(t *testing.T) {
			status, stdout, stderr := call(t, args+" --config testdata/wrong.toml")
			want := `testdata/wrong.toml: line 2: events.spot-interruption.action = "drian": must be one of "ignore", "notify", "cordon", "drain"
testdata/wrong.toml: line 5: imds.intervall: unknown key; [imds] has endpoint, interval, withdrawn_after
`
			if status != 78 || stdout != "" || stderr != want {
				t.Errorf("status %d, stdout %q, stderr\n%s", status, stdout, stderr)
			}
		})
	}
}

func TestVersionNamesVersionCommitAndToolchain(t *testing.T) {
	form := regexp.MustCompile(`^nth version \S+ \(commit \S+, go1\.\S+, [a-z]+/[a-z0-9]+\)\n$`)
	if status, stdout, stderr := call(t, "--version"); status != 0 || stderr != "" || !form.MatchString(stdout) {
		t.Errorf("status %d, stdout %q, stderr %q", status, stdout, stderr)
	}
}
