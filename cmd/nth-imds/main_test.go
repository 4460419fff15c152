package main_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/imds/imdstest"
)

func TestARehearsal(t *testing.T) {
	s := serve(t, "--verbose")
	steps := []struct {
		args   []string
		stdout string // what is printed
		told   string // what the serving nth-imds tells
		where  string // the document that changes
		served string // a part of it, empty if it must be absent
	}{
		{
			[]string{"trigger", "spot", "--in", "5s"}, "spot interruption: terminate 5s after the notice",
			"spot interruption: terminate at 20", "meta-data/spot/instance-action", `"action": "terminate"`,
		},
		{
			[]string{"trigger", "spot", "--action", "hibernate", "--in", "2m"}, "spot interruption: hibernate 2m0s after the notice",
			"spot interruption: hibernate at 20", "meta-data/spot/instance-action", `"action": "hibernate"`,
		},
		{
			[]string{"trigger", "rebalance"}, "rebalance recommendation", "rebalance recommendation, noticed at 20",
			"meta-data/events/recommendations/rebalance", `"noticeTime": "20`,
		},
		{
			[]string{"trigger", "maintenance", "--code", "system-reboot", "--in", "1h", "--for", "30m", "--id", "a"},
			"maintenance a: active system-reboot", "scheduled maintenance: a system-reboot",
			"meta-data/events/maintenance/scheduled", `"EventId": "a"`,
		},
		{
			[]string{"trigger", "maintenance", "--id", "a", "--state", "completed"},
			"maintenance a: completed", "maintenance history: a system-reboot",
			"meta-data/events/maintenance/history", `"State": "completed"`,
		},
		{
			[]string{"trigger", "lifecycle", "Terminated"}, "target lifecycle state: Terminated", "target lifecycle state: Terminated",
			"meta-data/autoscaling/target-lifecycle-state", "Terminated",
		},
		{
			[]string{"withdraw", "rebalance"}, "rebalance recommendation withdrawn", "rebalance recommendation withdrawn",
			"meta-data/events/recommendations/rebalance", "",
		},
		{
			[]string{"withdraw", "maintenance", "--id", "a", "--no-history"}, "maintenance a withdrawn", "scheduled maintenance: none",
			"meta-data/events/maintenance/scheduled", "",
		},
		{
			[]string{"withdraw", "all"}, "everything withdrawn", "spot interruption withdrawn",
			"meta-data/spot/instance-action", "",
		},
	}
	for _, step := range steps {
		if out := s.tell(t, step.args...); out != step.stdout+"\n" {
			t.Errorf("%q printed %q, want %q", step.args, out, step.stdout)
		}
		s.line(t, step.told)
		body, announced := s.state(t).Announced[step.where]
		if announced != (step.served != "") || !strings.Contains(body, step.served) {
			t.Errorf("after %q: %s is %q, want %q", step.args, step.where, body, step.served)
		}
	}
	if status := s.stop(t, syscall.SIGTERM); status != 0 {
		t.Errorf("SIGTERM: exit status %d, want 0", status)
	}
}

func TestFaultsFromTheCommandLine(t *testing.T) {
	s := serve(t, "--verbose")
	for _, test := range []struct{ args, want string }{
		{"reset", "reset"},
		{"hang --path /latest/api/token", "hang on /latest/api/token"},
		{"slow --over 3s", "slow over 3s"},
		{"500", "status 500"},
		{"503 --times 2", "status 503, 2 times"},
		{"401", "401"},
		{"garbage --for 1h", "garbage for 1h0m0s"},
		{"oversized --path meta-data/spot", "oversized on meta-data/spot"},
		{"token-down", "token-down 500"},
		{"--status 503 token-down", "token-down 503"},
	} {
		if out := s.tell(t, append([]string{"fault"}, strings.Fields(test.args)...)...); out != "fault: "+test.want+"\n" {
			t.Errorf("fault %s printed %q, want %q", test.args, out, test.want)
		}
		if got := s.state(t).Faults; len(got) != 1 || got[0] != test.want {
			t.Errorf("fault %s: in force is %q, want %q", test.args, got, test.want)
		}
		s.tell(t, "lift")
	}

	s.tell(t, "fault", "503")
	response, err := http.Get(s.url + "/latest/meta-data/instance-id")
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != 503 {
		t.Errorf("status %d, want 503", response.StatusCode)
	}
	s.line(t, "GET /latest/meta-data/instance-id: 503, fault: status 503")
	if status := s.stop(t, syscall.SIGINT); status != 0 {
		t.Errorf("SIGINT: exit status %d, want 0", status)
	}
}

func TestRefusedConnectionsComeBack(t *testing.T) {
	s := serve(t)
	s.tell(t, "fault", "refuse", "--for", "300ms")
	s.line(t, "fault lifted: refuse")
	if got := s.state(t).Faults; len(got) != 0 {
		t.Errorf("faults left: %q", got)
	}
}

