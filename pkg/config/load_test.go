package config_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/event"
)

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
	var text bytes.Buffer
	if err := config.Encode(&text, cfg, nil); err != nil {
		t.Fatal(err)
	}
	again := config.Default()
	if err := config.Decode("printed", text.Bytes(), &again); err != nil {
		t.Fatalf("%v in\n%s", err, &text)
	}
	return again
}

func TestAnEmptyFileIsTheDefault(t *testing.T) {
	cfg, err := config.Usual().Load(write(t, "nth.toml", ""))
	if err != nil || !same(cfg, config.Default()) {
		t.Errorf("got %+v, %v", cfg, err)
	}
}

func TestEverySettingReachesItsPlaceAndIsPrintedBack(t *testing.T) {
	own := 30 * time.Second
	want := config.Config{
		Common: config.Common{
			DryRun:           true,
			StateDirectory:   "/var/lib/nth",
			RuntimeDirectory: "/run/nth",
			Log:              config.Log{Level: "debug", Format: "json"},
			Kubernetes: config.Kubernetes{
				Kubeconfig: `/"quoted"/kubeconfig`, Heartbeat: 7 * time.Minute, Labels: true,
			},
			Drain: config.Drain{
				ScriptsWait: 15 * time.Second,
				Margin:      6 * time.Second, PodGracePeriod: &own, ProtectEmptyDir: true,
				ProtectUnmanaged: true, RespectDoNotDisrupt: true, LoadBalancerWait: 7 * time.Second,
			},
			Webhook: config.Webhook{
				URLFile: "/url", HeadersFile: "/headers", Template: "{{ .Text }}\n", CAFile: "/ca",
				Cluster: "prod-1", At: []string{"announced", "over"},
			},
		},
		HostRoot: "/host",
		IMDS: config.IMDS{
			Endpoint: "http://127.0.0.1:1338", Interval: time.Second, WithdrawnAfter: 9 * time.Second,
			LifeCycles: []string{"spot", "on-demand"},
		},
		LoadBalancers: config.LoadBalancers{
			TargetGroups: []string{"arn:aws-cn:elasticloadbalancing:cn-north-1:123456789012:targetgroup/web/0123456789abcdef"},
		},
		Events: config.Events{
			Announced: config.Announced{
				SpotInterruption:        config.Plain{Action: "cordon"},
				RebalanceRecommendation: config.RebalanceRecommendation{Action: "drain", CordonFor: 0},
				ScheduledMaintenance: config.ScheduledMaintenance{
					Action: "notify", Lead: 10 * time.Second, HardDeadline: true,
					Codes: map[string]string{
						"instance-stop": "lead", "instance-retirement": "ignore", "system-reboot": "now", "instance-reboot": "notify",
						"system-maintenance": "now", "other": "lead",
					},
				},
				ASGTermination: config.ASGTermination{
					Action: "ignore", Budget: 11 * time.Second, OnIncomplete: "abandon",
				},
			},
			Shutdown:    config.Shutdown{Action: "notify", PowerKey: "logind"},
			Hibernation: config.Plain{Action: "ignore"},
		},
	}
	if got := reload(t, want); !same(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestDropInsOverrideSingleKeysInLexicalOrder(t *testing.T) {
	cfg, err := config.Usual().Load(write(t,
		"nth.toml", "[drain]\nmargin = \"1s\"\nprotect_empty_dir = true\n[imds]\nlife_cycles = [\"spot\"]\n",
		"nth.toml.d/20-b.toml", "[drain]\nmargin = \"20s\"\n[events.scheduled-maintenance]\ncodes = { other = \"now\" }\n",
		"nth.toml.d/10-a.toml", "[drain]\nmargin = \"10s\"\npod_grace_period = \"1m\"\n[imds]\nlife_cycles = []\n",
		"nth.toml.d/30-c.toml", "[events.scheduled-maintenance.codes]\nsystem-reboot = \"ignore\"\n",
		"nth.toml.d/40-not-read.txt", "nonsense",
		"nth.toml.d/.50-left-by-an-editor.toml", "nonsense",
	))
	if err != nil {
		t.Fatal(err)
	}
	minute := time.Minute
	want := config.Default()
	want.Drain.Margin, want.Drain.ProtectEmptyDir, want.Drain.PodGracePeriod = 20*time.Second, true, &minute
	want.Events.ScheduledMaintenance.Codes["other"] = "now"
	want.Events.ScheduledMaintenance.Codes["system-reboot"] = "ignore"
	if !same(cfg, want) {
		t.Errorf("got  %+v\nwant %+v", cfg, want)
	}
}

func TestFaultsOfAllFilesAreToldAtOnce(t *testing.T) {
	path := write(t,
		"nth.toml", "dry_run = 1",
		"nth.toml.d/1.toml", "= what",
		"nth.toml.d/2.toml", "[log]\nlevel = \"info\"\nlevl = \"info\"",
		"nth.toml.d/3.toml/not-a-file", "",
	)
	_, err := config.Usual().Load(path)
	if err == nil {
		t.Fatal("loaded")
	}
	want := strings.Join([]string{
		path + ": line 1: dry_run = 1: must be true or false",
		path + ".d/1.toml: line 1: not valid TOML; a text needs quotes, and a key or table stands once",
		path + ".d/2.toml: line 3: log.levl: unknown key, did you mean log.level?",
		path + ".d/3.toml: is a directory",
	}, "\n")
	if err.Error() != want {
		t.Errorf("got\n%s\nwant\n%s", err, want)
	}
}

// What is only told keeps nobody from working; all else is read.
func TestWhatIsWrongWithWhatIsOnlyToldDegrades(t *testing.T) {
	path := write(t, "nth.toml", "[log]\nlevel = 'loud'\n[webhook]\nurls = 'a'\n[metrics]\nlisten = 'here'\n[drain]\nmargin = '20s'")
	cfg, err := config.Usual().Load(path)
	degraded, ok := errors.AsType[config.Degraded](err)
	if !ok || len(degraded.Faults) != 3 || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("it is told as %v", err)
	}
	if cfg.Drain.Margin != 20*time.Second || cfg.Log.Level != "info" || cfg.Metrics.Listen != "" {
		t.Errorf("in effect is %+v", cfg)
	}
	if _, err := config.Usual().Load(write(t, "nth.toml", "[log]\nlevel = 'loud'\n[drain]\nmargin = '20'")); err == nil {
		t.Error("it was loaded with a wrong margin")
	} else if _, ok := errors.AsType[config.Degraded](err); ok || strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("a wrong margin is told as %v", err)
	}
}

