package config_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/config"
)

const knownAtTop = "drain, dry_run, events, host_root, imds, kubernetes, load_balancers, log, metrics, webhook"

// faults holds the message of every broken file in testdata, without the file's name.
var faults = map[string]string{
	"action-misspelt":     `events.spot-interruption.action = "drian": must be one of "ignore", "notify", "cordon", "drain"`,
	"action-number":       `events.shutdown.action = 1: must be one of "ignore", "notify", "cordon", "drain"`,
	"bool-quoted":         `dry_run = "yes": must be true or false`,
	"code-unknown":        `events.scheduled-maintenance.codes.system-rebot: unknown key, did you mean events.scheduled-maintenance.codes.system-reboot?`,
	"code-when":           `events.scheduled-maintenance.codes.other = "soon": must be one of "now", "lead", "window", "notify", "ignore"`,
	"codes-not-a-table":   `events.scheduled-maintenance.codes = "now": must be a table of "instance-stop", "instance-retirement", "system-reboot", "instance-reboot", "system-maintenance", "other", each one of "now", "lead", "window", "notify", "ignore"`,
	"duration-days":       `events.scheduled-maintenance.window = "2d": must be a duration from "0s" to "720h" (use "48h")`,
	"duration-long":       `events.asg-termination.budget = "100h": must be a duration from "1s" to "48h"`,
	"duration-negative":   `drain.scripts_wait = "-1s": must be a duration from "0s" to "1h"`,
	"duration-number":     `imds.interval = 500: must be a duration from "50ms" to "30s"`,
	"duration-short":      `imds.interval = "1ms": must be a duration from "50ms" to "30s"`,
	"duration-unit":       `drain.margin = "2 seconds": must be a duration from "0s" to "10m"`,
	"endpoint-scheme":     `imds.endpoint = "169.254.169.254": must be a URL of a host alone, such as "http://169.254.169.254", or ""`,
	"endpoint-path":       `imds.endpoint = "http://169.254.169.254/latest": must be a URL of a host alone, such as "http://169.254.169.254", or ""`,
	"format-unknown":      `log.format = "logfmt": must be one of "auto", "text", "journal", "json", "prefix"`,
	"grace-word":          `drain.pod_grace_period = "own": must be a duration from "0s" to "24h", or ""`,
	"hook-name":           `events.asg-termination.hooks = ["my hook"]: must be a list of names of lifecycle hooks, such as ["drain"]`,
	"target-group-name":   `load_balancers.target_groups = ["web"]: must be a list of ARNs of target groups, or ["all"]`,
	"target-groups-all":   `load_balancers.target_groups = ["all", "all"]: must be a list of ARNs of target groups, or ["all"]`,
	"on-incomplete":       `events.asg-termination.on_incomplete = "retain": must be one of "continue", "abandon"`,
	"hooks-text":          `events.asg-termination.hooks = "drain": must be a list of names of lifecycle hooks, such as ["drain"]`,
	"key-cut-in-a-table":  `asg: unknown key, did you mean events.asg-termination?`,
	"key-case":            `Dry_Run: unknown key, did you mean dry_run?`,
	"key-cut-short":       `events.spot: unknown key, did you mean events.spot-interruption?`,
	"key-misspelt":        `imds.intervall: unknown key, did you mean imds.interval?`,
	"key-top":             `prometheus: unknown key, the top of the file has ` + knownAtTop,
	"key-unlike":          `kubernetes.password: unknown key, [kubernetes] has events, heartbeat, kubeconfig, labels`,
	"key-wrong-table":     `drain.lead: unknown key, did you mean events.scheduled-maintenance.lead?`,
	"kubeconfig-relative": `kubernetes.kubeconfig = "kubeconfig": must be an absolute path, or ""`,
	"level-unknown":       `log.level = "verbose": must be one of "debug", "info", "warning", "error"`,
	"life-cycle-text":     `imds.life_cycles = "spot": must be a list of any of "spot", "on-demand", "scheduled", "capacity-block", "interruptible-capacity-reservation"`,
	"life-cycle-unknown":  `imds.life_cycles = ["spot", "reserved"]: must be a list of any of "spot", "on-demand", "scheduled", "capacity-block", "interruptible-capacity-reservation"`,
	"metrics-port":        `metrics.listen = "9092": must be an address such as ":9092" or "127.0.0.1:9092", or ""`,
	"metrics-textfile":    `metrics.textfile = "/var/lib/node_exporter/nth": must be an absolute path that ends with ".prom", or ""`,
	"several": `dry_run = 1: must be true or false
colour: unknown key, the top of the file has ` + knownAtTop + `
log.level = "loud": must be one of "debug", "info", "warning", "error"
events.shutdwn: unknown key, did you mean events.shutdown?`,
	"syntax-bare":      `line 2: not valid TOML near events.shutdown.action; a text needs quotes, and a key or table stands once`,
	"syntax-duplicate": `line 3: not valid TOML near log.level; a text needs quotes, and a key or table stands once`,
	"syntax-quote":     `line 2: not valid TOML near host_root; a text needs quotes, and a key or table stands once`,
	"table-array":      `imds = [[...]]: must be a table: [imds]`,
	"table-value":      `log = "debug": must be a table: [log]`,
	"secret-header":    `webhook.headers.Authorization = "(not shown)": must be a text on one line`,
	"secret-headers":   `webhook.headers = "(not shown)": must be a table of names and texts`,
	"secret-proxy":     `webhook.proxy = "(not shown)": must be a URL that begins with "http://", "https://", "socks5://" or "tcp://", or ""`,
	"secret-url":       `webhook.url = "(not shown)": must be a URL that begins with "https://" or "http://", or ""`,
	"value-below":      `dry_run = {really}: must be true or false`,
	"value-long":       `log.level = "a word that goes on and on and on and on, until nobody wants...": must be one of "debug", "info", "warning", "error"`,
}

