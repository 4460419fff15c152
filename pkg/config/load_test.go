package config_test

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/config"
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
	if err := config.Encode(&text, cfg); err != nil {
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
		path + ".d/2.toml: line 3: log.levl: unknown key; [log] has format, level",
		path + ".d/3.toml: is a directory",
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

func TestLoad_AFileThatIsNamedMustBeOne(t *testing.T) {
	path, pipe := filepath.Join(t.TempDir(), "nth.toml"), filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{path: path + ": no such file or directory", pipe: pipe + ": must be a file, not a pipe"} {
		if _, err := config.Load(file, true, config.Default()); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if l, err := config.Load(path, false, config.Default()); err != nil || !same(l.Config, config.Default()) {
		t.Errorf("without a file: %+v, %v", l.Config, err)
	}
}
