package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestNthIMDS_AnnouncesAndWithdraws(t *testing.T) {
	s := start(t)
	const spot, rebalance, lifecycle = "meta-data/spot/instance-action", "meta-data/events/recommendations/rebalance", "meta-data/autoscaling/target-lifecycle-state"
	const scheduled, history = "meta-data/events/maintenance/scheduled", "meta-data/events/maintenance/history"
	for _, step := range []struct {
		line   string
		prints string // the command, and the nth-imds that serves
		path   string // of a document
		serves string // what is in it then; "" is no document
	}{
		{"trigger spot --in 5s", "spot interruption: terminate", spot, `"action": "terminate"`},
		{"trigger spot hibernate", "spot interruption: hibernate", spot, `"action": "hibernate"`},
		{"withdraw spot", "spot interruption withdrawn", spot, ""},
		{"trigger rebalance", "rebalance recommendation: noticed", rebalance, `"noticeTime": "20`},
		{"withdraw rebalance", "rebalance recommendation withdrawn", rebalance, ""},
		{"trigger maintenance --in 1h", "maintenance: system-reboot", scheduled, `"Code": "system-reboot"`},
		{"trigger maintenance instance-stop", "maintenance: instance-stop", scheduled, `"Code": "instance-stop"`},
		{"withdraw maintenance", "maintenance withdrawn", history, `"State": "canceled"`},
		{"trigger lifecycle", "target lifecycle state: Terminated", lifecycle, "Terminated"},
		{"withdraw lifecycle", "target lifecycle state withdrawn", lifecycle, ""},
	} {
		status, out, stderr := call(t, []string{"NTH_IMDS=" + s.url}, strings.Fields(step.line)...)
		if status != 0 || out != step.prints+"\n" || stderr != "" {
			t.Errorf("%s: status %d, printed %q and %q, want %q", step.line, status, out, stderr, step.prints)
		}
		s.line(t, step.prints)
		if served := s.document(t, step.path); !strings.Contains(served, step.serves) || step.serves == "" && served != "" {
			t.Errorf("%s: %s is\n%s\nwant %q", step.line, step.path, served, step.serves)
		}
	}
	if status := s.stop(t, syscall.SIGTERM); status != 0 {
		t.Errorf("SIGTERM: exit status %d, want 0", status)
	}
}

func TestNthIMDS_ErrorsAreOneLine(t *testing.T) {
	s, gone := start(t), start(t)
	gone.stop(t, syscall.SIGINT)
	for _, test := range []struct {
		args, server string
		status       int
		want         string
	}{
		{"trigger", s.url, 64, `accepts between 1 and 2 arg(s), received 0; see "nth-imds trigger --help"`},
		{"trigger spot --in 5", s.url, 64, `invalid argument "5" for "--in" flag`},
		{"trigger spot pause", s.url, 1, `unknown WHAT "pause" for spot: must be one of terminate, stop, hibernate`},
		{"withdraw flood", s.url, 1, `unknown KIND "flood": must be one of lifecycle, maintenance, rebalance, spot`},
		{"withdraw spot", gone.url, 1, "no nth-imds answers"},
		{"--listen " + strings.TrimPrefix(s.url, "http://"), s.url, 1, "address already in use"},
	} {
		status, stdout, stderr := call(t, []string{"NTH_IMDS=" + test.server}, strings.Fields(test.args)...)
		if status != test.status || stdout != "" || !strings.HasPrefix(stderr, "nth-imds") || !strings.Contains(stderr, test.want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: status %d, stdout %q, stderr %q; want %d and %q", test.args, status, stdout, stderr, test.status, test.want)
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
	_ = s.command.Wait()
	return s.command.ProcessState.ExitCode()
}

// document returns the document that s serves at a path; "" if there is none.
func (s *serving) document(t *testing.T, path string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, s.url+"/latest/api/token", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("X-aws-ec2-metadata-token-ttl-seconds", "60")
	_, token := send(t, request)
	if request, err = http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/latest/"+path, http.NoBody); err != nil {
		t.Fatal(err)
	}
	request.Header.Set("X-aws-ec2-metadata-token", token)
	status, body := send(t, request)
	if status != http.StatusOK {
		return ""
	}
	return body
}

// send sends a request and returns the answer.
func send(t *testing.T, request *http.Request) (status int, body string) {
	t.Helper()
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}
