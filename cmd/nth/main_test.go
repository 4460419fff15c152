package main_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	nth "github.com/nth-project/nth/cmd/nth"
)

var update = flag.Bool("update", false, "write the golden files anew")

// asProgram makes this test's binary a program: nth itself, nth with the parent that it has in a host container, or one that heeds the first signal by one word and then
// never ends.
const asProgram = "NTH_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	switch os.Getenv(asProgram) {
	case "nth":
		os.Exit(nth.Run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	case "parent":
		if os.Args[1] != nth.UnderParent {
			os.Exit(nth.RunAsParent(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
		}
		os.Exit(nth.Run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	case "stubborn":
		beStubborn()
	default:
		os.Exit(m.Run())
	}
}

func beStubborn() {
	ctx, stop := nth.UntilSignal(context.Background())
	defer stop()
	fmt.Println("watching")
	<-ctx.Done()
	fmt.Println("stopping:", context.Cause(ctx))
	// Longer than any test waits for it, but not for ever, should the test that started it be killed.
	time.Sleep(10 * time.Minute)
}

// call runs nth with arguments that are separated by spaces, away from whatever systemd has set for the test itself.
func call(t *testing.T, args string) (status int, stdout, stderr string) {
	t.Helper()
	t.Setenv("STATE_DIRECTORY", "")
	t.Setenv("RUNTIME_DIRECTORY", "")
	var out, err bytes.Buffer
	status = nth.Run(t.Context(), strings.Fields(args), &out, &err)
	return status, out.String(), err.String()
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := "testdata/" + name + ".txt"
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (-update writes it anew):\n%s", file, got)
	}
}

func TestOutputOfEveryCommand(t *testing.T) {
	for _, c := range []struct{ args, golden string }{
		{"help", "help"},
		{"--help", "help"},
		{"-h", "help"},
		{"help run", "help-run"},
		{"run --help", "help-run"},
		{"run -h", "help-run"},
		{"help config", "help-config"},
		{"config --help", "help-config"},
		{"version --help", "help-version"},
		{"rehearse --help", "help-rehearse"},
		{"drain --help", "help-drain"},
		{"status --help", "help-status"},
		{"check --help", "help-check"},
		{"config --config testdata/spot.toml", "config-spot"},
		{"config --check --config testdata/spot.toml", "config-check-spot"},
	} {
		t.Run(c.args, func(t *testing.T) {
			status, stdout, stderr := call(t, c.args)
			if status != 0 || stderr != "" {
				t.Errorf("status %d, on standard error: %s", status, stderr)
			}
			golden(t, c.golden, stdout)
		})
	}
}

func TestAWrongCommandLineIsStatus64AndOneLine(t *testing.T) {
	for _, c := range []struct{ args, stderr string }{
		{"evict", `nth: there is no command "evict", see "nth help"`},
		{"--verbose", `nth: there is no command "--verbose", see "nth help"`},
		{"help evict", `nth help: there is no command "evict", see "nth help"`},
		{"run --verbose", `nth run: flag provided but not defined: -verbose, see "nth run --help"`},
		{"run now", `nth run: unexpected argument "now", see "nth run --help"`},
		{"run --config", `nth run: flag needs an argument: -config, see "nth run --help"`},
		{"run --config=", `nth run: invalid value "" for flag -config: must name a file, see "nth run --help"`},
		{"run --dry-run=perhaps", `nth run: invalid boolean value "perhaps" for -dry-run: must be true or false, see "nth run --help"`},
		{"rehearse --deadline 1h", `nth rehearse: invalid value "1h" for flag -deadline: must be from 5s to 2m0s, which is all that EC2 gives, see "nth rehearse --help"`},
		{"drain --deadline 0", `nth drain: invalid value "0" for flag -deadline: must be a duration such as 90s or 10m, see "nth drain --help"`},
		{"drain web-1", `nth drain: unexpected argument "web-1", see "nth drain --help"`},
		{"rehearse --kubeconfig=", `nth rehearse: invalid value "" for flag -kubeconfig: must name a file, see "nth rehearse --help"`},
		{"config --chekc", `nth config: flag provided but not defined: -chekc, see "nth config --help"`},
		{"status now", `nth status: unexpected argument "now", see "nth status --help"`},
		{"check --online", `nth check: flag provided but not defined: -online, see "nth check --help"`},
		{"version 1", `nth version: unexpected argument "1", see "nth version --help"`},
	} {
		t.Run(c.args, func(t *testing.T) {
			status, stdout, stderr := call(t, c.args)
			if status != 64 || stdout != "" || stderr != c.stderr+"\n" {
				t.Errorf("status %d, stdout %q, stderr %s", status, stdout, stderr)
			}
		})
	}
}

func TestWithoutACommandTheHelpIsAnError(t *testing.T) {
	status, stdout, stderr := call(t, "")
	if status != 64 || stdout != "" {
		t.Errorf("status %d, stdout %q", status, stdout)
	}
	golden(t, "help", stderr)
}

func TestWrongSettingsAreStatus78AndOneLineEach(t *testing.T) {
	for _, args := range []string{"run", "rehearse", "drain", "config", "config --check"} {
		t.Run(args, func(t *testing.T) {
			status, stdout, stderr := call(t, args+" --config testdata/wrong.toml")
			want := `testdata/wrong.toml: events.spot-interruption.action = "drian": must be one of "ignore", "notify", "cordon", "drain"
testdata/wrong.toml: imds.urgent_intervall: unknown key, did you mean imds.urgent_interval?
`
			if status != 78 || stdout != "" || stderr != want {
				t.Errorf("status %d, stdout %q, stderr\n%s", status, stdout, stderr)
			}
		})
	}
}

func TestASettingsFileThatIsNotThereIsStatus78(t *testing.T) {
	status, _, stderr := call(t, "config --check --config testdata/absent.toml")
	if status != 78 || stderr != "testdata/absent.toml: no such file or directory\n" {
		t.Errorf("status %d, stderr %s", status, stderr)
	}
}

func TestVersionNamesVersionCommitAndToolchain(t *testing.T) {
	form := regexp.MustCompile(`^nth \S+ \(commit \S+, go1\.\S+, [a-z]+/[a-z0-9]+\)\n$`)
	for _, args := range []string{"version", "--version"} {
		status, stdout, stderr := call(t, args)
		if status != 0 || stderr != "" || !form.MatchString(stdout) {
			t.Errorf("%s: status %d, stdout %q, stderr %q", args, status, stdout, stderr)
		}
	}
}
