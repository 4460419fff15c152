package migration_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/migration"
)

var update = flag.Bool("update", false, "write what comes out into testdata")

// imported reads settings and writes nth's.
func imported(t *testing.T, content string) string {
	t.Helper()
	settings, err := migration.Read(strings.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := settings.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// settings loads a configuration as nth would.
func settings(t *testing.T, toml string) config.Config {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nth.toml")
	if err := os.WriteFile(path, []byte(toml), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(path)
	if err != nil {
		t.Fatalf("nth does not take what was written:\n%s\n%v", toml, err)
	}
	return cfg
}

func TestWhatPeopleHaveBecomesAFileThatNthTakes(t *testing.T) {
	t.Parallel()
	inputs, err := filepath.Glob("testdata/*.in")
	if err != nil || len(inputs) == 0 {
		t.Fatal("there is nothing in testdata", err)
	}
	for _, input := range inputs {
		t.Run(strings.TrimSuffix(filepath.Base(input), ".in"), func(t *testing.T) {
			t.Parallel()
			content, err := os.ReadFile(input)
			if err != nil {
				t.Fatal(err)
			}
			got := imported(t, string(content))
			settings(t, got)
			golden := strings.TrimSuffix(input, ".in") + ".toml"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("%s is\n%s\nwant\n%s", golden, got, want)
			}
		})
	}
}

func TestWhatWasSetMeansTheSameHere(t *testing.T) {
	t.Parallel()
	actions := func(c config.Config) []string {
		e := c.Events
		return []string{e.SpotInterruption.Action, e.RebalanceRecommendation.Action, e.ScheduledMaintenance.Action, e.ASGTermination.Action, e.Shutdown.Action}
	}
	tests := []struct {
		name, environment string
		want              []string // spot, rebalance, maintenance, group, shutdown
	}{
		{"nothing set is nth's own default", "NODE_NAME=a", []string{"drain", "notify", "drain", "drain", "drain"}},
		{"a kind is switched off", "ENABLE_SPOT_INTERRUPTION_DRAINING=false", []string{"ignore", "notify", "drain", "drain", "drain"}},
		{"recommendations are looked for", "ENABLE_REBALANCE_MONITORING=true", []string{"drain", "cordon", "drain", "drain", "drain"}},
		{"recommendations lead to a drain", "ENABLE_REBALANCE_MONITORING=true\nENABLE_REBALANCE_DRAINING=true", []string{"drain", "drain", "drain", "drain", "drain"}},
		{"nothing is ever drained", "CORDON_ONLY=true\nENABLE_REBALANCE_DRAINING=true", []string{"cordon", "cordon", "cordon", "cordon", "cordon"}},
		{"nothing is drained, and a kind is off", "CORDON_ONLY=true\nENABLE_SCHEDULED_EVENT_DRAINING=false", []string{"cordon", "notify", "ignore", "cordon", "cordon"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := actions(settings(t, imported(t, tt.environment))); !slices.Equal(got, tt.want) {
				t.Errorf("the actions are %v, want %v", got, tt.want)
			}
		})
	}
}

func TestStringsComeThroughAsTheyWere(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"plain", `{"text":"{{ .Kind }}"}`, `it's "both"`, "two\nlines\t<&>", `back\slash`, "umlaut ä, emoji ☃", "bell \a and \x7f", "''''", `"""`,
	} {
		values := "webhookTemplate: " + yamlQuote(text) + "\n"
		if got := settings(t, imported(t, values)).Webhook.Template; got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

// yamlQuote writes a string in double quotes, as YAML understands them.
func yamlQuote(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`, "\a", `\a`, "\x7f", `\x7f`).Replace(text) + `"`
}

func TestWhatCannotBeUnderstoodIsNamed(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, content, want string }{
		{"a truth", "DRY_RUN=maybe", `DRY_RUN="maybe": must be true or false`},
		{"a number", "POD_TERMINATION_GRACE_PERIOD=1m", `POD_TERMINATION_GRACE_PERIOD="1m": must be a whole number`},
		{"a port", "ENABLE_PROMETHEUS_SERVER=true\nPROMETHEUS_SERVER_PORT=http", `PROMETHEUS_SERVER_PORT="http": must be a whole number`},
		{"headers", "WEBHOOK_HEADERS=X-A: b", `WEBHOOK_HEADERS="X-A: b": must be a JSON object of strings`},
		{"headers that are no strings", `WEBHOOK_HEADERS={"X-A":1}`, `must be a JSON object of strings`},
		{"annotations", "KUBERNETES_EVENTS_EXTRA_ANNOTATIONS=a", `KUBERNETES_EVENTS_EXTRA_ANNOTATIONS="a": must be key=value pairs, with commas between them`},
		{"a level", "LOG_LEVEL=loud", `LOG_LEVEL="loud": must be debug, info or error`},
		{"two at once", "DRY_RUN=maybe\nCORDON_ONLY=perhaps", "\nDRY_RUN=\"maybe\""},
		{"nothing", "", "nothing is in there"},
		{"no YAML", "a: [", "neither NAME=value lines nor YAML"},
		{"an object without containers", "apiVersion: v1\nkind: ConfigMap\ndata: {}", "this ConfigMap has no container"},
		{"several containers", "apiVersion: v1\nkind: Pod\nspec: {containers: [{image: a}, {image: b}]}", "more than one container"},
		{"something far too big", strings.Repeat("A=b\n", 1<<19), "more than 1048576 bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			settings, err := migration.Read(strings.NewReader(tt.content))
			if err == nil {
				err = settings.Write(&bytes.Buffer{})
			}
			if err == nil || !strings.Contains("\n"+err.Error(), tt.want) {
				t.Errorf("the error is %v, want one with %q", err, tt.want)
			}
		})
	}
}

// documented is the page that tells the same to people.
const documented = "../../docs/migration.md"

func TestEverySettingIsOnThePageAboutMovingOver(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(documented)
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile("`([A-Z][A-Z0-9]*_[A-Z0-9_]*|WORKERS|NAMESPACE)`")
	var onPage []string
	for _, m := range names.FindAllSubmatch(page, -1) {
		onPage = append(onPage, string(m[1]))
	}
	for _, name := range migration.Names() {
		if !slices.Contains(onPage, name) {
			t.Errorf("%s does not name %s", documented, name)
		}
	}
	for _, name := range onPage {
		if !slices.Contains(migration.Names(), name) {
			t.Errorf("%s names %s, of which pkg/migration knows nothing", documented, name)
		}
	}
}
