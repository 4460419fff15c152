// Package checks has what the commands "status" and "check" of both programs share. "status" shows the status that the daemon keeps in
// its runtime directory, as lines for operators or as JSON. "check" prints one line for each finding: a verdict, a subject and a text.
package checks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/cmd/internal/settings"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/role"
	"github.com/nth-project/nth/pkg/text"
)

// Limit is how long a check may take as a whole: an image build must not hang.
const Limit = time.Minute

// List prints findings as they come, or as JSON at the end, and counts them.
type List struct {
	program  string
	out      io.Writer
	asJSON   bool
	invalid  bool // the settings are invalid
	findings []finding
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

// For returns an empty list for the program of that name.
func For(program string, out io.Writer, asJSON bool) *List {
	return &List{program: program, out: out, asJSON: asJSON, findings: []finding{}}
}

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

// End prints the summary, and returns an error for exit status 1 if anything has failed, or 78 if the settings are invalid.
func (l *List) End() error {
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
	switch {
	case l.invalid:
		return cli.ConfigError{Fault: cli.ErrReported}
	case verdict == failure:
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

// DryRun reports that the settings keep the program from acting.
func (l *List) DryRun() {
	l.Warn("settings", "dry_run = true: %s logs what it would do and changes nothing", l.program)
}

// Wrong reports each line of an error in the settings. It ends the list, and returns the error of End for exit status 78.
func (l *List) Wrong(err error) error {
	for line := range strings.SplitSeq(err.Error(), "\n") {
		l.Fail("settings", "%s", line)
	}
	l.invalid = true
	return l.End()
}

// Degraded reports faults in the settings with which the program starts nevertheless.
func (l *List) Degraded(faults []string) {
	for _, fault := range faults {
		l.Fail("degraded", "%s", fault)
	}
}

// Hush silences client-go: a command reports the errors that client-go returns.
func Hush() {
	silent := logrus.New()
	silent.SetOutput(io.Discard)
	daemon.RouteKlog(logrus.NewEntry(silent))
}

// Settings reports which files were read and ignored, or that the defaults are used as there is no file.
func (l *List) Settings(sources []config.Source, file string) {
	found := settings.FromFiles(sources)
	if !slices.ContainsFunc(found, func(f settings.Finding) bool { return f.Passed == "" }) {
		l.OK("settings", "the defaults; there is no %s", file)
	}
	l.Sources("settings", found)
}

// Unit warns if the unit cannot be read: then the service may get other credentials than this command finds.
func (l *List) Unit(u settings.Unit) {
	if doubt := u.Doubt(); doubt != "" {
		l.Warn("service", "%s", doubt)
	}
}

// Sources reports which files and credentials were read for a subject, and which were ignored. It leaves out faults: Wrong and Degraded
// report those.
func (l *List) Sources(subject string, found []settings.Finding) {
	for _, f := range found {
		switch {
		case f.Source == "" || f.Fault != nil: // It is about the settings themselves, or a fault.
		case f.Passed != "":
			l.Warn(subject, "ignored %s: %s", f.Source, f.Passed)
		default:
			l.OK(subject, "read %s", f.Source)
		}
	}
}

// answerLimit is how long a server on the address for metrics may take to answer.
const answerLimit = 5 * time.Second

// Metrics checks that metrics can be served and written as the settings say. While an image is built, there is no network, and the file's
// directory may be created later.
func (l *List) Metrics(ctx context.Context, cfg config.Metrics, image bool) {
	if cfg.Textfile != "" {
		l.textfile(filepath.Dir(cfg.Textfile))
	}
	if cfg.Listen == "" || image {
		return
	}
	var network net.ListenConfig
	listener, err := network.Listen(ctx, "tcp", cfg.Listen)
	switch {
	case err == nil:
		_ = listener.Close() // No client has connected.
		l.OK("metrics", "can listen on %s", cfg.Listen)
	case errors.Is(err, syscall.EADDRINUSE) && l.serves(ctx, cfg.Listen): // The daemon runs.
		l.OK("metrics", "%s serves them at %s", l.program, cfg.Listen)
	default:
		l.Warn("metrics", "metrics.listen: %s; metrics cannot be scraped", err)
	}
}

// textfile checks the directory of metrics.textfile.
func (l *List) textfile(directory string) {
	found, err := os.Stat(directory)
	if err == nil && !found.IsDir() {
		err = &os.PathError{Op: "stat", Path: directory, Err: syscall.ENOTDIR}
	}
	if err != nil {
		l.Warn("metrics", "metrics.textfile: %s; no file is written", err)
	} else {
		l.OK("metrics", "the directory %s exists", directory)
	}
}

// serves reports whether nth or nth-queue serves metrics at an address.
func (l *List) serves(ctx context.Context, address string) bool {
	if host, port, err := net.SplitHostPort(address); err == nil && host == "" {
		address = net.JoinHostPort("127.0.0.1", port) // An image may lack /etc/hosts.
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return false
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		return false
	}
	defer func() { _ = answer.Body.Close() }() // It was only read.
	page, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	return err == nil && strings.Contains(string(page), "nth_build_info")
}

// Webhook reports the findings about the webhook. Its settings were validated with the credentials that given finds. If post is true, it posts a
// test message, which has the name of the node that node returns.
func (l *List) Webhook(
	ctx context.Context, cfg config.Webhook, given settings.Given, found []settings.Finding, post bool, node func(context.Context) string,
) {
	l.Sources("webhook", found)
	wrong := slices.ContainsFunc(found, func(f settings.Finding) bool { return f.Fault != nil })
	switch known := settings.Destination(cfg, l.program, given) != nil; {
	case !known && post:
		l.Fail("webhook", "no webhook URL can be read from here, so no test was sent")
	case post:
		l.post(ctx, cfg, given, node(ctx))
	case wrong: // Degraded has reported the fault.
	case !known && slices.ContainsFunc(found, func(f settings.Finding) bool { return f.Passed != "" }): // The address is in a file that only the service can read.
		l.OK("webhook", "the template renders every kind of notice")
	case !known:
		l.OK("webhook", "no webhook configured")
	default:
		l.OK("webhook", "the template renders every kind of notice; \"%s check --webhook\" posts a test", l.program)
	}
}

// post posts a test message to the webhook, and reports the result.
func (l *List) post(ctx context.Context, cfg config.Webhook, given settings.Given, node string) {
	webhook, err := settings.Webhook(cfg, l.program, given)
	if err == nil {
		err = postTest(ctx, webhook, l.program, node)
	}
	if err != nil {
		l.Fail("webhook", "test message rejected: %s", err)
		return
	}
	l.OK("webhook", "test message delivered")
}

// postTest posts the template's rendering of a test notice. program and node say in it who sends it.
func postTest(ctx context.Context, to *notify.WebhookSettings, program, node string) error {
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
