package migration_test

import (
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/BurntSushi/toml"

	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/migration"
)

var update = flag.Bool("update", false, "write the results into testdata")

// queueMode is what every environment of the queue mode has.
const queueMode = "ENABLE_SQS_TERMINATION_DRAINING=true\nQUEUE_URL=https://sqs.eu-west-1.amazonaws.com/123456789012/nth\n"

// imported converts settings for nth.
func imported(t *testing.T, content string) string {
	t.Helper()
	return convert(t, false, content)
}

func convert(t *testing.T, queue bool, content string) string {
	t.Helper()
	text, err := migration.Convert([]byte(content), queue)
	if err != nil {
		t.Fatalf("%v:\n%s", err, content)
	}
	return text
}

// nthSettings reads a file as nth does, and queueSettings as nth-queue does.
func nthSettings(t *testing.T, toml string) config.Config {
	t.Helper()
	cfg := config.Default()
	if err := config.Decode("nth.toml", []byte(toml), &cfg); err != nil {
		t.Fatalf("%v:\n%s", err, toml)
	}
	return cfg
}

func queueSettings(t *testing.T, toml string) config.Queue {
	t.Helper()
	cfg := config.DefaultQueue()
	if err := config.Decode("nth-queue.toml", []byte(toml), &cfg); err != nil {
		t.Fatalf("%v:\n%s", err, toml)
	}
	return cfg
}

// pod is a Pod of the handler with the fields of its container.
func pod(container string) string {
	return "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: node-termination-handler\n    " + container + "\n"
}

// environment is a Pod of the handler with environment variables, which are lines NAME=value.
func environment(lines string) string {
	var all []string
	for line := range strings.Lines(lines) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), "=")
		all = append(all, "{name: "+name+", value: "+yamlQuote(text)+"}")
	}
	return pod("env: [" + strings.Join(all, ", ") + "]")
}

// yamlQuote writes a string in double quotes, as YAML understands them.
func yamlQuote(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\r", `\r`, "\t", `\t`, "\a", `\a`, "\x1b", `\e`, "\x7f", `\x7f`,
		"\u0085", `\N`, "\u2028", `\L`).Replace(text) + `"`
}

func TestImport_Examples(t *testing.T) {
	t.Parallel()
	inputs, err := filepath.Glob("testdata/*.in")
	if err != nil || len(inputs) == 0 {
		t.Fatal("testdata is empty", err)
	}
	for _, input := range inputs {
		t.Run(strings.TrimSuffix(filepath.Base(input), ".in"), func(t *testing.T) {
			t.Parallel()
			content, err := os.ReadFile(input)
			if err != nil {
				t.Fatal(err)
			}
			queue := strings.Contains(input, "queue")
			got := convert(t, queue, string(content))
			if queue {
				queueSettings(t, got)
			} else {
				nthSettings(t, got)
			}
			golden := strings.TrimSuffix(input, ".in") + ".toml"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if want, err := os.ReadFile(golden); err != nil || got != string(want) {
				t.Errorf("got\n%s\nwant (%v)\n%s", got, err, want)
			}
		})
	}
}

// A handler that only cordons must not become an nth that drains, wherever that was set.
func TestImport_EveryFormOfInput(t *testing.T) {
	t.Parallel()
	const variable = "{name: CORDON_ONLY, value: true}"
	for name, content := range map[string]string{
		"variable":              pod("env: [" + variable + "]"),
		"one of two containers": "kind: Pod\nspec: {containers: [{image: a}, {name: aws-node-termination-handler, env: [{name: CORDON_ONLY, value: true}]}]}",
		"Deployment":            "kind: Deployment\nspec: {template: {spec: {containers: [{env: [{name: CORDON_ONLY, value: true}]}]}}}",
		"list of objects":       "kind: List\nitems: [{kind: DaemonSet, spec: {template: {spec: {containers: [{env: [{name: CORDON_ONLY, value: true}]}]}}}}]",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := nthSettings(t, imported(t, content)).Events.SpotInterruption.Action; got != "cordon" {
				t.Errorf("the action is %q, want cordon", got)
			}
		})
	}
}

