// Package checks is how a program tells whether it does its work, and whether it could. "status" tells how the daemon stands, from the
// status that it keeps in its runtime directory, as lines for people or as JSON. "check" looks at one thing after the other, and each
// finding is a line with a verdict, what it is about, and the rest in words; the programs differ in what they look at.
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

	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/cmd/internal/settings"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/notify"
)

// Limit bounds a check as a whole: whatever hangs, a build gets its answer.
const Limit = time.Minute

// List prints findings as they come, and knows in the end whether the program could do its work.
type List struct {
	program string
	out     io.Writer
	failed  bool
}

// For returns the list of the program of that name, without a finding yet.
func For(program string, out io.Writer) *List { return &List{program: program, out: out} }

// OK tells of what is as it should be.
func (l *List) OK(subject, format string, args ...any) { l.line("ok", subject, format, args) }

// Warn tells of what deserves a look.
func (l *List) Warn(subject, format string, args ...any) { l.line("warn", subject, format, args) }

// Fail tells of what keeps the program from its work.
func (l *List) Fail(subject, format string, args ...any) {
	l.failed = true
	l.line("fail", subject, format, args)
}

func (l *List) line(verdict, subject, format string, args []any) {
	text := strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " ")
	fmt.Fprintf(l.out, "%-4s  %-10s  %s\n", verdict, subject, text)
}

// Right tells whether a right is there, which is needed for something, or which the program can do without.
func (l *List) Right(name, why string, optional, allowed bool) {
	switch {
	case allowed:
		l.OK("right", "%s", name)
	case optional:
		l.Warn("right", "%s: refused; %s asks for it %s, and can do without", name, l.program, why)
	default:
		l.Fail("right", "%s: refused; it is needed %s", name, why)
	}
}

// DryRun tells that the settings keep the program from acting.
func (l *List) DryRun() {
	l.Warn("settings", "dry_run = true: %s logs what it would do and changes nothing", l.program)
}

// Wrong tells what is wrong with the settings, one finding for each line, and returns what ends the program with status 78.
func (l *List) Wrong(err error) error {
	for line := range strings.SplitSeq(err.Error(), "\n") {
		l.Fail("settings", "%s", line)
	}
	return program.ConfigError{Fault: program.ErrTold}
}

// Degraded tells what is wrong with what is only told: the program starts and works without it.
func (l *List) Degraded(faults []string) {
	for _, fault := range faults {
		l.Fail("degraded", "%s", fault)
	}
}

// End returns what ends the program with status 1 if anything has failed.
func (l *List) End() error {
	if l.failed {
		return program.ErrTold
	}
	return nil
}

// Hush makes the libraries say nothing beside the findings, and wait for nothing longer than they do in the service.
func Hush() error {
	silent := logrus.New()
	silent.SetOutput(io.Discard)
	daemon.QuietLibraries(logrus.NewEntry(silent))
	if err := daemon.HurryLibraries(); err != nil {
		return fmt.Errorf("setting client-go's limits: %w", err)
	}
	return nil
}

// Settings tells where the settings come from: files, or the defaults where there is none of them, nor file.
func (l *List) Settings(sources []config.Source, file string) {
	found := settings.FromFiles(sources)
	if !slices.ContainsFunc(found, func(f settings.Finding) bool { return f.Passed == "" }) {
		l.OK("settings", "the defaults; there is no %s", file)
	}
	l.Sources("settings", found)
}

// Unit tells what keeps a command from seeing the service's credentials as the service will.
func (l *List) Unit(u settings.Unit) {
	for _, why := range u.Doubts() {
		l.Warn("service", "%s", why)
	}
}

// Sources tells what was read for a subject, and what was passed over. What is wrong with one is told elsewhere.
func (l *List) Sources(subject string, found []settings.Finding) {
	for _, f := range found {
		switch {
		case f.Source == "" || f.Fault != nil:
		case f.Passed != "":
			l.Warn(subject, "ignored %s: %s", f.Source, f.Passed)
		default:
			l.OK(subject, "read %s", f.Source)
		}
	}
}

// answerLimit is how long somebody may take to answer who has the address for metrics.
const answerLimit = 5 * time.Second

// Metrics checks whether metrics can be had where the settings say. In an image that is being made there is nothing to listen at, and what
// makes the file's directory may come later.
func (l *List) Metrics(ctx context.Context, cfg config.Metrics, image bool) {
	if cfg.Textfile != "" {
		l.textfile(filepath.Dir(cfg.Textfile), image)
	}
	if cfg.Listen == "" || image {
		return
	}
	var network net.ListenConfig
	listener, err := network.Listen(ctx, "tcp", cfg.Listen)
	switch {
	case err == nil:
		_ = listener.Close() // Nobody has come.
		l.OK("metrics", "can listen on %s", cfg.Listen)
	case errors.Is(err, syscall.EADDRINUSE) && l.serves(ctx, cfg.Listen):
		l.OK("metrics", "%s serves them at %s", l.program, cfg.Listen)
	default:
		l.Fail("metrics", "metrics.listen: %s; they cannot be scraped, but %s works without", err, l.program)
	}
}

// textfile checks the directory of the file.
func (l *List) textfile(directory string, image bool) {
	found, err := os.Stat(directory)
	if err == nil && !found.IsDir() {
		err = &os.PathError{Op: "stat", Path: directory, Err: syscall.ENOTDIR}
	}
	switch {
	case err == nil:
		l.OK("metrics", "the directory %s is there", directory)
	case image:
		l.Warn("metrics", "metrics.textfile: %s; no file is written until it exists", err)
	default:
		l.Fail("metrics", "metrics.textfile: %s; no file is written, and %s works without", err, l.program)
	}
}

// serves tells whether it is this program that serves at an address.
func (l *List) serves(ctx context.Context, address string) bool {
	if host, port, err := net.SplitHostPort(address); err == nil && host == "" {
		address = net.JoinHostPort("localhost", port)
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
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	return err == nil && strings.Contains(string(text), "nth_build_info")
}

// Webhook checks what can be checked of the webhook without posting, and posts a test if that is asked for: of the node
// that node names. The settings have been judged with the credentials that given finds, and this was found.
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
	case wrong: // It has been told.
	case !known && slices.ContainsFunc(found, func(f settings.Finding) bool { return f.Passed != "" }):
		l.OK("webhook", "the template renders every kind of notice")
	case !known:
		l.OK("webhook", "no webhook configured")
	default:
		l.OK("webhook", "the template renders every kind of notice; \"%s check --webhook\" posts a test", l.program)
	}
}

// post posts a test.
func (l *List) post(ctx context.Context, cfg config.Webhook, given settings.Given, node string) {
	webhook, err := settings.Webhook(cfg, l.program, given)
	if err == nil {
		err = postTest(ctx, webhook, node)
	}
	if err != nil {
		l.Fail("webhook", "test message rejected: %s", err)
		return
	}
	l.OK("webhook", "test message delivered")
}

func postTest(ctx context.Context, to *notify.WebhookSettings, node string) error {
	f := notify.TestFields(node, time.Now())
	text, err := to.Template.Render(f)
	if err != nil {
		return err
	}
	if text == "" {
		return errors.New("the template renders nothing for it")
	}
	return to.Post(ctx, f.NoticeID, text)
}
