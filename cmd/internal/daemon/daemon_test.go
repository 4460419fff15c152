package daemon_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/cmd/internal/settings"
	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/state"
)

// lines keeps what is logged.
type lines struct {
	mu  sync.Mutex
	all strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

func hangUp(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Error(err)
	}
}

// The daemon begins again with settings that are valid, and keeps those that it has if the new ones are not. That may be found only when they are
// used: the file of a kubeconfig is missing.
func TestRun_BeginsAgainAtSIGHUP(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "/nowhere") // That matters only when the daemon ends.
	const kept = "invalid configuration; keeping the previous configuration"
	for name, row := range map[string]struct{ margins, runs, begun, logged []string }{ // "" cannot be read
		"unreadable, then valid":       {[]string{"1s", "", "2s"}, []string{"reload", "end"}, []string{"1s", "2s"}, []string{"a: one", "b: two", kept, "configuration reloaded"}},
		"unusable":                     {[]string{"1s", "2s"}, []string{"reload", "refuse", "end"}, []string{"1s", "2s", "1s"}, []string{kept}},
		"unusable, and another reload": {[]string{"1s", "2s", "3s"}, []string{"reload", "reload and refuse", "end"}, []string{"1s", "2s", "3s"}, nil},
	} {
		var log lines
		var begun []string
		err := daemon.Run(t.Context(), "nth", func() (config.Loaded[config.Config], error) {
			l := config.Loaded[config.Config]{Config: config.Default()}
			l.Config.Log.Format = "text"
			margin := row.margins[0]
			if row.margins = row.margins[1:]; margin == "" {
				defer hangUp(t) // The next ones are right.
				return l, errors.New("a: one\nb: two")
			}
			return l, config.Decode("x", []byte("drain.margin = '"+margin+"'"), &l.Config)
		}, &log, func(ctx context.Context, d *daemon.Daemon[config.Config]) error {
			run := row.runs[len(begun)]
			begun = append(begun, d.Config.Drain.Margin.String())
			if strings.Contains(run, "reload") {
				hangUp(t)
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), daemon.ErrReload) {
					t.Errorf("it ends because of %v", context.Cause(ctx))
				}
			}
			if strings.Contains(run, "refuse") {
				return cli.ConfigError{Fault: errors.New("there is no kubeconfig")}
			}
			return nil
		})
		if err == nil || !strings.Contains(err.Error(), "cannot notify systemd") || !slices.Equal(begun, row.begun) {
			t.Errorf("%s: it has begun with the margins %q, and ended with %v", name, begun, err)
		}
		for _, line := range row.logged {
			if !strings.Contains(log.String(), line+"\n") {
				t.Errorf("%s: %q is not logged:\n%s", name, line, &log)
			}
		}
	}
}

func TestRunWith_LeavesBehindOnlyWorkThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs, run := make(chan struct{}), func(context.Context) {}
		for limit, work := range map[time.Duration]func(context.Context){
			time.Second:     func(ctx context.Context) { <-ctx.Done(); time.Sleep(time.Second) },
			5 * time.Second: func(context.Context) { <-hangs },
		} {
			began := time.Now()
			if daemon.RunWith(t.Context(), run, work); time.Since(began) != limit {
				t.Errorf("it ended after %s, want %s", time.Since(began), limit)
			}
		}
		close(hangs)
	})
}

func TestRules_HooksAreCompletedOnlyWhereTerminationsDrain(t *testing.T) {
	for _, row := range []struct {
		action, incomplete string
		complete           bool
		want, soft         bool // nth completes hooks; the budget is soft, as machines may be kept
	}{
		{"drain", "continue", true, true, false}, {"drain", "abandon", true, true, true}, {"drain", "abandon", false, false, false},
		{"cordon", "continue", true, false, false}, {"notify", "continue", true, false, false}, {"ignore", "continue", true, false, false},
	} {
		c := config.Default().Events.Announced
		c.ASGTermination.Action, c.ASGTermination.CompleteHook, c.ASGTermination.OnIncomplete = row.action, row.complete, row.incomplete
		got, rule := daemon.Hooks(c.ASGTermination), daemon.Rules(c)[event.ASGTermination]
		if got.Complete != row.want || rule.SoftBudget != row.soft || !rule.Hard {
			t.Errorf("%+v: %+v and %+v", row, got, rule)
		}
	}
}

func TestMetrics_CountWhatBothProgramsDo(t *testing.T) {
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	log, cfg := logrus.NewEntry(logger), &config.Common{}
	m := daemon.NewMetrics(cfg, log, metrics.Options{})
	m.Requested(http.MethodGet, http.StatusOK)
	daemon.CountHooks(m)(asg.Heartbeat, asg.NotAllowed)
	for _, status := range []int{http.StatusOK, http.StatusBadRequest} {
		endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		t.Cleanup(endpoint.Close)
		address := filepath.Join(t.TempDir(), "url")
		if err := os.WriteFile(address, []byte(endpoint.URL), 0o600); err != nil {
			t.Fatal(err)
		}
		to, _ := settings.Webhook(config.Webhook{URLFile: address, At: []string{"announced"}}, "nth")
		w := daemon.NewWebhook(to, false, log, m)
		w.Node(notify.Subject{
			Machine: func(context.Context) notify.Machine { return notify.Machine{} },
			Node:    func(context.Context) (string, map[string]string) { return "", nil },
		}).OnTransition(state.Transition{Kind: state.Announced, At: time.Now()})
		ended, end := context.WithCancel(t.Context())
		end()
		w.Run(ended) // A notice that is left is tried once more.
	}
	answer := httptest.NewRecorder()
	m.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, want := range []string{
		`nth_notices_total{outcome="delivered"} 1`, `nth_notices_total{outcome="lost"} 1`,
		`nth_api_requests_total{code="200",method="GET"} 1`, `nth_hook_requests_total{action="heartbeat",result="refused"} 1`,
		`nth_hook_requests_total{action="abandon",result="ok"} 0`, // An increase is seen from there.
	} {
		if !strings.Contains(answer.Body.String(), want+"\n") {
			t.Errorf("%s is missing", want)
		}
	}
}