// line is where in a file a fault is: TestLoad_NamesTheLine.
var line = regexp.MustCompile(`line \d+: `)

func TestEveryFaultIsNamedInOneLine(t *testing.T) {
	files, err := filepath.Glob("testdata/*.toml")
	if err != nil || len(files) != len(faults) {
		t.Fatalf("testdata holds %d files and the table %d (%v)", len(files), len(faults), err)
	}
	for name, message := range faults {
		t.Run(name, func(t *testing.T) {
			file := "testdata/" + name + ".toml"
			cfg, err := config.Usual().Load(file)
			if err == nil {
				t.Fatalf("loaded as %+v", cfg)
			}
			want := file + ": " + strings.ReplaceAll(message, "\n", "\n"+file+": ")
			if got := line.ReplaceAllString(err.Error(), ""); got != line.ReplaceAllString(want, "") {
				t.Errorf("got  %s\nwant %s", err, want)
			}
		})
	}
}

func TestDecode_RefusesLargeAndDeepFiles(t *testing.T) {
	keys := strings.Repeat("a.", 600)
	for text, want := range map[string]string{
		strings.Repeat("#", 1<<20+1):                "x: the file must have at most 1 MiB",
		"a = [\n]\nb = " + strings.Repeat("[", 600): "x: line 3: lists, tables or keys are nested more than 500 deep",
		"a = " + strings.Repeat("{ a = ", 20_000):   "x: line 1: lists,",
		strings.Repeat("[\n", 600):                  "x: line 501: lists,",
		"\n" + keys + "b = 1":                       "x: line 2: lists,",
	} {
		cfg := config.Default()
		if err := config.Decode("x", []byte(text), &cfg); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.60q: the error is %v, want %s", text, err, want)
		}
	}
}

func TestAFaultLeavesItsKeyAsItWas(t *testing.T) {
	cfg := config.Default()
	if err := config.Decode("x", []byte("[drain]\nmargin = 3\nload_balancer_wait = \"1s\""), &cfg); err == nil {
		t.Error("a number passed for a duration")
	}
	if cfg.Drain.Margin != config.Default().Drain.Margin || cfg.Drain.LoadBalancerWait.String() != "1s" {
		t.Errorf("margin %v, load_balancer_wait %v", cfg.Drain.Margin, cfg.Drain.LoadBalancerWait)
	}
}

func TestDecodingDoesNotReachIntoACopy(t *testing.T) {
	cfg := config.Default()
	changed := cfg
	text := "[events.scheduled-maintenance]\ncodes.other = \"now\""
	if err := config.Decode("x", []byte(text), &changed); err != nil {
		t.Fatal(err)
	}
	if got := cfg.Events.ScheduledMaintenance.Codes["other"]; got != "notify" {
		t.Errorf("the original now says %q", got)
	}
	if got := changed.Events.ScheduledMaintenance.Codes["other"]; got != "now" {
		t.Errorf("the changed one says %q", got)
	}
}

// FuzzDecode looks for texts that bring the decoder down, that are refused without a word in the promised form, or
// that are accepted and then printed as something else.
func FuzzDecode(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.toml")
	for _, file := range append(files, "../../packaging/nth.toml") {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("[[events.shutdown]]\n\"\".\"a.b\" = 1979-05-27\ncodes.x.y = [[{}]]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		cfg := config.Default()
		err := config.Decode("fuzz.toml", text, &cfg)
		if err == nil {
			if again := reload(t, cfg); !same(again, withoutSecrets(cfg)) {
				t.Errorf("read as %+v, printed and read again as %+v", cfg, again)
			}
			return
		}
		for line := range strings.SplitSeq(err.Error(), "\n") {
			if !strings.HasPrefix(line, "fuzz.toml: ") {
				t.Errorf("a line without the file's name: %q", line)
			}
		}
	})
}