func TestImport_Actions(t *testing.T) {
	t.Parallel()
	for lines, want := range map[string][]string{ // spot, rebalance, maintenance, Auto Scaling, shutdown
		"NODE_NAME=a": {"drain", "notify", "drain", "drain", "drain"},
		"ENABLE_SPOT_INTERRUPTION_DRAINING=false":                          {"ignore", "notify", "drain", "drain", "drain"},
		"ENABLE_REBALANCE_MONITORING=true":                                 {"drain", "cordon", "drain", "drain", "drain"},
		"ENABLE_REBALANCE_MONITORING=true\nENABLE_REBALANCE_DRAINING=true": {"drain", "drain", "drain", "drain", "drain"},
		"CORDON_ONLY=true\nENABLE_REBALANCE_DRAINING=true":                 {"cordon", "cordon", "cordon", "cordon", "cordon"},
		"CORDON_ONLY=true\nENABLE_SCHEDULED_EVENT_DRAINING=false":          {"cordon", "notify", "ignore", "cordon", "cordon"},
	} {
		e := nthSettings(t, imported(t, environment(lines))).Events
		got := []string{e.SpotInterruption.Action, e.RebalanceRecommendation.Action, e.ScheduledMaintenance.Action, e.ASGTermination.Action, e.Shutdown.Action}
		if !slices.Equal(got, want) {
			t.Errorf("of %q, the actions are %v, want %v", lines, got, want)
		}
	}
}

// Also for kinds of events that the handler does not know.
func TestImport_CordonOnlyDrainsForNoEvent(t *testing.T) {
	t.Parallel()
	for _, events := range []any{
		nthSettings(t, imported(t, environment("CORDON_ONLY=true"))).Events,
		queueSettings(t, convert(t, true, environment(queueMode+"CORDON_ONLY=true"))).Events,
	} {
		of := reflect.ValueOf(events)
		for i := range of.NumField() {
			if of.Field(i).FieldByName("Action").String() == "drain" {
				t.Errorf("%s: drain", of.Type().Field(i).Name)
			}
		}
	}
}

func TestImport_QueueMode(t *testing.T) {
	t.Parallel()
	const tag = "aws-node-termination-handler/managed"
	for more, want := range map[string]struct{ tag, rebalance string }{
		"":                                    {tag, "drain"},
		"ENABLE_REBALANCE_DRAINING=false":     {tag, "drain"},
		"CORDON_ONLY=true":                    {tag, "cordon"},
		"MANAGED_TAG=a\nMANAGED_ASG_TAG=b":    {"a", "drain"},
		"MANAGED_ASG_TAG=b":                   {"b", "drain"},
		"CHECK_TAG_BEFORE_DRAINING=false":     {"", "drain"},
		"CHECK_ASG_TAG_BEFORE_DRAINING=false": {"", "drain"},
		"CHECK_TAG_BEFORE_DRAINING=true\nCHECK_ASG_TAG_BEFORE_DRAINING=false": {tag, "drain"},
	} {
		cfg := queueSettings(t, convert(t, true, environment(queueMode+more)))
		if got := cfg.Events.RebalanceRecommendation.Action; got != want.rebalance || cfg.Fleet.ManagedTag != want.tag {
			t.Errorf("with %q: action %q and tag %q, want %+v", more, got, cfg.Fleet.ManagedTag, want)
		}
	}
}

func TestImport_TextsComeThroughUnchanged(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"plain", `{"text":"{{ .Kind }}"}`, `it's "both"`, "two\nlines\t<&>", `back\slash`, "umlaut ä, emoji ☃", "bell \a and \x7f", "''''", `"""`,
	} {
		if got := nthSettings(t, imported(t, pod("env: [{name: WEBHOOK_TEMPLATE, value: "+yamlQuote(text)+"}]"))).Webhook.Template; got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func TestImport_RefusesWrongInput(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		content, want string
		queue         bool
	}{
		"not a boolean":        {content: environment("DRY_RUN=maybe"), want: `DRY_RUN = "maybe": must be true or false`},
		"not a number":         {content: environment("POD_TERMINATION_GRACE_PERIOD=1m"), want: `POD_TERMINATION_GRACE_PERIOD = "1m": must be a whole number`},
		"URL at a wrong place": {content: environment("LOG_LEVEL=https://hooks.example.com/hunter2"), want: "LOG_LEVEL = (not shown): must be debug"},
		"URL with a password":  {content: environment("WEBHOOK_PROXY=http://me:hunter2@[a"), want: "WEBHOOK_PROXY = (not shown): must be a URL without a password"},
		"workers":              {content: environment(queueMode + "WORKERS=many\nDRY_RUN=maybe"), want: "WORKERS = \"many\": must be a whole number\nDRY_RUN = ", queue: true},
		"tag":                  {content: environment(queueMode + "CHECK_TAG_BEFORE_DRAINING=maybe"), want: "must be true or false", queue: true},
		"queue mode for nth":   {content: environment(queueMode), want: `"nth-queue config import"`},
		"nth for queue mode":   {content: environment("DRY_RUN=true"), want: `"nth config import"`, queue: true},
		"empty":                {content: "---\n# a comment\n", want: "the input must be the manifest"},
		"not YAML":             {content: "a: [hunter2", want: "line 1: the input must be a YAML manifest"},
		"wrong type":           {content: "kind: Pod\nspec: {containers: hunter2}", want: "line 2: the input must be a YAML manifest"},
		"values of the chart":  {content: "webhookURL: hunter2", want: "the input must be the manifest"},
		"no container":         {content: "apiVersion: v1\nkind: ConfigMap\ndata: {}", want: "with one container"},
		"two containers":       {content: "kind: Pod\nspec: {containers: [{image: a}, {image: b}]}", want: "with one container"},
		"arguments":            {content: pod("args: [--cordon-only]"), want: "the container has a command or arguments"},
		"envFrom":              {content: pod("envFrom: [{configMapRef: {name: a}}]"), want: "the container has envFrom"},
		"not UTF-8":            {content: "a: \xff", want: "the input must be a YAML manifest"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := migration.Convert([]byte(test.content), test.queue)
			if err == nil || !strings.Contains("\n"+err.Error(), test.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error is %v, want %q", err, test.want)
			}
		})
	}
}

