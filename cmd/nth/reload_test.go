package main_test

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/nth-project/nth/cmd/internal/cli"
	nth "github.com/nth-project/nth/cmd/nth"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/systemd"
)

// manager is a service manager that notes what it is told.
type manager struct{ told []string }

func (m *manager) Reloading() { m.told = append(m.told, "RELOADING=1") }
func (m *manager) Ready()     { m.told = append(m.told, "READY=1") }

// reloads plays one SIGHUP for each reading and returns what was put into effect and what was said.
func reloads(t *testing.T, started config.Config, readings ...func() (config.Config, error)) (applied []config.Config, said []string) {
	t.Helper()
	logger, hook := logtest.NewNullLogger()
	logger.SetOutput(io.Discard)
	m := &manager{}
	nth.Reloads(logrus.NewEntry(logger), m, started, func(cfg config.Config, _ []string) { applied = append(applied, cfg) }, readings...)
	var want []string
	for range readings {
		want = append(want, "RELOADING=1", "READY=1")
	}
	if !slices.Equal(m.told, want) {
		t.Errorf("systemd was told %q, want %q", m.told, want)
	}
	for _, e := range hook.AllEntries() {
		if id := e.Data[systemd.FieldMessageID]; id != systemd.Reloaded && id != systemd.ConfigInvalid {
			t.Errorf("%q has the message ID %v", e.Message, id)
		}
		said = append(said, e.Level.String()+": "+e.Message)
	}
	return applied, said
}

// with returns what reads the default settings with one change.
func with(change func(*config.Config)) func() (config.Config, error) {
	cfg := config.Default()
	change(&cfg)
	return func() (config.Config, error) { return cfg, nil }
}

func TestAReloadSaysWhatTakesEffectAndWhatNeedsAnotherStart(t *testing.T) {
	const nothing = "info: configuration reloaded; no changes"
	ignored := config.Default()
	ignored.Events.SpotInterruption.Action = "ignore"
	for name, test := range map[string]struct {
		change func(*config.Config)
		want   []string
	}{
		"nothing": {func(*config.Config) {}, []string{nothing}},
		"a kind that was ignored at the start": {
			func(*config.Config) {}, []string{nothing, "warning: restart nth to apply: events.spot-interruption.action"},
		},
		"rules, drains and the level": {
			func(c *config.Config) {
				c.Log.Level, c.Drain.Margin, c.Events.SpotInterruption.Action = "debug", time.Second, "cordon"
			},
			[]string{"info: configuration reloaded; changed: log.level, drain.margin, events.spot-interruption.action"},
		},
		"what is wired at the start": {
			func(c *config.Config) {
				c.DryRun, c.Log.Format, c.IMDS.Endpoint, c.Kubernetes.Heartbeat = true, "json", "http://a", time.Hour
			},
			[]string{nothing, "warning: restart nth to apply: dry_run, log.format, imds.endpoint, " +
				"kubernetes.heartbeat"},
		},
		"a kind that is ignored from now on": {
			func(c *config.Config) { c.Events.Shutdown.Action = "ignore" },
			[]string{"info: configuration reloaded; changed: events.shutdown.action"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			started := config.Default()
			if strings.Contains(name, "ignored at the start") {
				started = ignored
			}
			applied, said := reloads(t, started, with(test.change))
			if !slices.Equal(said, test.want) {
				t.Errorf("said\n%s\nwant\n%s", strings.Join(said, "\n"), strings.Join(test.want, "\n"))
			}
			if want, _ := with(test.change)(); len(applied) != 1 || len(config.Diff(applied[0], want)) > 0 {
				t.Errorf("put into effect: %+v", applied)
			}
		})
	}
}

func TestWrongSettingsChangeNothingAndAreToldFaultByFault(t *testing.T) {
	wrong := func() (config.Config, error) { return config.Config{}, errors.New("a: one\nb: two") }
	quick := with(func(c *config.Config) { c.Drain.Margin = time.Second })
	applied, said := reloads(t, config.Default(), wrong, quick, quick)
	if want := []string{
		"error: a: one", "error: b: two", "warning: invalid configuration; keeping the current one",
		"info: configuration reloaded; changed: drain.margin",
		"info: configuration reloaded; no changes",
	}; !slices.Equal(said, want) {
		t.Errorf("said\n%s", strings.Join(said, "\n"))
	}
	if len(applied) != 2 {
		t.Errorf("%d settings were put into effect, want 2", len(applied))
	}
}

// A template that is wrong keeps nobody from other rules for a drain, and the one that was right stays.
func TestWhatIsWrongWithWhatIsOnlyToldHoldsNothingElseUp(t *testing.T) {
	started := config.Default()
	started.Webhook.Template, started.Webhook.TemplateText = "right", "right"
	read := started
	read.Drain.Margin, read.Webhook.Template, read.Webhook.TemplateText, read.Log.Level = time.Second, "wrong", "", "debug"
	wrong := func() (config.Config, error) {
		return read, cli.ConfigError{Fault: config.Degraded{Faults: []error{errors.New("webhook: a"), errors.New("webhook: b")}}}
	}
	right := read
	right.Webhook.Template, right.Webhook.TemplateText = "better", "better"
	applied, said := reloads(t, started, wrong, func() (config.Config, error) { return right, nil })
	if want := []string{
		"error: degraded: webhook: a", "error: degraded: webhook: b", "warning: invalid [log], [webhook] or [metrics]; keeping the current ones",
		"info: configuration reloaded; changed: drain.margin",
		"info: configuration reloaded; changed: log.level, webhook.template",
	}; !slices.Equal(said, want) {
		t.Errorf("said\n%s", strings.Join(said, "\n"))
	}
	if len(applied) != 2 || applied[0].Webhook.Template != "right" || applied[0].Log.Level != "info" || applied[0].Drain.Margin != time.Second {
		t.Errorf("put into effect is %+v", applied)
	}
}
