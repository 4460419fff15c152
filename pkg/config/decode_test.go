package config_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/config"
)

// faults has the messages for broken files, without the file's name.
var faults = map[string]string{
	"[events.spot-interruption]\naction = \"drian\"": `line 2: events.spot-interruption.action = "drian": must be one of "ignore", "notify", "cordon", "drain"`,
	"dry_run = \"yes\"": `line 1: dry_run = "yes": must be true or false`,
	"[events.scheduled-maintenance]\n\ncodes = { other = \"soon\" }": `line 3: events.scheduled-maintenance.codes = map[other:soon]: must be a table of "instance-stop", "instance-retirement", "system-reboot", "instance-reboot", "system-maintenance", "other", each one of "now", "lead", "window", "notify", "ignore"`,
	"[events.scheduled-maintenance]\nhours = [\"Sat 2-5\"]":          `line 2: events.scheduled-maintenance.hours = [Sat 2-5]: must be a list of days, times and a time zone, such as ["Sat-Sun 02:00-05:00 Europe/Berlin"]`,
	"events.asg-termination.budget = \"100h\"":                       `line 1: events.asg-termination.budget = "100h": must be a duration from "1s" to "48h"`,
	"[imds]\ninterval = \"1ms\"":                                     `line 2: imds.interval = "1ms": must be a duration from "50ms" to "30s"`,
	"[drain]\nmargin = \"2 seconds\"":                                `line 2: drain.margin = "2 seconds": must be a duration from "0s" to "10m"`,
	"[imds]\nendpoint = \"http://169.254.169.254/latest\"":           `line 2: imds.endpoint = "http://169.254.169.254/latest": must be a URL of a host alone, such as "http://169.254.169.254", or ""`,
	"[load_balancers]\ntarget_groups = [\"all\", \"all\"]":           `line 2: load_balancers.target_groups = [all all]: must be a list of ARNs of target groups, or ["all"]`,
	"[kubernetes]\nkubeconfig = \"kubeconfig\"":                      `line 2: kubernetes.kubeconfig = "kubeconfig": must be an absolute path, or ""`,
	"[metrics]\nlisten = \"9092\"":                                   `line 2: metrics.listen = "9092": must be an address such as ":9092" or "127.0.0.1:9092", or ""`,
	"[asg]\nbudget = \"10m\"":                                        `line 1: asg: unknown key; the file has drain, dry_run, events, host_root, imds, kubernetes, load_balancers, log, metrics, webhook`,
	"Dry_Run = true":                                                 `line 1: Dry_Run: unknown key; the file has drain, dry_run, events, host_root, imds, kubernetes, load_balancers, log, metrics, webhook`,
	"[events.spot]\naction = \"drain\"":                              `line 1: events.spot: unknown key; [events] has asg-termination, hibernation, rebalance-recommendation, scheduled-maintenance, shutdown, spot-interruption`,
	"[drain]\nlead = \"10m\"":                                        `line 2: drain.lead: unknown key; [drain] has load_balancer_wait, margin, pod_grace_period, protect_empty_dir, protect_unmanaged, respect_do_not_disrupt, scripts_wait`,
	"dry_run = 1\ncolour = true\n\n[log]\nlevel = \"loud\"\n\n[events.shutdwn]\naction = \"drain\"": `line 1: dry_run = 1: must be true or false
line 2: colour: unknown key; the file has drain, dry_run, events, host_root, imds, kubernetes, load_balancers, log, metrics, webhook
line 5: log.level = "loud": must be one of "debug", "info", "warning", "error"
line 7: events.shutdwn: unknown key; [events] has asg-termination, hibernation, rebalance-recommendation, scheduled-maintenance, shutdown, spot-interruption`,
	"[events.shutdown]\naction = drain":          `line 2: not valid TOML; a text needs quotes, and a key or table stands once`,
	"[log]\nlevel = \"info\"\nlevel = \"debug\"": `line 3: not valid TOML; a text needs quotes, and a key or table stands once`,
	"[[imds]]\nendpoint = \"\"":                  `line 1: imds: must be a table: [imds]`,
	"log = \"debug\"":                            `line 1: log: must be a table: [log]`,
	"[webhook]\n'a b' = 'a'":                     `line 2: webhook.(not shown): unknown key; [webhook] has at, cluster, headers_file, proxy, template, url_file`,
	"dry_run.really = true":                      `dry_run = map[really:true]: must be true or false`,
	"[log]\nlevel = \"a word that goes on and on and on and on, until nobody wants to read\"": `line 2: log.level = "a word that goes on and on and on and on, until nobody wa…": must be one of "debug", "info", "warning", "error"`,
	"# [drain]\n[ events.asg-termination ] # ours\n\n  budget='1'":                            `line 4: events.asg-termination.budget = "1": must be a duration from "1s" to "48h"`,
	"[events]\nshutdown = { action = 'off' }":                                                 `line 2: events.shutdown.action = "off": must be one of "ignore", "notify", "cordon", "drain"`,
	"[webhook]\ntemplate = '''\n[log]\nlevel = 1\n'''\n[log]\nlevel = 2":                      `line 7: log.level = 2: must be one of "debug", "info", "warning", "error"`,
}

