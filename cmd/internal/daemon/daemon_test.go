package daemon_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/pkg/config"
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

// The daemon begins again with settings that are valid, and keeps those that it has if the new ones are not.
func TestRun_BeginsAgainAtSIGHUP(t *testing.T) {
	var log lines
	margins, read := []string{"1s", "wrong", "2s"}, 0
	begun := []string{}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	hangUp := func() {
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Error(err)
		}
	}
	err := daemon.Run(ctx, "nth", func() (config.Loaded[config.Config], error) {
		margin := margins[read]
		read++
		if margin == "wrong" {
			defer hangUp() // The next ones are right.
			return config.Loaded[config.Config]{}, errors.New("a: one\nb: two")
		}
		l := config.Loaded[config.Config]{Config: config.Default()}
		l.Config.Log.Format = "text"
		return l, config.Decode("x", []byte("drain.margin = '"+margin+"'"), &l.Config)
	}, &log, func(ctx context.Context, d *daemon.Daemon[config.Config]) error {
		begun = append(begun, d.Config.Drain.Margin.String())
		if len(begun) == 2 {
			end()
		} else {
			hangUp()
		}
		<-ctx.Done()
		if reload := errors.Is(context.Cause(ctx), daemon.ErrReload); reload != (len(begun) == 1) {
			t.Errorf("run %d ends because of %v", len(begun), context.Cause(ctx))
		}
		return nil
	})
	if err != nil || !slices.Equal(begun, []string{"1s", "2s"}) {
		t.Errorf("it has begun with the margins %q, and ended with %v", begun, err)
	}
	for _, line := range []string{"a: one", "b: two", "invalid configuration; keeping the current one", "configuration reloaded"} {
		if !strings.Contains(log.String(), line+"\n") {
			t.Errorf("%q is not logged:\n%s", line, &log)
		}
	}
}

// What is wrong with settings may be found only when they are used: the file of a kubeconfig is missing.
func TestRun_KeepsTheSettingsIfNewOnesCannotBeUsed(t *testing.T) {
	var log lines
	margins, begun := []string{"1s", "2s"}, []string{}
	err := daemon.Run(t.Context(), "nth", func() (config.Loaded[config.Config], error) {
		l := config.Loaded[config.Config]{Config: config.Default()}
		l.Config.Log.Format = "text"
		margin := margins[0]
		margins = margins[1:]
		return l, config.Decode("x", []byte("drain.margin = '"+margin+"'"), &l.Config)
	}, &log, func(ctx context.Context, d *daemon.Daemon[config.Config]) error {
		begun = append(begun, d.Config.Drain.Margin.String())
		switch len(begun) {
		case 1:
			if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
		case 2:
			return cli.ConfigError{Fault: errors.New("there is no kubeconfig")}
		}
		return nil
	})
	if err != nil || !slices.Equal(begun, []string{"1s", "2s", "1s"}) {
		t.Errorf("it has begun with the margins %q, and ended with %v", begun, err)
	}
	if !strings.Contains(log.String(), "invalid configuration; keeping the current one") {
		t.Errorf("what is wrong is not logged:\n%s", &log)
	}
}