func TestImport_NamesWhatItDoesNotConvert(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		environment("SOME_VARIABLE=hunter2"):                                                "#   SOME_VARIABLE\n",
		environment("GRACE_PERIOD=30"):                                                      "#   GRACE_PERIOD\n",
		environment("CORDON_ONLY=false"):                                                    "CORDON_ONLY: nothing is set for this value",
		environment("WEBHOOK_URL=https://a.example.com/hunter2"):                            "# From WEBHOOK_URL. Put the URL into this file",
		environment(`WEBHOOK_HEADERS={"Authorization":"Bearer hunter2"}`):                   `headers_file = "/etc/nth/webhook-headers"`,
		pod("env: [{name: LOG_LEVEL, valueFrom: {secretKeyRef: {name: a, key: b}}}]"):       "LOG_LEVEL: its value is not in the manifest",
		pod("env: [{name: LOG_LEVEL, valueFrom: {fieldRef: {fieldPath: a}}}]"):              "LOG_LEVEL: its value is not in the manifest",
		pod("env: [{name: PROMETHEUS_SERVER_PORT, valueFrom: {fieldRef: {fieldPath: a}}}]"): "PROMETHEUS_SERVER_PORT: its value is not in the manifest",
		pod("env: [{name: WEBHOOK_TEMPLATE, value: $(PLACE)-1}]"):                           "WEBHOOK_TEMPLATE: its value is not in the manifest",
	} {
		text := imported(t, content)
		if !strings.Contains(text, want) || strings.Contains(text, "hunter") {
			t.Errorf("of\n%s\nwant %q and no secret:\n%s", content, want, text)
		}
		if at := nthSettings(t, text).Webhook.At; strings.Contains(text, "url_file") && !slices.Equal(at, []string{"ended"}) {
			t.Errorf("of\n%s\nthe webhook posts more than once for an event: %q", content, at)
		}
	}
}

// Text from the input ends up in comments of a file that nth reads.
func TestImport_CommentsStayComments(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"a\ndry_run = true\n#", "a\rdry_run = true", "a\a\x1b[2J\x7f", "a\u0085dry_run = true", "a\u2028dry_run = true\u202e", strings.Repeat("a☃", 200)} {
		quoted := yamlQuote(text)
		for place, content := range map[string]string{
			"Secret":   pod("env: [{name: LOG_LEVEL, valueFrom: {secretKeyRef: {name: " + quoted + "}}}]"),
			"variable": pod("env: [{name: " + quoted + ", value: a}]"),
		} {
			got := imported(t, content)
			if cfg := nthSettings(t, got); cfg.DryRun || !utf8.ValidString(got) || strings.ContainsAny(got, "\r\a\x1b\u0085\u2028\u202e") {
				t.Errorf("%s: of %q becomes\n%q", place, text, got)
			}
		}
	}
}

// The result is always TOML, and the same each time.
func FuzzConvert(f *testing.F) {
	inputs, err := filepath.Glob("testdata/*.in")
	if err != nil || len(inputs) == 0 {
		f.Fatal("testdata is empty", err)
	}
	for _, input := range inputs {
		content, err := os.ReadFile(input)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content)
	}
	f.Add([]byte(environment("WEBHOOK_TEMPLATE=a\nLOG_LEVEL=$(A)")))
	f.Add([]byte(pod(`args: ["--webhook-url=$(A)", -x, "$$", "--=", "--log-level="]`)))
	f.Fuzz(func(t *testing.T, content []byte) {
		for _, queue := range []bool{false, true} {
			var before string
			for range 3 {
				text, err := migration.Convert(content, queue)
				got := text
				if err != nil {
					got = err.Error()
				}
				if before != "" && got != before {
					t.Fatalf("first\n%s\nthen\n%s", before, got)
				}
				before = got
				if _, err := toml.Decode(text, &map[string]any{}); err != nil {
					t.Fatalf("%v:\n%s", err, text)
				}
			}
		}
	})
}