func TestDecode_NamesEachFaultInOneLine(t *testing.T) {
	for text, want := range faults {
		cfg := config.Default()
		err := config.Decode("x", []byte(text), &cfg)
		if want := "x: " + strings.ReplaceAll(want, "\n", "\nx: "); err == nil || err.Error() != want {
			t.Errorf("%s\ngot  %v\nwant %s", text, err, want)
		}
	}
}

func TestDecode_NamesFaultsOfTheQueue(t *testing.T) {
	for text, want := range map[string]string{
		"[queue]\nurl = \"interruptions\"":               "queue.url",
		"[fleet]\nmax_drainign = 3":                      "fleet.max_drainign: unknown key; [fleet] has cluster, ",
		"[imds]\nendpoint = \"\"":                        "imds",
		"[fleet]\ncluster = \"kubernetes.io/cluster/a\"": "fleet.cluster",
		"[events.shutdown]\naction = \"drain\"":          "events.shutdown",
	} {
		cfg := config.DefaultQueue()
		if err := config.Decode("x", []byte(text), &cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: the error is %v, want %q in it", text, err, want)
		}
	}
}

func TestDecode_AFaultLeavesItsKey(t *testing.T) {
	cfg := config.Default()
	if err := config.Decode("x", []byte("[drain]\nmargin = 3\nload_balancer_wait = \"1s\""), &cfg); err == nil {
		t.Error("a number passed for a duration")
	}
	if cfg.Drain.Margin != config.Default().Drain.Margin || cfg.Drain.LoadBalancerWait.String() != "1s" {
		t.Errorf("margin %v, load_balancer_wait %v", cfg.Drain.Margin, cfg.Drain.LoadBalancerWait)
	}
}

