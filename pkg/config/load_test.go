package config_test

import (
	"bytes"
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

// load reads the settings at a path.
func load(t *testing.T, path string) config.Loaded[config.Config] {
	t.Helper()
	l, err := config.Usual().Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestEncode_EverySettingIsReadAgain(t *testing.T) {
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

func TestLoad_DropInsOverrideSingleKeys(t *testing.T) {
	path := write(t,
		"nth.toml", "[drain]\nmargin = \"1s\"\nprotect_empty_dir = true\n[imds]\nlife_cycles = [\"spot\"]\n",
		"nth.toml.d/20-b.toml", "[drain]\nmargin = \"20s\"\n[events.scheduled-maintenance]\ncodes = { other = \"now\" }\n",
		"nth.toml.d/10-a.toml", "[drain]\nmargin = \"10s\"\npod_grace_period = \"1m\"\n[imds]\nlife_cycles = []\n",
		"nth.toml.d/30-c.toml", "[events.scheduled-maintenance.codes]\nsystem-reboot = \"ignore\"\n",
		"nth.toml.d/40-not-read.txt", "nonsense",
		"nth.toml.d/.50-left-by-an-editor.toml", "nonsense",
	)
	l := load(t, path)
	minute := time.Minute
	want := config.Default()
	want.Drain.Margin, want.Drain.ProtectEmptyDir, want.Drain.PodGracePeriod = 20*time.Second, true, &minute
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
		path + ".d/2.toml: line 3: log.levl: unknown key, did you mean log.level?",
		path + ".d/3.toml: is a directory",
	}, "\n")
	if _, err := config.Usual().Load(path); err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

func TestLoad_FaultsInReportingAreWarnings(t *testing.T) {
	l := load(t, write(t, "nth.toml", "[log]\nlevel = 'loud'\n[webhook]\nurls = 'a'\n[metrics]\nlisten = 'here'\n[drain]\nmargin = '20s'"))
	if len(l.Warnings) != 3 || l.Config.Drain.Margin != 20*time.Second || l.Config.Log.Level != "info" || l.Config.Metrics.Listen != "" {
		t.Errorf("warnings %q, in effect is %+v", l.Warnings, l.Config)
	}
}

func TestLoad_OriginsAreTheLastFileAndItsLine(t *testing.T) {
	path := write(t,
		"nth.toml", "dry_run = true\n[log]\nlevel = \"info\"\nformat = \"text\"\n[webhook]\nurl = \"http://a\"\n",
		"nth.toml.d/1.toml", "[log]\nlevel = \"debug\"\n",
		"nth.toml.d/2.toml", "[log]\nlevel = \"loud\"\n[metrics]\nlisten = \"here\"\n",
	)
	l := load(t, path)
	var printed bytes.Buffer
	if err := config.Encode(&printed, l.Config, l.Origins); err != nil {
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

func TestLoad_AFileThatIsNamedMustExist(t *testing.T) {
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

func TestLoad_AnotherPlaceHasItsOwnFileAndDefaults(t *testing.T) {
	place := config.Usual()
	place.File = filepath.Join(t.TempDir(), "user-data")
	place.Defaults.HostRoot = "/.bottlerocket/rootfs"
	for _, text := range []string{"", "dry_run = true"} {
		if text != "" {
			if err := os.WriteFile(place.File, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if l, err := place.Load(""); err != nil || l.Config.DryRun != (text != "") || l.Config.HostRoot != "/.bottlerocket/rootfs" {
			t.Errorf("with %q: %+v, %v", text, l.Config, err)
		}
	}
}
