package demo

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// width is how many columns a line has at most, unless a name does not fit.
const width = 96

// emphasis says how much a line wants to be seen. Nothing is said by colour alone.
type emphasis string

const (
	plain   emphasis = ""
	strong  emphasis = "\x1b[1m"
	faint   emphasis = "\x1b[2m"
	good    emphasis = "\x1b[1;32m"
	bad     emphasis = "\x1b[1;31m"
	caution emphasis = "\x1b[33m"
	reset            = "\x1b[0m"
)

// A page is where the demo is written: a terminal or a file.
type page struct {
	out    io.Writer
	colour bool
	pods   int  // columns for a pod's name
	open   bool // the line that step began is not complete
}

// newPage returns a page with colours only for a terminal that wants them (https://no-color.org).
func newPage(out io.Writer, env func(string) string) *page {
	wanted := env("NO_COLOR") == "" && env("TERM") != "dumb" && env("TERM") != ""
	return &page{out: out, colour: wanted && isTerminal(out)}
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}

func (p *page) paint(e emphasis, text string) string {
	if !p.colour || e == plain || text == "" {
		return text
	}
	return string(e) + text + reset
}

// say writes one line, or an empty one.
func (p *page) say(e emphasis, format string, args ...any) {
	p.finish()
	fmt.Fprintln(p.out, p.paint(e, fmt.Sprintf(format, args...)))
}

// item writes a line of a list: a name and what belongs to it, on as many lines as it needs.
func (p *page) item(name, text string) {
	p.finish()
	fmt.Fprintf(p.out, "  %s%s\n", pad(name, itemColumn), wrap(text, 2+itemColumn))
}

const itemColumn = 15

// step begins a line of the preparations, and done ends it.
func (p *page) step(name string) {
	p.finish()
	fmt.Fprintf(p.out, "  %s", pad(name, itemColumn))
	p.open = true
}

func (p *page) done(format string, args ...any) {
	p.open = false
	fmt.Fprintln(p.out, wrap(fmt.Sprintf(format, args...), 2+itemColumn))
}

// finish ends a line that somebody else's words would break into.
func (p *page) finish() {
	if p.open {
		p.open = false
		fmt.Fprintln(p.out)
	}
}

// Columns of a row: the time, who, and where its text begins.
const (
	timeColumn = 12
	whoColumn  = 8
)

// row writes one line of the timeline.
func (p *page) row(r row) {
	subject, indent := "", timeColumn+whoColumn
	if r.subject != "" {
		subject = pad(r.subject, p.pods+2)
		indent += p.pods + 2
	}
	at := fmt.Sprintf("%+9.3f s ", r.at.Seconds())
	fmt.Fprintf(p.out, "%s%s%s%s\n",
		p.paint(faint, pad(at, timeColumn)), pad(r.who, whoColumn), subject, p.paint(r.emphasis, wrap(r.text, indent)))
}

// block writes another program's output, set off from ours.
func (p *page) block(text string) {
	for line := range strings.Lines(text) {
		fmt.Fprintf(p.out, "    %s\n", strings.TrimRight(line, " \n"))
	}
}

func pad(text string, columns int) string {
	return text + strings.Repeat(" ", max(0, columns-utf8.RuneCountInString(text)))
}

// wrap breaks a text that begins at the column indent, so that it ends before width and goes on below itself.
func wrap(text string, indent int) string {
	var b strings.Builder
	column := indent
	for i, word := range strings.Fields(text) {
		length := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case column+1+length > width:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			column = indent
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += length
	}
	return b.String()
}