func TestDecode_DoesNotReachIntoACopy(t *testing.T) {
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
	for text := range faults {
		f.Add([]byte(text))
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

// withoutSecrets is what of the settings can be printed.
func withoutSecrets(cfg config.Config) config.Config {
	cfg.Webhook.Proxy = ""
	return cfg
}

func TestSecrets_AreReadAndNeverPrinted(t *testing.T) {
	const secret = "tcp://me:hunter2@proxy.example:3128"
	cfg := config.Default()
	if err := config.Decode("nth.toml", []byte("[webhook]\nproxy = '"+secret+"'"), &cfg); err != nil || cfg.Webhook.Proxy != secret {
		t.Fatalf("read as %+v, %v", cfg.Webhook, err)
	}
	text := printed(t, cfg)
	if strings.Contains(text, "hunter2") || strings.Contains(text, "proxy.example") || !strings.Contains(text, "# proxy is set, and not shown.") {
		t.Errorf("printed is\n%s", text)
	}
	if again := reload(t, cfg); !same(again, withoutSecrets(cfg)) {
		t.Errorf("printed and read again as %+v", again)
	}
}

func TestSecrets_InTheWrongPlaceAreInNoError(t *testing.T) {
	texts := []string{
		"webhook = 'hunter'", "webhook = ['hunter']", "[[webhook]]\nurl = 'hunter'", "webhook = { url = hunter }", "webhook.url = hunter",
		"\"webhook\" = { url = hunter }", "webhook.'https://hooks.test/hunter' = 1",
		"[imds]\nendpoint = hunter", "hunter = hunter", "[log]\nlevel = 'hunter\n", "token: hunter", // a secret in the wrong place
		"[imds]\nendpoint = 'http://me:hunter@a:b'", "[imds]\nendpoint = 'http://me:hunter@a'", "[imds]\nendpoint = 'http://me:hun/ter/hunter@a'", "[kubernetes]\nkubeconfig = 'https://me:hunter@a'",
		"[webhook.'https://hooks.test/hunter']\n[webhook.'https://hooks.test/hunter']",
		"[webhook]\nurl = 'https://hooks.test'\n[headers]\nAuthorization = hunter", "[webhook.'https://hooks.test/hunter']\na = true",
	}
	for _, line := range []string{
		"url = hunter", "url = https://hooks.test/hunter", "url = 'https://hooks.test/hunter", "url = 'a' hunter", "url 'hunter'", "url: hunter",
		"url = 'a'\nurl = 'hunter'", "url = 12345hunter", "url = ['hunter']", "url_file = 'https://hooks.test/hunter'", "timeout = 'hunter'",
		"at = 'hunter'", "proxy = ['http://me:hunter@']", "https://hooks.test/hunter", "'https://hooks.test/hunter' = true", "hunter hunter",
		"headers = { Authorization = Bearer hunter }", "headers = { Authorization = hunter }", "headers = { 'Bearer hunter' = 1 }",
		"headers = { 'Authorization: Bearer hunter' = '' }", "headers = ['hunter']", "headers = 'hunter'", "headers.Authorization = ['hunter']",
		"headers = { 'a.hunter' = 'b', 'a.hunter' = 'c' }", "headers = { X = \"hunter\\n\" }",
		"template = \"\"\"\n[imds]\n[\"log\"]\n\"\"\"\nurl = hunter",
	} {
		texts = append(texts, "[webhook]\n"+line, "[imds]\n[ webhook ] # ours\n"+line, "[log]\nlevel = 'info'\n\n[\"webhook\"]\n"+line+"\n[metrics]\n")
	}
	for _, text := range texts {
		cfg := config.Default()
		err := config.Decode("nth.toml", []byte(text), &cfg)
		if err == nil || strings.Contains(err.Error(), "hunter") {
			t.Errorf("of\n%s\nit is said: %v", text, err)
		}
	}
}

// write puts files, named relative to a new directory, in place and returns the path of the first.
func write(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i < len(files); i += 2 {
		path := filepath.Join(dir, files[i])
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(files[i+1]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, files[0])
}

func same(a, b config.Config) bool { return reflect.DeepEqual(a, b) }

func reload(t *testing.T, cfg config.Config) config.Config {
	t.Helper()
	text, again := printed(t, cfg), config.Default()
	if err := config.Decode("printed", []byte(text), &again); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return again
}

// load reads the settings at a path.
func load(t *testing.T, path string) config.Loaded[config.Config] {
	t.Helper()
	l, err := config.Load(path, true, config.Default())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestLoad_DropInsOverrideSingleKeys(t *testing.T) {
	path := write(t,
		"nth.toml", "[drain]\nmargin = \"1s\"\nprotect_empty_dir = true\n[load_balancers]\ntarget_groups = [\"all\"]\n",
		"nth.toml.d/20-b.toml", "[drain]\nmargin = \"20s\"\n[events.scheduled-maintenance]\ncodes = { other = \"now\" }\n",
		"nth.toml.d/10-a.toml", "[drain]\nmargin = \"10s\"\npod_grace_period = \"1m\"\n[load_balancers]\ntarget_groups = []\n",
		"nth.toml.d/30-c.toml", "[events.scheduled-maintenance.codes]\nsystem-reboot = \"ignore\"\n",
		"nth.toml.d/40-not-read.txt", "nonsense",
		"nth.toml.d/.50-left-by-an-editor.toml", "nonsense",
	)
	l := load(t, path)
	want := config.Default()
	want.Drain.Margin, want.Drain.ProtectEmptyDir, want.Drain.PodGracePeriod = 20*time.Second, true, time.Minute
	want.Events.ScheduledMaintenance.Codes["other"] = "now"
	want.Events.ScheduledMaintenance.Codes["system-reboot"] = "ignore"
	if !same(l.Config, want) {
		t.Errorf("got  %+v\nwant %+v", l.Config, want)
	}
	if len(l.Files) != 4 || len(l.Ignored) != 2 || l.Ignored[1] != path+".d/40-not-read.txt: its name does not end with .toml" {
		t.Errorf("read %q, ignored %q", l.Files, l.Ignored)
	}
}

func TestLoad_FaultsOfAllFilesAreOneError(t *testing.T) {
	path := write(t,
		"nth.toml", "dry_run = 1",
		"nth.toml.d/1.toml", "= what",
		"nth.toml.d/2.toml", "[log]\nlevel = \"info\"\nlevl = \"info\"",
		"nth.toml.d/3.toml/not-a-file", "",
	)
	want := strings.Join([]string{
		path + ": line 1: dry_run = 1: must be true or false",
		path + ".d/1.toml: line 1: not valid TOML; a text needs quotes, and a key or table stands once",
		path + ".d/2.toml: line 3: log.levl: unknown key; [log] has format, level",
		path + ".d/3.toml: not a regular file",
	}, "\n")
	if _, err := config.Load(path, true, config.Default()); err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

func TestLoad_FaultsInReportingAreWarnings(t *testing.T) {
	l := load(t, write(t, "nth.toml", "[log]\nlevel = 'loud'\n[webhook]\nurls = 'a'\n[metrics]\nlisten = 'here'\n[drain]\nmargin = '20s'"))
	if len(l.Warnings) != 3 || l.Config.Drain.Margin != 20*time.Second || l.Config.Log.Level != "info" || l.Config.Metrics.Listen != "" {
		t.Errorf("warnings %q, in effect is %+v", l.Warnings, l.Config)
	}
}

func TestLoad_AFileThatIsNamedMustExist(t *testing.T) {
	path, pipe := filepath.Join(t.TempDir(), "nth.toml"), filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{path: "no such file or directory", pipe: "not a regular file"} {
		if _, err := config.Load(file, true, config.Default()); err == nil || err.Error() != file+": "+want {
			t.Errorf("the error is %v", err)
		}
	}
	if l, err := config.Load(path, false, config.Default()); err != nil || !same(l.Config, config.Default()) {
		t.Errorf("without a file: %+v, %v", l.Config, err)
	}
}
