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

// limit is how long all checks may take together: an image build must not hang.
const limit = time.Minute

// List prints findings as they come, or as JSON at the end, and counts them.
type List struct {
	program  string
	out      io.Writer
	asJSON   bool
	post     bool // Webhook posts a test message.
	findings []finding
}

// Command returns the command "check" of a program. The command adds findings about the settings to the list, and then calls examine for the others.
// With invalid settings it does not call examine.
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
		loaded, err := p.LoadToRun(*path)
		if err != nil {
			for line := range strings.SplitSeq(err.Error(), "\n") {
				l.Fail("settings", "%s", line)
			}
			return cli.ConfigError{Fault: l.end()}
		}
		if len(loaded.Files) == 0 {
			l.OK("settings", "the defaults; there is no %s", p.File)
		}
		for _, file := range loaded.Files {
			l.OK("settings", "read %s", file)
		}
		for _, ignored := range loaded.Ignored {
			l.Warn("settings", "ignored %s", ignored)
		}
		for _, warning := range loaded.Warnings { // The program starts, but reports less than it was asked to.
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

// finding is one line of the output.
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
	oneLine := strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " ") // Errors of a YAML parser have several lines.
	f := finding{verdict, subject, text.Visible(oneLine, text.Page)}
	l.findings = append(l.findings, f)
	if !l.asJSON {
		fmt.Fprintf(l.out, "%-4s  %-10s  %s\n", f.Verdict, f.Subject, f.Text)
	}
}

// end prints the summary, and with --json all findings. It returns cli.ErrReported if anything has failed.
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

// Right reports whether the program has a right in the cluster, by allowed. A missing right is a failure, or a warning if it is optional. why completes
// "it is needed".
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

// Rights tries rights at AWS, and reports under a subject whether the program has them. A missing right is a failure if needed is set, and otherwise a
// warning.
func (l *List) Rights(ctx context.Context, subject string, needed bool, rights []role.Right) {
	report := l.Warn
	if needed {
		report = l.Fail
	}
	for _, r := range rights {
		switch allowed, err := r.Allowed(ctx); {
		case err != nil:
			report(subject, "%s", err)
			return // AWS is out of reach, so the other rights would run into the same error.
		case allowed:
			l.OK(subject, "%s", r.Name)
		default:
			report(subject, "%s: refused; %s", r.Name, r.Without)
		}
	}
}

// Hush drops what client-go logs. Commands call it, as they print the errors that client-go returns.
func Hush() {
	silent := logrus.New()
	silent.SetOutput(io.Discard)
	daemon.RouteKlog(logrus.NewEntry(silent))
}

// Webhook reports what is wrong with the webhook's settings. With the flag --webhook, it also posts a test message. node is in that message; "" if the
// node is unknown.
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
			l.Fail("webhook", "the test message was not delivered: %s", err)
			return
		}
		l.OK("webhook", "test message delivered")
	case len(faults) > 0: // Each fault was reported above.
	case to == nil:
		l.OK("webhook", "no webhook configured")
	default:
		l.OK("webhook", "the template renders every kind of notice; \"%s check --webhook\" posts a test", l.program)
	}
}

// postTest posts a test notice, rendered with the template. The notice says which program and node send it.
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
		return errors.New("the template renders nothing for a test notice")
	}
	return to.Post(ctx, f.NoticeID, body)
}
