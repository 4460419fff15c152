package config_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/config"
)

const (
	queueManual   = "../../docs/configuration-queue.md"
	queueConffile = "../../packaging/nth-queue.toml"
	queueManpage  = "../../packaging/man/nth-queue.toml.5"
)

func TestGeneratedQueueManualDescribesEverySetting(t *testing.T) {
	inManual(t, queueManual, config.Describe(config.DefaultQueue()), config.Describe(config.Default()))
}

func TestGeneratedQueueConffileShowsEveryDefault(t *testing.T) {
	generated(t, queueConffile, `# Settings of nth-queue.
#
# Each line shows a default. queue.url must be set. To change a setting, remove its leading #, or better, leave this file
# as it is and put the change into a file of your own in /etc/nth/nth-queue.toml.d/, with a name that ends in .toml.
# docs/configuration-queue.md tells what each key means; "nth-queue config" prints what is in effect, "nth-queue config
# --check" judges it.

`+defaults(config.Describe(config.DefaultQueue())))
}

func TestGeneratedQueueManualPageDescribesEverySetting(t *testing.T) {
	generated(t, queueManpage, queueManpageHead+manualPage(config.Describe(config.DefaultQueue()))+queueManpageFoot)
}

const queueManpageHead = `.\" Written by: go test ./pkg/config -update
.TH NTH-QUEUE.TOML 5 "" "nth" "File Formats"
.SH NAME
nth\-queue.toml \- settings of nth\-queue
.SH SYNOPSIS
.I /etc/nth/nth\-queue.toml
.br
.I /etc/nth/nth\-queue.toml.d/*.toml
.SH DESCRIPTION
Only
.B url
in
.B [queue]
must be set. The files are read in that order, the drop\-ins by their names; a later one overrides single keys of an
earlier one. They are written in TOML. Durations are written as in
.B \(dq500ms\(dq
or
.BR \(dq1h30m\(dq .
.PP
A key or value that is wrong is an error, never a guess: nth\-queue does not start with it.
.B nth\-queue config \-\-check
names each fault with its file, key and value, and what would be right;
.B nth\-queue config
prints the settings in effect.
.SH SETTINGS
`

const queueManpageFoot = `.SH EXAMPLE
.nf
[queue]
url = \(dqhttps://sqs.eu\-central\-1.amazonaws.com/123456789012/interruptions\(dq

[kubernetes]
kubeconfig = \(dq/etc/nth/nth\-queue.kubeconfig\(dq

[fleet]
max_per_group = 5
.fi
.SH SEE ALSO
.BR nth\-queue (8),
.BR nth.toml (5)
`

// settingsOf is every setting of nth-queue, printed.
func settingsOf(t *testing.T, cfg config.Queue) string {
	t.Helper()
	var b bytes.Buffer
	if err := config.Encode(&b, cfg, nil); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// loadQueue reads settings from a file with that text.
func loadQueue(t *testing.T, text string) (config.Queue, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nth-queue.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := config.UsualQueue().Load(path)
	return l.Config, err
}

func TestTheQueueConffileIsTheDefaultWithAndWithoutItsComments(t *testing.T) {
	shipped := read(t, queueConffile)
	for name, text := range map[string]string{
		"as shipped": shipped, "uncommented": regexp.MustCompile(`(?m)^#(\w)`).ReplaceAllString(shipped, "$1"),
	} {
		cfg, err := loadQueue(t, text)
		if got, want := settingsOf(t, cfg), settingsOf(t, config.DefaultQueue()); err != nil || got != want {
			t.Errorf("%s: %v\n%s\nwant\n%s", name, err, got, want)
		}
	}
}

func TestWhatIsPrintedOfTheQueuesSettingsIsReadAgain(t *testing.T) {
	changed := regexp.MustCompile(`(?m)= (\d+)$`).ReplaceAllString(settingsOf(t, config.DefaultQueue()), "= 7")
	changed = strings.NewReplacer("= true", "= false", "= false", "= true", "[queue]\nurl = \"\"", "[queue]\nurl = \"https://sqs.eu-central-1.amazonaws.com/1/q\"").Replace(changed)
	cfg, err := loadQueue(t, changed)
	if got := settingsOf(t, cfg); err != nil || got != changed {
		t.Errorf("read again as\n%s\nwant\n%s\n%v", got, changed, err)
	}
}

func TestEverySettingOfTheQueueIsExplained(t *testing.T) {
	for _, table := range config.Describe(config.DefaultQueue()) {
		for _, s := range table.Settings {
			if !strings.HasSuffix(s.Doc, ".") || strings.ContainsAny(s.Doc+s.Allowed()+s.Default(), "|\n") {
				t.Errorf("[%s] %s: %q is no sentence for a table", table.Name, s.Name, s.Doc)
			}
		}
	}
}

func TestWrongSettingsOfTheQueueAreNamed(t *testing.T) {
	for text, want := range map[string]string{
		"[queue]\nurl = \"interruptions\"":               "queue.url",
		"[queue]\nreceivers = 3":                         "queue.receivers",
		"[fleet]\nmax_drainign = 3":                      "did you mean fleet.max_draining?",
		"[imds]\nendpoint = \"\"":                        "imds",
		"[fleet]\ncluster = \"kubernetes.io/cluster/a\"": "fleet.cluster",
		"[events.shutdown]\naction = \"drain\"":          "events.shutdown",
		"[events.status-check]\nafter = \"soon\"":        "events.status-check.after",
		"[fleet]\ngroup_label = \"not a label's key\"":   "fleet.group_label",
	} {
		if _, err := loadQueue(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: the error is %v, want %q in it", text, err, want)
		}
	}
}
