package config_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/event"
)

var update = flag.Bool("update", false, "write the generated files")

const (
	conffile      = "../../packaging/nth.toml"
	queueConffile = "../../packaging/nth-queue.toml"
)

func TestGenerated_FilesDescribeEverySetting(t *testing.T) {
	nth, queue := config.Describe(config.Default()), config.Describe(config.DefaultQueue())
	const mark, end = "begin: go test ./pkg/config -update", "end"
	for _, g := range []struct{ file, begin, end, want string }{
		{"../../docs/configuration.md", "<!-- " + mark + " -->\n", "<!-- " + end + " -->\n", reference(nth, nil)},
		{"../../docs/configuration-queue.md", "<!-- " + mark + " -->\n", "<!-- " + end + " -->\n", reference(queue, nth)},
		{"../../packaging/man/nth.toml.5", ".SH SETTINGS\n", ".SH EXAMPLE\n", manualPage(nth)},
		{"../../packaging/man/nth-queue.toml.5", ".SH SETTINGS\n", ".SH EXAMPLE\n", manualPage(queue)},
		{conffile, "\n\n", "", defaults(nth)},
		{queueConffile, "\n\n", "", defaults(queue)},
	} {
		text := read(t, g.file)
		before, rest, found := strings.Cut(text, g.begin)
		after := ""
		if g.end != "" {
			_, after, found = strings.Cut(rest, g.end)
		}
		want := before + g.begin + g.want + g.end + after
		if !found {
			t.Fatalf("%s lacks %q and %q", g.file, g.begin, g.end)
		}
		if *update {
			if err := os.WriteFile(g.file, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		} else if text != want {
			t.Errorf("%s is not what the code says; run: go test ./pkg/config -update", g.file)
		}
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

// printed is every setting, printed.
func printed[C any, P config.Pointer[C]](t *testing.T, cfg C) string {
	t.Helper()
	var b bytes.Buffer
	if err := config.Encode[C, P](&b, cfg); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestConffile_IsTheDefaultWithAndWithoutItsComments(t *testing.T) {
	isDefault(t, conffile, config.Default)
	isDefault(t, queueConffile, config.DefaultQueue)
}

func isDefault[C any, P config.Pointer[C]](t *testing.T, file string, defaults func() C) {
	t.Helper()
	text := read(t, file)
	for _, text := range []string{text, regexp.MustCompile(`(?m)^#(\w)`).ReplaceAllString(text, "$1")} {
		cfg := defaults()
		if err := config.Decode[C, P](file, []byte(text), &cfg); err != nil || printed[C, P](t, cfg) != printed[C, P](t, defaults()) {
			t.Errorf("%v: read as %+v", err, cfg)
		}
	}
}

func TestSetting_Each(t *testing.T) {
	t.Run("nth", func(t *testing.T) { judgeSettings(t, config.Default, event.Kinds()) })
	t.Run("nth-queue", func(t *testing.T) {
		judgeSettings(t, config.DefaultQueue, []event.Kind{event.StateChange, event.StatusCheck})
	})
}

// judgeSettings fails the test unless each setting is explained by a sentence, has a field of its own, and is read again as it was printed.
func judgeSettings[C any, P config.Pointer[C]](t *testing.T, defaults func() C, kinds []event.Kind) {
	t.Helper()
	values := []string{
		"true", "false", "7", `"7s"`, `"debug"`, `"json"`, `"cordon"`, `"abandon"`, `"logind"`, `"NoSchedule"`, `"reboot"`, `"a"`, `"/a.prom"`, `"http://a"`, `":1"`,
		`"https://a/1/q"`, `["spot"]`, `["Sat-Sun 02:00-05:00 UTC"]`, `["ended"]`, `["all"]`, `["a"]`, `{ other = "now" }`, `{ A = "b" }`,
	}
	before := printed[C, P](t, defaults())
	var keys []string
	for _, table := range config.Describe[C, P](defaults()) {
		for _, s := range table.Settings {
			key := strings.TrimPrefix(table.Name+"."+s.Name, ".")
			keys = append(keys, key)
			if !strings.HasSuffix(s.Doc, ".") || strings.ContainsAny(s.Doc+s.Allowed()+s.Default(), "|\n") {
				t.Errorf("%s: %q is no sentence for a table", key, s.Doc)
			}
			cfg, changed := defaults(), 0
			for _, value := range values {
				cfg = defaults()
				if config.Decode[C, P]("a", []byte(key+" = "+value), &cfg) != nil {
					continue
				}
				after := strings.Split(printed[C, P](t, cfg), "\n")
				changed = len(slices.DeleteFunc(after, func(line string) bool { return strings.Contains(before+"\n", line+"\n") }))
				if changed > 0 {
					break
				}
			}
			again := defaults()
			err := config.Decode[C, P]("a", []byte(printed[C, P](t, cfg)), &again)
			hidden := strings.Contains(printed[C, P](t, cfg), "# "+s.Name+" is set")
			if changed != 1 || err != nil || !hidden && printed[C, P](t, again) != printed[C, P](t, cfg) {
				t.Errorf("%s changes %d lines, and is read again with %v", key, changed, err)
			}
		}
	}
	for _, kind := range kinds {
		if !slices.Contains(keys, "events."+string(kind)+".action") {
			t.Errorf("nothing sets the action for %s", kind)
		}
	}
}
