package config_test

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/config"
)

var update = flag.Bool("update", false, "write the generated files")

const (
	manual   = "../../docs/configuration.md"
	conffile = "../../packaging/nth.toml"
	manpage  = "../../packaging/man/nth.toml.5"
)

// generated compares a file with what it should be, or writes it.
func generated(t *testing.T, file, want string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got := read(t, file); got != want {
		t.Errorf("%s is not what the code says; run: go test ./pkg/config -update", file)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestGeneratedManualDescribesEverySetting(t *testing.T) {
	inManual(t, manual, config.Describe(config.Default()), nil)
}

// inManual judges, or writes, the part of a manual that follows from the code. For tables that are among those of nth, it leads to nth's manual.
func inManual(t *testing.T, manual string, tables, nth []config.Table) {
	t.Helper()
	const begin, end = "<!-- begin: go test ./pkg/config -update -->\n", "<!-- end -->"
	text := read(t, manual)
	before, rest, found := strings.Cut(text, begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s lacks the marks %q and %q", manual, begin, end)
	}
	generated(t, manual, before+begin+reference(tables, nth)+end+after)
}

// reference is the part of the manual that follows from the code.
func reference(tables, nth []config.Table) string {
	known := map[string]bool{}
	for _, table := range nth {
		known[whole(table)] = true
		for _, s := range table.Settings {
			known[table.Name+row(s)] = true
		}
	}
	var b strings.Builder
	for _, table := range tables {
		title := "`[" + table.Name + "]`"
		if table.Name == "" {
			title = "At the top of the file"
		}
		fmt.Fprintf(&b, "\n### %s\n\n%s", title, section(table, known))
	}
	return b.String() + "\n"
}

// section describes a table of the settings. What nth's manual says already, word for word, is only named.
func section(table config.Table, known map[string]bool) string {
	var rows, same []string
	for _, s := range table.Settings {
		if known[table.Name+row(s)] {
			same = append(same, "`"+s.Name+"`")
		} else {
			rows = append(rows, row(s))
		}
	}
	link := fmt.Sprintf("[for nth](configuration.md#%s)", strings.ReplaceAll(table.Name, ".", ""))
	if rows == nil && known[whole(table)] {
		return "The same as " + link + ".\n"
	}
	text := ""
	if table.Doc != "" {
		text = table.Doc + "\n\n"
	}
	if same != nil {
		text += "The same as " + link + ": " + strings.Join(same, ", ") + ".\n"
	}
	if rows == nil {
		return text
	}
	if same != nil {
		text += "\n"
	}
	return text + "| key | default | may be | meaning |\n|---|---|---|---|\n" + strings.Join(rows, "")
}

// whole is equal for two tables of the same settings, if each of them is the same.
func whole(table config.Table) string { return fmt.Sprint(table.Name, table.Doc, len(table.Settings)) }

// row describes a setting.
func row(s config.Setting) string {
	return fmt.Sprintf("| `%s` | `%s` | %s | %s |\n", s.Name, s.Default(), s.Allowed(), s.Doc)
}

func TestGeneratedConffileShowsEveryDefault(t *testing.T) {
	var b strings.Builder
	b.WriteString(`# Settings of nth.
#
# Each line shows a default. To change one, remove its leading #, or better, leave this file as it is and put the
# change into a file of your own in /etc/nth/nth.toml.d/, with a name that ends in .toml.
# docs/configuration.md tells what each key means; "nth config" prints what is in effect, "nth config --check" judges it.

`)
	b.WriteString(defaults(config.Describe(config.Default())))
	generated(t, conffile, b.String())
}

// defaults is a file that shows every default.
func defaults(tables []config.Table) string {
	var b strings.Builder
	for _, table := range tables {
		if table.Name != "" {
			fmt.Fprintf(&b, "\n# %s\n[%s]\n", table.Doc, table.Name)
		}
		for _, s := range table.Settings {
			fmt.Fprintf(&b, "#%s = %s\n", s.Name, s.Default())
		}
	}
	return b.String()
}

func TestGeneratedManualPageDescribesEverySetting(t *testing.T) {
	generated(t, manpage, manpageHead+manualPage(config.Describe(config.Default()))+manpageFoot)
}

// manualPage is the part of a manual page that follows from the code.
func manualPage(tables []config.Table) string {
	var b strings.Builder
	for _, table := range tables {
		title := "[" + table.Name + "]"
		if table.Name == "" {
			title = "At the top of the file"
		}
		fmt.Fprintf(&b, ".SS %s\n", roff(title))
		if table.Doc != "" {
			fmt.Fprintf(&b, "%s\n", roff(table.Doc))
		}
		for _, s := range table.Settings {
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\nIt may be %s. Default:\n.B %s\n",
				roff(s.Name), roff(s.Doc), roff(s.Allowed()), roff(s.Default()))
		}
	}
	return b.String()
}

const manpageHead = `.\" Written by: go test ./pkg/config -update
.TH NTH.TOML 5 "" "nth" "File Formats"
.SH NAME
nth.toml \- settings of nth
.SH SYNOPSIS
.I /etc/nth/nth.toml
.br
.I /etc/nth/nth.toml.d/*.toml
.SH DESCRIPTION
Nothing needs to be set. The files are read in that order, the drop\-ins by their names; a later one overrides single
keys of an earlier one. They are written in TOML. Durations are written as in
.B \(dq500ms\(dq
or
.BR \(dq1h30m\(dq .
.PP
A key or value that is wrong is an error, never a guess: nth does not start with it, and on a reload keeps what it has.
.B nth config \-\-check
names each fault with its file, key and value, and what would be right;
.B nth config
prints the settings in effect.
.SH SETTINGS
`

const manpageFoot = `.SH EXAMPLE
.nf
[events.rebalance\-recommendation]
action = \(dqcordon\(dq
cordon_for = \(dq1h\(dq

[drain]
load_balancer_wait = \(dq20s\(dq
.fi
.SH SEE ALSO
.BR nth (8)
`

var codeSpan = regexp.MustCompile("`([^`]*)`")

// roff writes a sentence of Markdown, or a value, for a manual page.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, `"`, `\(dq`, "'", `\(aq`).Replace(text)
	text = codeSpan.ReplaceAllString(text, `\fB$1\fP`)
	if strings.HasPrefix(text, ".") {
		text = `\&` + text
	}
	return text
}

func TestTheConffileIsTheDefaultWithAndWithoutItsComments(t *testing.T) {
	text := read(t, conffile)
	uncommented := regexp.MustCompile(`(?m)^#(\w)`).ReplaceAllString(text, "$1")
	if strings.Count(uncommented, "#") == strings.Count(text, "#") {
		t.Fatal("no default is shown")
	}
	for name, text := range map[string]string{"as shipped": text, "uncommented": uncommented} {
		cfg := config.Default()
		if name == "uncommented" {
			// What the file does not set would stay visible.
			cfg = config.Config{Common: config.Common{StateDirectory: cfg.StateDirectory, RuntimeDirectory: cfg.RuntimeDirectory}}
		}
		if err := config.Decode(conffile, []byte(text), &cfg); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !same(cfg, config.Default()) {
			t.Errorf("%s: read as %+v", name, cfg)
		}
	}
}

func TestEverySettingIsExplained(t *testing.T) {
	for _, table := range config.Describe(config.Default()) {
		for _, s := range table.Settings {
			if !strings.HasSuffix(s.Doc, ".") || strings.ContainsAny(s.Doc+s.Allowed()+s.Default(), "|\n") {
				t.Errorf("[%s] %s: %q is no sentence for a table", table.Name, s.Name, s.Doc)
			}
		}
	}
}
