package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestNthIMDS_PerformsWhatIsPosted(t *testing.T) {
	s := start(t, "--life-cycle", "on-demand")
	const spot, rebalance, lifecycle = "meta-data/spot/instance-action", "meta-data/events/recommendations/rebalance", "meta-data/autoscaling/target-lifecycle-state"
	const scheduled, history = "meta-data/events/maintenance/scheduled", "meta-data/events/maintenance/history"
	if quiet := s.tell(t, "show"); quiet != "announced: nothing\nrequests: 0, 0 of them for tokens\n" {
		t.Errorf("nothing happens: %q", quiet)
	}
	for _, step := range []struct {
		line   string
		prints string // the command, and the nth-imds that serves
		shows  string // "show" afterwards
		not    string // what it does not show
	}{
		{"trigger spot --in 5s", "spot interruption: terminate 5s after the notice", `"action": "terminate"`, ""},
		{"trigger spot --action hibernate", "spot interruption: hibernate 2m0s after the notice", `"action": "hibernate"`, ""},
		{"trigger rebalance", "rebalance recommendation", `"noticeTime": "20`, ""},
		{"trigger maintenance --code system-reboot --in 1h --for 30m --id a", "maintenance a: active system-reboot", scheduled, history},
		{"trigger maintenance --id a --state completed", "maintenance a: completed system-reboot", `"State": "completed"`, ""},
		{"trigger lifecycle Terminated", "target lifecycle state: Terminated", lifecycle, ""},
		{"withdraw rebalance", "rebalance recommendation withdrawn", spot, rebalance},
		{"withdraw maintenance --id a", "maintenance a withdrawn", history, scheduled},
		{"withdraw all", "everything withdrawn", "announced:", spot},
	} {
		if out := s.tell(t, strings.Fields(step.line)...); out != step.prints+"\n" {
			t.Errorf("%s: printed %q, want %q", step.line, out, step.prints)
		}
		s.line(t, step.prints)
		if shown := s.tell(t, "show"); !strings.Contains(shown, step.shows) || step.not != "" && strings.Contains(shown, step.not) {
			t.Errorf("%s: shown is\n%swant %q, and not %q", step.line, shown, step.shows, step.not)
		}
	}
	response, err := http.Get(s.url + "/latest/meta-data/instance-id")
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if shown := s.tell(t, "show"); !strings.HasSuffix(shown, "requests: 1, 0 of them for tokens\n       1 answered 401\n       1 /latest/meta-data/instance-id\n") {
		t.Errorf("shown:\n%s", shown)
	}
	if status := s.stop(t, syscall.SIGTERM); status != 0 {
		t.Errorf("SIGTERM: exit status %d, want 0", status)
	}
}

func TestNthIMDS_UsageErrorsAreOneLine(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"--life-cycle leased", `nth-imds: invalid argument "leased" for "--life-cycle" flag: want spot or on-demand; see "nth-imds --help"`},
		{"trigger", `nth-imds trigger: name one of spot, rebalance, maintenance, lifecycle; see "nth-imds trigger --help"`},
		{"trigger spot --in 5", `nth-imds trigger spot: invalid argument "5" for "--in" flag: want a duration such as 90s or 2m; see "nth-imds trigger spot --help"`},
		{"trigger spot --action pause", `nth-imds trigger spot: invalid argument "pause" for "--action" flag: want one of terminate, stop, hibernate; see "nth-imds trigger spot --help"`},
		{"trigger lifecycle", `nth-imds trigger lifecycle: accepts 1 arg(s), received 0; see "nth-imds trigger lifecycle --help"`},
		{"withdraw flood", `nth-imds withdraw: invalid argument "flood" for "nth-imds withdraw"; see "nth-imds withdraw --help"`},
	} {
		if status, stdout, stderr := call(t, nil, strings.Fields(test.args)...); status != 64 || stdout != "" || stderr != test.want+"\n" {
			t.Errorf("%q: status %d, stdout %q, stderr %q; want 64 and %q", test.args, status, stdout, stderr, test.want)
		}
	}
}

func TestNthIMDS_ErrorsAreOneLine(t *testing.T) {
	s, gone := start(t), start(t)
	gone.stop(t, syscall.SIGINT)
	for _, test := range []struct{ args, want string }{
		{"trigger maintenance --id x", "name what is scheduled, such as --code system-reboot"},
		{"withdraw maintenance --id x", `no maintenance event "x" is scheduled`},
		{"show --server " + gone.url, "no simulator answers at " + gone.url},
		{"--listen " + strings.TrimPrefix(s.url, "http://"), "address already in use"},
	} {
		status, stdout, stderr := call(t, []string{"NTH_IMDS=" + s.url}, strings.Fields(test.args)...)
		if status != 1 || stdout != "" || !strings.HasPrefix(stderr, "nth-imds: ") || !strings.Contains(stderr, test.want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: status %d, stdout %q, stderr %q; want 1 and %q", test.args, status, stdout, stderr, test.want)
		}
	}
}

// patience bounds every wait for something that must happen.
const patience = 30 * time.Second

// asProgram makes this test's binary nth-imds.
const asProgram = "NTH_IMDS_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// program prepares a process of nth-imds.
func program(ctx context.Context, args ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, "/proc/self/exe", args...)
	command.Env = append(os.Environ(), asProgram+"=yes")
	return command
}

// call runs the program to its end.
func call(t *testing.T, env []string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	command := program(ctx, args...)
	command.Env = append(command.Env, env...)
	var out, err bytes.Buffer
	command.Stdout, command.Stderr = &out, &err
	failure := command.Run()
	var exit *exec.ExitError
	if failure != nil && !errors.As(failure, &exit) {
		t.Fatalf("running %q: %v", args, failure)
	}
	return command.ProcessState.ExitCode(), out.String(), err.String()
}

// serving is a nth-imds that serves.
type serving struct {
	command *exec.Cmd
	url     string
	lines   chan string
}

func start(t *testing.T, args ...string) *serving {
	t.Helper()
	command := program(context.WithoutCancel(t.Context()), append([]string{"--listen", "127.0.0.1:0"}, args...)...)
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill() // in vain if it has been stopped
		_ = command.Wait()
	})
	s := &serving{command: command, lines: make(chan string, 1000)}
	go func() {
		defer close(s.lines)
		for scanner := bufio.NewScanner(stdout); scanner.Scan(); {
			s.lines <- scanner.Text()
		}
	}()
	words := strings.Fields(s.line(t, "nth-imds serves"))
	s.url = words[len(words)-1]
	return s
}

// line returns the next line that contains text.
func (s *serving) line(t *testing.T, text string) string {
	t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case line, more := <-s.lines:
			if !more {
				t.Fatalf("the output ended without %q", text)
			}
			if strings.Contains(line, text) {
				return line
			}
		case <-timeout:
			t.Fatalf("no line with %q", text)
		}
	}
}

// stop ends the program with a signal and returns its exit status.
func (s *serving) stop(t *testing.T, signal os.Signal) int {
	t.Helper()
	if err := s.command.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	s.line(t, "stopped, after")
	_ = s.command.Wait()
	return s.command.ProcessState.ExitCode()
}

// tell calls the program against s, by the environment, and expects success.
func (s *serving) tell(t *testing.T, args ...string) string {
	t.Helper()
	status, stdout, stderr := call(t, []string{"NTH_IMDS=" + s.url}, args...)
	if status != 0 || stderr != "" {
		t.Fatalf("%q: status %d, %s", args, status, stderr)
	}
	return stdout
}