func TestLoad_NamesTheLine(t *testing.T) {
	for text, want := range map[string]string{
		"# [drain]\n[ events.asg-termination ] # ours\n\n  budget='1'":             "line 4: events.asg-termination.budget",
		"[imds]\ninterval = '1s'\n[log]\ninterval = 1":                             "line 4: log.interval",
		"events.shutdown.action = 'off'":                                           "line 1: events.shutdown.action",
		"[events]\nshutdown = { action = 'off' }":                                  "line 2: events.shutdown.action",
		"[events.scheduled-maintenance]\ncodes = {\n  other = 'soon',\n}\n[drain]": "line 2: events.scheduled-maintenance.codes.other",
		"[webhook]\ntemplate = '''\n[log]\nlevel = 1\n'''\n[log]\nlevel = 2":       "line 7: log.level",
		"[webhook]\ntemplate = \"\"\"\n[\n]\n\"\"\"\nat = ['soon']":                "line 6: webhook.at",
		"[drian]\n": "line 1: drian: unknown key",
	} {
		path := write(t, "nth.toml", text)
		if _, err := config.Usual().Load(path); err == nil || !strings.HasPrefix(err.Error(), path+": "+want) {
			t.Errorf("of\n%s\nit is said: %v, want %s", text, err, want)
		}
	}
}

func TestOrigins_AreTheLastFileAndItsLine(t *testing.T) {
	path := write(t,
		"nth.toml", "dry_run = true\n[log]\nlevel = \"info\"\nformat = \"text\"\n[webhook]\nurl = \"http://a\"\n",
		"nth.toml.d/1.toml", "[log]\nlevel = \"debug\"\n",
		"nth.toml.d/2.toml", "[log]\nlevel = \"loud\"\n[metrics]\nlisten = \"here\"\n",
	)
	cfg, err := config.Usual().Load(path)
	if _, degraded := errors.AsType[config.Degraded](err); !degraded {
		t.Fatalf("the faults of the last file are %v", err)
	}
	var printed bytes.Buffer
	if err := config.Encode(&printed, cfg, config.Usual().Origins(path)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"dry_run = true  # " + path + ": line 1\n", "level = \"debug\"  # " + path + ".d/1.toml: line 2\n", "format = \"text\"  # " + path + ": line 4\n",
		"interval = \"500ms\"  # default\n", "listen = \"\"  # default\n", "# url is set, and not shown.  # " + path + ": line 6\n",
	} {
		if !strings.Contains(printed.String(), want) {
			t.Errorf("%q is missing:\n%s", want, &printed)
		}
	}
}

func TestAFileThatIsNamedMustExist(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nth.toml")
	if _, err := config.Usual().Load(path); err == nil || err.Error() != path+": no such file or directory" {
		t.Errorf("got %v", err)
	}
}

func TestEveryKindOfEventHasATableWithAnAction(t *testing.T) {
	actions := map[string]bool{}
	for _, table := range config.Describe(config.Default()) {
		for _, setting := range table.Settings {
			if setting.Name == "action" {
				actions[table.Name] = true
			}
		}
	}
	for _, kind := range event.Kinds() {
		if !actions["events."+string(kind)] {
			t.Errorf("nothing sets the action for %s", kind)
		}
	}
}

// A host container has its settings, and its defaults, where Bottlerocket puts them.
func TestAnotherPlaceHasItsOwnFileAndDefaults(t *testing.T) {
	place := config.Usual()
	place.File = filepath.Join(t.TempDir(), "user-data")
	place.Defaults.HostRoot = "/.bottlerocket/rootfs"
	if cfg, err := place.Load(""); err != nil || cfg.HostRoot != "/.bottlerocket/rootfs" {
		t.Errorf("without the file: host root %q, %v", cfg.HostRoot, err)
	}
	if err := os.WriteFile(place.File, []byte("dry_run = true"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := place.Load("")
	if err != nil || !cfg.DryRun || cfg.HostRoot != "/.bottlerocket/rootfs" {
		t.Errorf("with the file: dry run %t, host root %q, %v", cfg.DryRun, cfg.HostRoot, err)
	}
	other := write(t, "nth.toml", `host_root = ""`)
	if cfg, err := place.Load(other); err != nil || cfg.DryRun || cfg.HostRoot != "" {
		t.Errorf("with another file: dry run %t, host root %q, %v", cfg.DryRun, cfg.HostRoot, err)
	}
	if _, err := place.Load(place.File + ".toml"); err == nil {
		t.Error("a file that was named and is not there is no error")
	}
}
