// Package checks has what the commands "status" and "check" of both programs share. "status" shows the status that the daemon keeps in
// its runtime directory, as lines for operators or as JSON. "check" prints one line for each finding: a verdict, a subject and a text.
package checks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/cmd/internal/settings"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/role"
	"github.com/nth-project/nth/pkg/text"
)

// limit is how long a check may take as a whole: an image build must not hang.
const limit = time.Minute

// List prints findings as they come, or as JSON at the end, and counts them.
type List struct {
	program  string
	out      io.Writer
	asJSON   bool
	post     bool // Webhook posts a test message.
	findings []finding
}

// Command returns the command "check" of a program. examine adds its findings to the list, after those about the settings.
func Command[C any, P config.Pointer[C]](
	p settings.Program[C, P], short, long string, examine func(ctx context.Context, list *List, cfg C),
) *cobra.Command {
	cmd := &cobra.Command{Use: "check", Short: short, Long: long, Args: cobra.NoArgs}
	path := p.ConfigFlag(cmd)
	l := &List{program: p.Name, findings: []finding{}}
	cmd.Flags().BoolVar(&l.post, "webhook", false, "post a message to the webhook, marked as a test")
	cmd.Flags().BoolVar(&l.asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		Hush()
		l.out = cmd.OutOrStdout()
		ctx, cancel := context.WithTimeout(cmd.Context(), limit)
		defer cancel()
		loaded, err := p.Load(*path)
		if err == nil {
			err = p.Lack(&loaded.Config)
		}
		if err != nil {
			for line := range strings.SplitSeq(err.Error(), "\n") {
				l.Fail("settings", "%s", line)
			}
			return cli.ConfigError{Fault: l.end()}
		}
		if len(loaded.Files) == 0 {
			l.OK("settings", "the defaults; there is no %s", p.File)
		}
		for _, read := range loaded.Files {
			l.OK("settings", "read %s", read)
		}
		for _, ignored := range loaded.Ignored {
			l.Warn("settings", "ignored %s", ignored)
		}
		for _, warning := range loaded.Warnings {
			l.Fail("degraded", "%s", warning)
		}
		if P(&loaded.Config).Base().DryRun {
			l.Warn("settings", "dry_run = true: %s logs what it would do and changes nothing", p.Name)
		}
		examine(ctx, l, loaded.Config)
		return l.end()
	}
	return cmd
}

type finding struct {
	Verdict string `json:"verdict"`
	Subject string `json:"subject"`
	Text    string `json:"text"`
}

// The verdicts of findings.
const (
	okay    = "ok"
	warning = "warn"
	failure = "fail"
)

// OK reports that something is as it should be.
func (l *List) OK(subject, format string, args ...any) { l.add(okay, subject, format, args) }

// Warn reports something that deserves a look.
func (l *List) Warn(subject, format string, args ...any) { l.add(warning, subject, format, args) }

// Fail reports something that keeps the program from working.
func (l *List) Fail(subject, format string, args ...any) { l.add(failure, subject, format, args) }

// add keeps a finding. It prints the finding as one line, unless the output is JSON.
func (l *List) add(verdict, subject, format string, args []any) {
	found := strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " ") // Errors of a YAML parser have several lines.
	f := finding{verdict, subject, text.Visible(found, text.Page)}
	l.findings = append(l.findings, f)
	if !l.asJSON {
		fmt.Fprintf(l.out, "%-4s  %-10s  %s\n", f.Verdict, f.Subject, f.Text)
	}
}

// end prints the summary, and returns an error for exit status 1 if anything has failed.
func (l *List) end() error {
	count := map[string]int{}
	for _, f := range l.findings {
		count[f.Verdict]++
	}
	verdict := okay
	switch {
	case count[failure] > 0:
		verdict = failure
	case count[warning] > 0:
		verdict = warning
	}
	l.add(verdict, "summary", "%d failed, %d deserve a look, %d ok", []any{count[failure], count[warning], count[okay]})
	if l.asJSON {
		if err := writeJSON(l.out, map[string]any{"verdict": verdict, "findings": l.findings}); err != nil {
			return err
		}
	}
	if verdict == failure {
		return cli.ErrReported
	}
	return nil
}

// Right reports whether the program has a right, which it needs, or can do without if it is optional. why completes "it is needed".
func (l *List) Right(name, why string, optional, allowed bool) {
	switch {
	case allowed:
		l.OK("right", "%s", name)
	case optional:
		l.Warn("right", "%s: refused; %s would use it %s, and works without", name, l.program, why)
	default:
		l.Fail("right", "%s: refused; it is needed %s", name, why)
	}
}

// Rights tries rights at AWS, and reports under a subject which of them are missing: as failures if the program needs them, and otherwise as
// warnings.
func (l *List) Rights(ctx context.Context, subject string, needed bool, rights []role.Right) {
	report := l.Warn
	if needed {
		report = l.Fail
	}
	for _, r := range rights {
		switch allowed, err := r.Allowed(ctx); {
		case err != nil:
			report(subject, "%s", err)
			return // The others would take as long to say the same.
		case allowed:
			l.OK(subject, "%s", r.Name)
		default:
			report(subject, "%s: refused; %s", r.Name, r.Without)
		}
	}
}

// Hush silences client-go: a command reports the errors that client-go returns.
func Hush() {
	silent := logrus.New()
	silent.SetOutput(io.Discard)
	daemon.RouteKlog(logrus.NewEntry(silent))
}

// Webhook reports what is wrong with the webhook. If the command has the flag --webhook, it posts a test message with the name of the node.
func (l *List) Webhook(ctx context.Context, cfg config.Webhook, node string) {
	to, faults := settings.Webhook(cfg, l.program)
	for _, fault := range faults {
		l.Fail("degraded", "%s", fault)
	}
	switch {
	case l.post && to == nil:
		l.Fail("webhook", "no webhook URL can be read from here, so no test was sent")
	case l.post:
		if err := postTest(ctx, to, l.program, node); err != nil {
			l.Fail("webhook", "test message rejected: %s", err)
			return
		}
		l.OK("webhook", "test message delivered")
	case len(faults) > 0: // They have been reported.
	case to == nil:
		l.OK("webhook", "no webhook configured")
	default:
		l.OK("webhook", "the template renders every kind of notice; \"%s check --webhook\" posts a test", l.program)
	}
}

// postTest posts the template's rendering of a test notice. program and node say in it who sends it.
func postTest(ctx context.Context, to *notify.WebhookOptions, program, node string) error {
	sender := program + " check --webhook"
	if host, err := os.Hostname(); err == nil {
		sender += " on the machine " + host
	}
	f := notify.TestFields(sender, node, time.Now())
	body, err := to.Template.Render(f)
	if err != nil {
		return err
	}
	if body == "" {
		return errors.New("the template renders nothing for it")
	}
	return to.Post(ctx, f.NoticeID, body)
}
