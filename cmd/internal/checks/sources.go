package checks

import (
	"fmt"
	"io"
	"strings"

	"github.com/nth-project/nth/cmd/internal/secrets"
	"github.com/nth-project/nth/cmd/internal/webhooks"
	"github.com/nth-project/nth/pkg/config"
)

// Settings tells where the settings come from: files, or the defaults where there is none of them, nor file.
func (l *List) Settings(sources []config.Source, file string) {
	if len(read(sources)) == 0 {
		l.OK("settings", "the defaults; there is no %s", file)
	}
	l.Sources("settings", fromFiles(sources))
}

// Unit tells what keeps a command from seeing the service's credentials as the service will.
func (l *List) Unit(u secrets.Unit) {
	for _, why := range u.Doubts() {
		l.Warn("service", "%s", why)
	}
}

// Sources tells what was read for a subject, and what was passed over. What is wrong with one is told elsewhere.
func (l *List) Sources(subject string, found []webhooks.Finding) {
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

// Approve is "config --check": it writes which files and credentials were read and which were passed over, one line each, and that all
// is right, unless wrong says what is not. file is the one that may be absent.
func Approve(to io.Writer, sources []config.Source, file string, u secrets.Unit, found []webhooks.Finding, wrong error) error {
	for _, f := range append(fromFiles(sources), found...) {
		switch {
		case f.Source == "" || f.Fault != nil:
		case f.Passed != "":
			fmt.Fprintf(to, "%s: ignored: %s\n", f.Source, f.Passed)
		default:
			fmt.Fprintf(to, "%s: read\n", f.Source)
		}
	}
	for _, why := range u.Doubts() {
		fmt.Fprintln(to, why)
	}
	if wrong != nil {
		return wrong
	}
	files := read(sources)
	if len(files) == 0 {
		files = []string{file + " (absent)"}
	}
	_, err := fmt.Fprintf(to, "%s: ok\n", strings.Join(files, ", "))
	return err
}

// read are the files that were read.
func read(sources []config.Source) []string {
	var files []string
	for _, s := range sources {
		if s.Passed == "" {
			files = append(files, s.File)
		}
	}
	return files
}

func fromFiles(sources []config.Source) []webhooks.Finding {
	found := make([]webhooks.Finding, len(sources))
	for i, s := range sources {
		found[i] = webhooks.Finding{Source: s.File, Passed: s.Passed}
	}
	return found
}