func TestShowTellsWhatIsGoingOn(t *testing.T) {
	s := serve(t, "--life-cycle", "on-demand")
	if quiet := s.tell(t, "show"); !strings.HasPrefix(quiet, "announced: nothing\nwaiting: none\nfaults: none\ntokens: 0 valid, 0 asked for\n") {
		t.Errorf("nothing going on: %q", quiet)
	}
	s.tell(t, "trigger", "rebalance")
	s.tell(t, "trigger", "spot", "--after", "1h")
	s.tell(t, "fault", "token-down")
	s.tell(t, "expire-tokens")
	request, _ := http.NewRequest(http.MethodPut, s.url+"/latest/api/token", nil)
	if response, err := http.DefaultClient.Do(request); err == nil {
		response.Body.Close()
	}
	want := regexp.MustCompile(`^announced:
  meta-data/events/recommendations/rebalance
    \{"noticeTime": "[-0-9T:]+Z"\}
waiting:
  spot interruption: terminate 2m0s after the notice, at [-0-9T:]+Z
faults:
  token-down 500
tokens: 0 valid, 1 asked for
requests: 1, at most 1 at once
       1 answered 500
       1 /latest/api/token
$`)
	if busy := s.tell(t, "show"); !want.MatchString(busy) {
		t.Errorf("shown:\n%s\nwant:\n%s", busy, want)
	}
}

func TestUsage_errors_are_one_line(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"explode", `nth-imds: unknown command "explode" for "nth-imds"; see "nth-imds --help"`},
		{"--port 1", `nth-imds: unknown flag: --port; see "nth-imds --help"`},
		{"--life-cycle leased", `nth-imds: invalid argument "leased" for "--life-cycle" flag: want spot or on-demand; see "nth-imds --help"`},
		{"trigger", `nth-imds trigger: name one of spot, rebalance, maintenance, lifecycle; see "nth-imds trigger --help"`},
		{"trigger flood", `nth-imds trigger: name one of spot, rebalance, maintenance, lifecycle; see "nth-imds trigger --help"`},
		{"trigger spot --in 5", `nth-imds trigger spot: invalid argument "5" for "--in" flag: want a duration such as 90s or 2m; see "nth-imds trigger spot --help"`},
		{"trigger spot --in -5s", `nth-imds trigger spot: invalid argument "-5s" for "--in" flag: want a duration such as 90s or 2m; see "nth-imds trigger spot --help"`},
		{"trigger lifecycle", `nth-imds trigger lifecycle: accepts 1 arg(s), received 0; see "nth-imds trigger lifecycle --help"`},
		{"withdraw flood", `nth-imds withdraw: invalid argument "flood" for "nth-imds withdraw"; see "nth-imds withdraw --help"`},
		{"fault 200", `nth-imds fault: "200" is no fault: want reset, hang, slow, garbage, oversized, token-down, refuse, or a status from 400 to 599; see "nth-imds fault --help"`},
	} {
		if status, stdout, stderr := call(t, nil, strings.Fields(test.args)...); status != 64 || stdout != "" || stderr != test.want+"\n" {
			t.Errorf("%q: status %d, stdout %q, stderr %q; want 64 and %q", test.args, status, stdout, stderr, test.want)
		}
	}
}

func TestSimulator_refuses_what_EC2_does_not_announce(t *testing.T) {
	s := serve(t)
	for _, test := range []struct{ args, want string }{
		{"trigger spot --action pause", `action is "pause": want one of terminate, stop, hibernate`},
		{"trigger maintenance --code reboot", `code is "reboot": want one of instance-reboot, system-reboot, ` +
			`system-maintenance, instance-retirement, instance-stop`},
		{"withdraw maintenance --id x", `no maintenance event "x" is scheduled`},
		{"fault refuse", `refuse also closes the port to whoever would lift it: say for how long, such as for 12s`},
	} {
		status, stdout, stderr := call(t, []string{"NTH_IMDS=" + s.url}, strings.Fields(test.args)...)
		if status != 1 || stdout != "" || stderr != "nth-imds: "+test.want+"\n" {
			t.Errorf("%q: status %d, stdout %q, stderr %q; want 1 and %q", test.args, status, stdout, stderr, test.want)
		}
	}
}

func TestWithoutASimulatorTheErrorSaysHowToGetOne(t *testing.T) {
	gone := serve(t)
	gone.stop(t, syscall.SIGTERM)
	status, _, stderr := call(t, nil, "trigger", "spot", "--server", gone.url)
	if status != 1 || !strings.Contains(stderr, "no simulator answers at "+gone.url) || strings.Count(stderr, "\n") != 1 {
		t.Errorf("status %d, %q", status, stderr)
	}
}

func TestAPortInUseIsAnError(t *testing.T) {
	s := serve(t)
	status, _, stderr := call(t, nil, "--listen", strings.TrimPrefix(s.url, "http://"))
	if status != 1 || !strings.Contains(stderr, "address already in use") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("status %d, %q", status, stderr)
	}
}

// patience bounds every wait for something that must happen.
const patience = 30 * time.Second

// program is the command, built once for all tests.
var program string

func TestMain(m *testing.M) {
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	folder, err := os.MkdirTemp("", "nth-imds")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(folder)
	program = filepath.Join(folder, "nth-imds")
	build := exec.Command("go", "build", "-o", program, ".")
	if output, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building nth-imds: %v\n%s", err, output)
		return 1
	}
	return m.Run()
}

// call runs the program to its end.
func call(t *testing.T, env []string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	command := exec.CommandContext(ctx, program, args...)
	command.Env = append(os.Environ(), env...)
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

func serve(t *testing.T, args ...string) *serving {
	t.Helper()
	command := exec.Command(program, append([]string{"--listen", "127.0.0.1:0"}, args...)...)
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

func (s *serving) state(t *testing.T) imdstest.State {
	t.Helper()
	state, err := imdstest.Client{URL: s.url}.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return state
}
