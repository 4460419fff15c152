package migration_test

import (
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/migration"
)

var update = flag.Bool("update", false, "write what comes out into testdata")

// into reads settings and makes a file of them.
func into(t *testing.T, target migration.Target, content string) migration.Result {
	t.Helper()
	settings, err := migration.Read(strings.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	result, err := settings.For(target)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// imported are settings as nth's.
func imported(t *testing.T, content string) string {
	t.Helper()
	return into(t, migration.Target{Secrets: "/etc/nth/secret"}, content).Text
}

// settings loads a configuration as nth would.
func settings(t *testing.T, toml string) config.Config {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nth.toml")
	if err := os.WriteFile(path, []byte(toml), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Usual().Load(path)
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
			target := migration.Target{Queue: strings.Contains(input, "queue"), Secrets: "/etc/nth/secret"}
			got := into(t, target, string(content)).Text
			if cfg := config.DefaultQueue(); target.Queue {
				if err := config.Decode("nth-queue.toml", []byte(got), &cfg); err != nil {
					t.Errorf("nth-queue does not take what was written:\n%s\n%v", got, err)
				}
			} else {
				settings(t, got)
			}
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

// Also for what is new here, and for kinds of events that are yet to come.
func TestNothingIsDrainedWhereNothingWas(t *testing.T) {
	t.Parallel()
	judge := func(events any) {
		of := reflect.ValueOf(events)
		for i := range of.NumField() {
			if action := of.Field(i).FieldByName("Action").String(); action == "drain" {
				t.Errorf("%s leads to a %s", of.Type().Field(i).Name, action)
			}
		}
	}
	judge(settings(t, imported(t, "CORDON_ONLY=true")).Events)
	cfg := config.DefaultQueue()
	text := into(t, migration.Target{Queue: true}, "CORDON_ONLY=true\nENABLE_SQS_TERMINATION_DRAINING=true\nQUEUE_URL=https://sqs.eu-west-1.amazonaws.com/1/a").Text
	if err := config.Decode("a", []byte(text), &cfg); err != nil {
		t.Fatal(err)
	}
	judge(cfg.Events)
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
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\r", `\r`, "\t", `\t`, "\a", `\a`, "\x00", `\0`, "\x1b", `\e`, "\x7f", `\x7f`,
		"\u0085", `\N`, "\u2028", `\L`).Replace(text) + `"`
}

func TestWhatCannotBeUnderstoodIsNamed(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, content, want string }{
		{"a truth", "DRY_RUN=maybe", `DRY_RUN="maybe": must be true or false`},
		{"a number", "POD_TERMINATION_GRACE_PERIOD=1m", `POD_TERMINATION_GRACE_PERIOD="1m": must be a whole number`},
		{"a port", "ENABLE_PROMETHEUS_SERVER=true\nPROMETHEUS_SERVER_PORT=http", `PROMETHEUS_SERVER_PORT="http": must be a whole number`},
		{"headers", "WEBHOOK_HEADERS=X-A: b", `WEBHOOK_HEADERS=(not shown): must be a JSON object of strings`},
		{"a header's name", `WEBHOOK_HEADERS={"X A":"hunter2"}`, "WEBHOOK_HEADERS=(not shown): one of the names is none"},
		{"a header as one text", `WEBHOOK_HEADERS={"Authorization: Bearer hunter2":""}`, "WEBHOOK_HEADERS=(not shown): one of the names is none"},
		{"an address in the wrong place", "LOG_LEVEL=https://hooks.example.com/hunter2", "LOG_LEVEL=(not shown): must be debug"},
		{"a flag as a flag's value", pod("args: [--dry-run, --log-level, --webhook-url=https://hooks.example.com/hunter2]"), "LOG_LEVEL=(not shown): must be debug"},
		{"an address with a password", "INSTANCE_METADATA_URL=http://me:hunter2@a", "INSTANCE_METADATA_URL=(not shown): must be a URL without a password"},
		{"one that cannot be read", "AWS_ENDPOINT=http://me:hunter2@[a", "AWS_ENDPOINT=(not shown): must be a URL without a password"},
		{"what is no text", "WEBHOOK_TEMPLATE=\"\x80\"", "WEBHOOK_TEMPLATE=(not shown): must be UTF-8"},
		{"a long value", "DRY_RUN=" + strings.Repeat("a", 70), `DRY_RUN="` + strings.Repeat("a", 60) + `…": must be`},
		{"a password that YAML takes for an alias", "webhookProxy: *hunter2", "unknown anchor (not shown)"},
		{"no key", "webhookURL:\n  ~: hunter2", "unsupported map key"},
		{"a table as a key", "? {hunter2: hunter2}\n: hunter2", "map key"},
		{"something else than a container", "kind: Pod\nspec: {containers: hunter2}", "this Pod cannot be understood"},
		{"a header of two lines", `WEBHOOK_HEADERS={"X-A":"a\nhunter2"}`, `WEBHOOK_HEADERS=(not shown): the value of "X-A" must be`},
		{"an address", "WEBHOOK_URL=hooks.example.com/hunter2", `WEBHOOK_URL=(not shown): must be a URL that begins with`},
		{"an address without a host", "WEBHOOK_URL=http://:80/", `WEBHOOK_URL=(not shown): must be a URL that begins with`},
		{"a proxy", "WEBHOOK_PROXY=hunter2", `WEBHOOK_PROXY=(not shown): must be a URL such as`},
		{"the queue mode", "ENABLE_SQS_TERMINATION_DRAINING=true\nQUEUE_URL=https://sqs.eu-west-1.amazonaws.com/1/a", `"nth-queue config import" takes them over`},
		{"a flag whose value is empty", pod(`args: [--dry-run=]`), "the flag --dry-run has an empty value"},
		{"a flag without its value", pod(`args: [--log-level]`), "the flag --log-level has no value"},
		{"headers that are no strings", `WEBHOOK_HEADERS={"X-A":1}`, `must be a JSON object of strings`},
		{"annotations", "KUBERNETES_EVENTS_EXTRA_ANNOTATIONS=a", `KUBERNETES_EVENTS_EXTRA_ANNOTATIONS="a": must be key=value pairs, with commas between them`},
		{"a level", "LOG_LEVEL=loud", `LOG_LEVEL="loud": must be debug, info or error`},
		{"two at once", "DRY_RUN=maybe\nCORDON_ONLY=perhaps", "\nDRY_RUN=\"maybe\""},
		{"nothing", "", "nothing is in there"},
		{"nothing behind a line", "---\n", "nothing is in there"},
		{"a comment behind a line", "--- # nothing\n", "nothing is in there"},
		{"no YAML", "a: [", "neither NAME=value lines nor YAML"},
		{"an object without containers", "apiVersion: v1\nkind: ConfigMap\ndata: {}", "this ConfigMap has no container"},
		{"several containers", "apiVersion: v1\nkind: Pod\nspec: {containers: [{image: a}, {image: b}]}", "more than one container"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			settings, err := migration.Read(strings.NewReader(tt.content))
			if err == nil {
				_, err = settings.For(migration.Target{})
			}
			if err == nil || !strings.Contains("\n"+err.Error(), tt.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error is %v, want one with %q, and no secret", err, tt.want)
			}
		})
	}
}

// endless is a file of any length.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func TestALongFileIsReadAndAnEndlessOneIsNot(t *testing.T) {
	t.Parallel()
	beside := "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: dashboard}\ndata: {a: " + strings.Repeat("a", 2<<20) + "}\n"
	if got := settings(t, imported(t, pod("args: [--dry-run]")+beside)); !got.DryRun {
		t.Error("of what stands beside a long object, nothing was read")
	}
	_, err := migration.Read(endless{})
	if err == nil || !strings.Contains(err.Error(), "more than 64 MiB (67108864 bytes)") {
		t.Errorf("of an endless file it is said %v", err)
	}
}

// pod is the handler's, with what is set of its container.
func pod(container string) string {
	return "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: node-termination-handler\n    " + container + "\n"
}

// A cordon-only handler must not become an nth that drains, wherever that was set.
func TestASettingCountsWhereverItStands(t *testing.T) {
	t.Parallel()
	configMap := "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {CORDON_ONLY: \"true\", flag: \"true\"}\n"
	for name, content := range map[string]string{
		"an environment":                        "CORDON_ONLY=true",
		"an environment with other names":       "_=/usr/bin/env\nhttp_proxy=\nCORDON_ONLY=true",
		"what the kernel tells of a process":    "WEBHOOK_TEMPLATE={\n\"a\":1}\x00LOG_LEVEL=error\x00CORDON_ONLY=true\x00",
		"a value of the chart":                  "cordonOnly: true",
		"a value of a chart that depends on it": "aws-node-termination-handler: {cordonOnly: true}\ndryRun: true\ncordonOnly: false",
		"an extra one of the chart":             "extraEnv: [{name: CORDON_ONLY, value: \"true\"}]",
		"a variable":                            pod(`env: [{name: CORDON_ONLY, value: "true"}]`),
		"a flag":                                pod(`args: [--cordon-only=true]`),
		"a flag of one dash":                    pod(`args: [-cordon-only]`),
		"a flag of the command":                 pod(`command: [/node-termination-handler, --cordon-only]`),
		"a flag behind one that takes a value":  pod(`args: [--nope, some, --cordon-only]`),
		"a flag behind the handler's name":      pod(`command: [tini, --, /node-termination-handler]` + "\n    args: [--cordon-only]"),
		"a flag before its name as a value":     pod(`args: [--cordon-only, --pod-name, node-termination-handler]`),
		"a container of its name":               "kind: Pod\nspec: {containers: [{image: a}, {image: b, name: aws-node-termination-handler, args: [--cordon-only]}]}",
		"a flag before a variable":              pod("args: [--cordon-only]\n    env: [{name: CORDON_ONLY, value: \"false\"}]"),
		"a flag that names a variable":          pod("args: [--cordon-only=$(ONLY)]\n    env: [{name: ONLY, value: \"true\"}]"),
		"a flag that names a ConfigMap's key":   pod("args: [--cordon-only=$(flag)]\n    envFrom: [{configMapRef: {name: a}}]") + configMap,
		"a ConfigMap":                           pod("envFrom: [{configMapRef: {name: a}}]") + configMap,
		"a ConfigMap before it":                 strings.TrimPrefix(configMap, "---\n") + "---\n" + pod("envFrom: [{configMapRef: {name: a}}]"),
		"a key of a ConfigMap":                  pod("env: [{name: CORDON_ONLY, valueFrom: {configMapKeyRef: {name: a, key: flag}}}]") + configMap,
		"a value behind a line ---":             "---\ncordonOnly: true",
		"a value behind a comment":              "--- # values\r\ncordonOnly: true\r\n",
		"a value on the line ---":               "dryRun: true\n--- {cordonOnly: true}\n",
		"an object behind a line ---":           "---\n" + pod(`args: [--cordon-only]`),
		"an object whose kind comes first":      "---\nkind: Pod\nspec: {containers: [{args: [--cordon-only]}]}",
		"a ConfigMap whose kind comes first": pod("envFrom: [{configMapRef: {name: a}}]") +
			"---\nkind: ConfigMap\nmetadata: {name: a}\ndata: {CORDON_ONLY: \"true\"}\n",
		"a variable behind a ConfigMap": pod("envFrom: [{configMapRef: {name: a}}]\n    env: [{name: CORDON_ONLY, value: \"1\"}]") + configMap,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := settings(t, imported(t, content)).Events.SpotInterruption.Action; got != "cordon" {
				t.Errorf("a spot interruption leads to %s, want a cordon", got)
			}
		})
	}
}

// The pod has one value for each variable, and the handler takes an empty one for none.
func TestTheLastWordOnASettingCounts(t *testing.T) {
	t.Parallel()
	const again = "it is set more than once"
	level := func(values ...string) string {
		var list []string
		for _, v := range values {
			list = append(list, "{name: LOG_LEVEL, value: '"+v+"'}")
		}
		return "env: [" + strings.Join(list, ", ") + "]"
	}
	const from = "env: [{name: LOG_LEVEL, value: debug}, {name: LOG_LEVEL, valueFrom: {secretKeyRef: {name: b, key: c}}}]"
	configMap := "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {LOG_LEVEL: debug}\n"
	tests := []struct{ name, content, level, told string }{
		{"a variable twice", pod(level("debug", "error")), "error", again},
		{"a variable twice, alike", pod(level("debug", "debug")), "debug", ""},
		{"a variable that is empty then", pod(level("debug", "")), "info", again},
		{"a variable that was empty", pod(level("", "debug")), "debug", ""},
		{"a line twice", "LOG_LEVEL=debug\nLOG_LEVEL=error\n", "error", again},
		{"a line that is empty then", "LOG_LEVEL=debug\nLOG_LEVEL=\n", "info", again},
		{"a variable beside a ConfigMap", pod("envFrom: [{configMapRef: {name: a}}]\n    "+level("")) + configMap, "info", again},
		{"a flag before a variable", pod("args: [--log-level=error]\n    " + level("debug")), "error", again},
		{"an empty flag", pod("args: [--log-level=]\n    " + level("debug")), "info", again},
		{"a flag twice", pod("args: [--log-level=debug, --log-level, error]"), "error", again},
		{"a Secret behind a text", pod(from), "info", "LOG_LEVEL comes from the Secret b"},
		{"a flag before a Secret", pod("args: [--log-level=error]\n    " + from), "error", again},
		{"extraEnv behind a value", "logLevel: debug\nextraEnv: [{name: LOG_LEVEL, value: error}]", "error", again},
		{"an empty extraEnv behind a value", "logLevel: debug\nextraEnv: [{name: LOG_LEVEL, value: ''}]", "info", again},
		{"an optional key that is not there", pod("envFrom: [{configMapRef: {name: a}}]\n    env: [{name: LOG_LEVEL, valueFrom: "+
			"{configMapKeyRef: {name: a, key: b, optional: true}}}]") + configMap, "debug", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for range 10 { // There are maps on the way.
				text := imported(t, tt.content)
				if got := settings(t, text).Log.Level; got != tt.level || !strings.Contains(text, tt.told) || tt.told == "" && strings.Contains(text, again) {
					t.Fatalf("the level is %q, want %q and a word %q:\n%s", got, tt.level, tt.told, text)
				}
			}
		})
	}
}

func TestAnObjectIsTheOneOfThePodsNamespace(t *testing.T) {
	t.Parallel()
	object := func(namespace, level string) string {
		return "---\nkind: ConfigMap\nmetadata: {name: a, namespace: " + namespace + "}\ndata: {LOG_LEVEL: " + level + "}\n"
	}
	in := func(namespace string) string {
		return "kind: Pod\nmetadata: {namespace: " + namespace + "}\nspec: {containers: [{envFrom: [{configMapRef: {name: a}}]}]}\n"
	}
	for content, want := range map[string]string{
		in("here") + object("here", "debug") + object("there", "error"):        "debug",
		in("here") + object("there", "error") + object("here", "debug"):        "debug",
		object("''", "error") + "---\n" + in("here") + object("here", "debug"): "debug",
		in("here") + object("''", "debug"):                                     "debug",
		in("''") + object("here", "debug"):                                     "debug",
		in("here") + object("there", "error"):                                  "info",
		in("''") + object("here", "debug") + object("there", "error"):          "info",
	} {
		text := imported(t, content)
		if got := settings(t, text).Log.Level; got != want || (got == "info") != strings.Contains(text, "the ConfigMap a: sets what stands in it") {
			t.Errorf("of\n%s\nthe level is %q, want %q:\n%s", content, got, want, text)
		}
	}
}

// As the kubelet does: https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/
func TestReferencesToVariablesAreWhatTheyAreInThePod(t *testing.T) {
	t.Parallel()
	env := func(list string) string { return pod("env: [" + list + "]") }
	const one = "{name: ONE, value: eu}, "
	for content, want := range map[string]string{
		env(one + `{name: AWS_REGION, value: $(ONE)-west-1}`):                                                     "eu-west-1",
		env(`{name: AWS_REGION, value: eu-west-1}, {name: AWS_REGION, value: $(AWS_REGION)}`):                     "eu-west-1",
		env(one + `{name: TWO, value: $(ONE)-west}, {name: ONE, value: us}, {name: AWS_REGION, value: $(TWO)-1}`): "eu-west-1",
		"extraEnv: [" + one + "{name: AWS_REGION, value: $(ONE)-west-1}]":                                         "eu-west-1",
		"awsRegion: eu-west-1\nextraEnv: [{name: AWS_REGION, value: $(AWS_REGION)}]":                              "eu-west-1",
		pod("args: [--aws-region=$(ONE)-west-1]\n    env: [{name: ONE, value: us}, {name: ONE, value: eu}]"):      "eu-west-1",
		pod("args: [--aws-region, $(ONE)-west-1]\n    env: [{name: ONE, value: eu}]"):                             "eu-west-1",
		pod("args: [$(FLAG)]\n    env: [{name: FLAG, value: --aws-region=eu-west-1}]"):                            "eu-west-1",
		pod("env: [{name: AWS_REGION, value: $(key)-west-1}]\n    envFrom: [{configMapRef: {name: a}}]") +
			"---\nkind: ConfigMap\nmetadata: {name: a}\ndata: {key: eu}\n": "eu-west-1",
		"AWS_REGION=eu-west-1": "eu-west-1", // An environment is what came of it.
	} {
		text := imported(t, content)
		if got := settings(t, text).AWS.Region; got != want {
			t.Errorf("of\n%s\nthe region is %q, want %q:\n%s", content, got, want, text)
		}
	}
	for content, want := range map[string]string{
		env(one + `{name: WEBHOOK_TEMPLATE, value: "$(ONE) $$(ONE) $$$(ONE) $ONE $(ONE $$"}`): "eu $(ONE) $eu $ONE $(ONE $",
		env(`{name: WEBHOOK_TEMPLATE, value: "$(ONE) $(curl -s a)"}, {name: ONE, value: eu}`): "$(ONE) $(curl -s a)",
		"webhookTemplate: costs $$5 $(TEAM)":                                                  "costs $5 $(TEAM)",
		"WEBHOOK_TEMPLATE=$$(ONE)":                                                            "$$(ONE)",
	} {
		text := imported(t, content)
		if got := settings(t, text).Webhook.Template; got != want {
			t.Errorf("of\n%s\nthe template is %q, want %q", content, got, want)
		}
		told := strings.Contains(text, "stands in it as it is")
		if bare := strings.Contains(want, "$(ONE) $(c") || strings.Contains(want, "$(TEAM)"); told != bare || strings.Contains(text, "$(curl -s a) stands") {
			t.Errorf("of\n%s\nit is said\n%s", content, text)
		}
	}
}

func TestTheNewerOfTwoSettingsCounts(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		"GRACE_PERIOD=30": "30s",
		"GRACE_PERIOD=30\nPOD_TERMINATION_GRACE_PERIOD=60":                             "1m0s",
		"GRACE_PERIOD=30\nPOD_TERMINATION_GRACE_PERIOD=-1":                             "",
		"gracePeriod: 30\nextraEnv: [{name: POD_TERMINATION_GRACE_PERIOD, value: -1}]": "",
	} {
		got := ""
		if grace := settings(t, imported(t, content)).Drain.PodGracePeriod; grace != nil {
			got = grace.String()
		}
		if got != want {
			t.Errorf("of %q, the grace period is %q, want %q", content, got, want)
		}
	}
}

// The chart asks for an object of the cluster before it looks at the value beside it, and the handler for a file before a text.
func TestOfWhatSaysTheSameTheWebhookHasWhatTheHandlerHad(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		"webhookURL: https://hooks.example.com/a\nwebhookURLSecretName: b":                       "WEBHOOK_URL comes from the Secret b",
		"webhookTemplate: '{}'\nwebhookTemplateConfigMapName: a\nwebhookTemplateConfigMapKey: b": "WEBHOOK_TEMPLATE_FILE, from the ConfigMap a: copy the template",
		"WEBHOOK_TEMPLATE={}\nWEBHOOK_TEMPLATE_FILE=/a":                                          "WEBHOOK_TEMPLATE: WEBHOOK_TEMPLATE_FILE goes before it",
		"webhookTemplateConfigMapKey: b":                                                         "one does not count without the other",
		"webhookTemplateConfigMapName: b":                                                        "one does not count without the other",
	} {
		result := into(t, migration.Target{Secrets: "/s"}, content)
		if w := settings(t, result.Text).Webhook; w.Template+w.URLFile != "" || !strings.Contains(result.Text, want) {
			t.Errorf("of\n%s\nbecomes, without %q,\n%s", content, want, result.Text)
		}
	}
	for content, want := range map[string]string{
		"webhookTemplate: a\nwebhookTemplateConfigMapName: b": "a", "webhookTemplate: a\nwebhookTemplateConfigMapKey: b": "a",
	} {
		if got := settings(t, imported(t, content)).Webhook.Template; got != want {
			t.Errorf("of %q, the template is %q, want %q", content, got, want)
		}
	}
}

// What nobody can know here is named, and not taken for nothing.
func TestWhatIsNotInTheFileIsNamed(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		pod("envFrom: [{secretRef: {name: b}}]"): "the Secret b: sets what stands in it",
		pod("args: [--cordon-only=$(ONLY)]"):     "CORDON_ONLY comes from the variable $(ONLY), which is not in this file",
		pod("args: [--cordon-only=$(ONLY)]\n    env: [{name: ONLY, valueFrom: {secretKeyRef: {name: b, key: c}}}]"): "CORDON_ONLY comes from the variable $(ONLY)",
		pod("env: [{name: WEBHOOK_URL, valueFrom: {secretKeyRef: {name: b, key: c}}}]"):                             "WEBHOOK_URL comes from the Secret b",
		pod("args: [--nope=1]"):                 "the flag --nope: not a setting",
		"webhookURLSecretName: b":               "WEBHOOK_URL comes from the Secret b",
		"extraEnv: {NAME: value}":               "extraEnv, which is no list of variables",
		"enableNothing: true":                   "enableNothing: not a setting",
		"nodeSelector: {a: b}\nimage: {tag: a}": "nodeSelector: there, the pod is on some nodes only",
		"kind: Pod\nspec: {containers: [{}], nodeSelector: {a: b}, affinity: {nodeAffinity: {}}}": "nodeSelector, affinity: there, the pod is on some nodes only",
		"aws-node-termination-handler: {}\ndryRun: true":                                          "values beside aws-node-termination-handler: they are another chart's",
		"kind: \"\"\napiVersion: v1":                                                              "apiVersion: not a setting",
		pod("args: []") + "---\ncordonOnly: true":                                                 "a document without a kind: not a setting",
	} {
		text := imported(t, content)
		if !strings.Contains(text, want) || strings.Contains(text, "hunter2") {
			t.Errorf("of\n%s\nit is said\n%s\nand not %q", content, text, want)
		}
		if strings.Contains(want, "WEBHOOK_URL") && settings(t, text).Webhook.AtDetection {
			t.Errorf("of\n%s\nthe webhook posts more than once for an event", content)
		}
	}
}

// What stands there may hold anything, and ends up in comments of a file that nth reads.
func TestACommentIsOneWhateverItRepeats(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"a\ndry_run = true\n#", "a\rdry_run = true", "a\x00\x07\x1b[2J\x7f", "a\u0085dry_run = true", "a\u2028dry_run = true\u202e",
		strings.Repeat("a", 59) + strings.Repeat("ä☃", 30), strings.Repeat("a", 100),
	} {
		quoted := yamlQuote(text)
		for place, content := range map[string]string{
			"a value":                 "probesServerEndpoint: " + quoted,
			"a value's name":          quoted + ": a",
			"a Secret's name":         "webhookURLSecretName: " + quoted,
			"a variable's name":       pod("env: [{name: " + quoted + ", value: a}]"),
			"the name of a source":    pod("envFrom: [{configMapRef: {name: " + quoted + "}}]"),
			"the name of a key":       pod("env: [{name: WEBHOOK_HEADERS, valueFrom: {secretKeyRef: {name: " + quoted + ", key: a}}}]"),
			"a field":                 pod("env: [{name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: " + quoted + "}}}]"),
			"a flag":                  pod("args: [" + yamlQuote("--"+text) + "]"),
			"a flag's value":          pod("args: [" + yamlQuote("--node-name="+text) + "]"),
			"a variable in a flag":    pod("args: [" + yamlQuote("--taint-effect=$("+text+")") + "]"),
			"a script":                pod(`command: [sh, -c, ` + quoted + `]`),
			"what stands behind them": pod("args: [a, " + quoted + "]"),
		} {
			got := imported(t, content)
			for line := range strings.Lines(got) {
				open := strings.Contains(line, "at_detection = false") || strings.Contains(line, "at_close = false") || line == "[webhook]\n"
				if strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "#") && !open {
					t.Errorf("%s: of %q there is a line %q", place, text, line)
				}
			}
			if settings(t, got).DryRun || !utf8.ValidString(got) {
				t.Errorf("%s: of %q becomes\n%s", place, text, got)
			}
		}
	}
}

func TestAnEmptySelectorIsNone(t *testing.T) {
	t.Parallel()
	if text := imported(t, "nodeSelector: {}\nlogLevel: debug\n"); strings.Contains(text, "nodeSelector") {
		t.Errorf("of an empty selector it is said\n%s", text)
	}
}

// There, a message is posted once, after the work.
func TestTheWebhookPostsOnceForAnEventAsItDid(t *testing.T) {
	t.Parallel()
	for name, target := range map[string]migration.Target{"nth": {Secrets: "/s"}, "without a place for secrets": {}} {
		cfg := settings(t, into(t, target, "WEBHOOK_URL=https://hooks.example.com/a").Text)
		if w := cfg.Webhook; w.AtDetection || !w.AtEnd || w.AtClose {
			t.Errorf("%s: posts at detection (%t), end (%t), close (%t), want at the end alone", name, w.AtDetection, w.AtEnd, w.AtClose)
		}
	}
}

func TestNoSecretIsShown(t *testing.T) {
	t.Parallel()
	const content = "WEBHOOK_URL=https://hooks.example.com/hunter2\nWEBHOOK_HEADERS={\"Authorization\":\"Bearer hunter2\"}\n" +
		"WEBHOOK_PROXY=http://me:hunter2@proxy:3128\nAWS_SECRET_ACCESS_KEY=hunter2\n"
	for _, dir := range []string{"", "/etc/nth/secret"} {
		result := into(t, migration.Target{Secrets: dir}, content)
		for _, name := range []string{"WEBHOOK_URL", "WEBHOOK_HEADERS", "WEBHOOK_PROXY", "AWS_SECRET_ACCESS_KEY"} {
			if !strings.Contains(result.Text, name) {
				t.Errorf("nothing is said of %s:\n%s", name, result.Text)
			}
		}
		if strings.Contains(result.Text, "hunter2") {
			t.Errorf("a secret is shown:\n%s", result.Text)
		}
		if dir == "" {
			if len(result.Secrets) > 0 {
				t.Errorf("there are files %q, and no place for them", result.Secrets)
			}
			continue
		}
		webhook := settings(t, result.Text).Webhook
		if result.Secrets[webhook.URLFile] != "https://hooks.example.com/hunter2" || result.Secrets[webhook.HeadersFile] != `{"Authorization":"Bearer hunter2"}` {
			t.Errorf("the settings name %s and %s, and the files are %q", webhook.URLFile, webhook.HeadersFile, result.Secrets)
		}
	}
}

// Whatever comes from a Secret is one, unless it becomes a setting itself.
func TestWhatComesFromASecretIsNotRepeated(t *testing.T) {
	t.Parallel()
	const queued = "\n    env: [{name: ENABLE_SQS_TERMINATION_DRAINING, value: 'true'}, {name: QUEUE_URL, value: 'https://sqs.eu-west-1.amazonaws.com/1/a'}]"
	secret := func(key string) string {
		return "---\nkind: Secret\nmetadata: {name: b}\nstringData: {" + key + ": hunter2}\n"
	}
	for _, name := range migration.Names() {
		flag := strings.ToLower(strings.ReplaceAll(name, "_", "-"))
		for place, content := range map[string]string{
			"all of one":  pod("envFrom: [{secretRef: {name: b}}]") + secret(name),
			"a key":       pod("env: [{name: "+name+", valueFrom: {secretKeyRef: {name: b, key: c}}}]") + secret("c"),
			"a reference": pod("env: [{name: A, valueFrom: {secretKeyRef: {name: b, key: c}}}, {name: "+name+", value: x$(A)}]") + secret("c"),
			"an argument": pod("args: [--"+flag+"=$(c)]\n    envFrom: [{secretRef: {name: b}}]") + secret("c"),
			"the queue":   pod("envFrom: [{secretRef: {name: b}}]"+queued) + secret(name),
		} {
			settings, err := migration.Read(strings.NewReader(content))
			if err != nil {
				t.Fatal(err)
			}
			result, err := settings.For(migration.Target{Queue: place == "the queue", Secrets: "/s"})
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s of a Secret: %s: %v", place, name, err)
			}
			for line := range strings.Lines(result.Text) {
				if strings.HasPrefix(line, "#") && strings.Contains(line, "hunter2") {
					t.Errorf("%s of a Secret: %s", place, line)
				}
			}
		}
	}
}

func TestATemplateFromASecretGoesIntoAFile(t *testing.T) {
	t.Parallel()
	const content = "---\nkind: Secret\nmetadata: {name: b}\nstringData: {c: '{\"routing_key\":\"hunter2\"}'}\n"
	from := pod("env: [{name: WEBHOOK_TEMPLATE, valueFrom: {secretKeyRef: {name: b, key: c}}}]") + content
	result := into(t, migration.Target{Secrets: "/s"}, from)
	webhook := settings(t, result.Text).Webhook
	if webhook.Template != "" || result.Secrets[webhook.TemplateFile] != `{"routing_key":"hunter2"}` || result.Template != `{"routing_key":"hunter2"}` {
		t.Errorf("the template is in %q, and the files are %q:\n%s", webhook.TemplateFile, result.Secrets, result.Text)
	}
	if text := into(t, migration.Target{}, from).Text; strings.Contains(text, "hunter2") || !strings.Contains(text, "WEBHOOK_TEMPLATE: a secret, which is not shown") {
		t.Errorf("without a place for it becomes\n%s", text)
	}
}

func TestNothingOfAnUnknownArgumentIsShownButItsName(t *testing.T) {
	t.Parallel()
	for _, container := range []string{
		`command: [sh, -c, "export WEBHOOK_URL=https://hooks.example.com/hunter2\nexec /node-termination-handler"]`,
		`command: ["export A=hunter2; /node-termination-handler --dry-run"]`,
		`args: [hunter2, "Authorization: Bearer hunter2"]`,
		`args: [--dry-run, "true", --webhook-url=https://hooks.example.com/hunter2]`,
		`args: [--token=hunter2]`, `args: [--token, hunter2, --dry-run]`, `args: [-phunter2]`, `args: [-H, "X-Token: hunter2"]`,
		`args: ["--Bearer hunter2"]`, `args: ["--https://hooks.example.com/hunter2"]`, `args: [--, hunter2]`, `args: ["---hunter2"]`,
	} {
		if text := imported(t, pod(container)); strings.Contains(text, "hunter2") {
			t.Errorf("of %s it is said\n%s", container, text)
		}
	}
}

func TestTheQueueModeDrainsTheInstancesThatItDid(t *testing.T) {
	t.Parallel()
	const mode = "ENABLE_SQS_TERMINATION_DRAINING=true\nQUEUE_URL=https://sqs.eu-west-1.amazonaws.com/123456789012/nth\n"
	for more, want := range map[string]string{
		"":                                 "aws-node-termination-handler/managed",
		"MANAGED_TAG=a":                    "a",
		"MANAGED_ASG_TAG=b":                "b",
		"MANAGED_TAG=a\nMANAGED_ASG_TAG=b": "a",
		"CHECK_TAG_BEFORE_DRAINING=false":  "",
		"CHECK_ASG_TAG_BEFORE_DRAINING=false\nMANAGED_TAG=a":                                 "",
		"CHECK_TAG_BEFORE_DRAINING=true\nCHECK_ASG_TAG_BEFORE_DRAINING=false\nMANAGED_TAG=a": "a",
	} {
		cfg := config.DefaultQueue()
		text := into(t, migration.Target{Queue: true}, mode+more).Text
		if err := config.Decode("a", []byte(text), &cfg); err != nil || cfg.Fleet.ManagedTag != want {
			t.Errorf("with %q, the tag is %q (%v), want %q", more, cfg.Fleet.ManagedTag, err, want)
		}
	}
}

// There, a recommendation drains if it is in the queue, and whatever else is said.
func TestTheQueueModeDrainsForRecommendationsAsItDid(t *testing.T) {
	t.Parallel()
	const mode = "ENABLE_SQS_TERMINATION_DRAINING=true\nQUEUE_URL=https://sqs.eu-west-1.amazonaws.com/123456789012/nth\n"
	for more, want := range map[string]string{
		"": "drain", "ENABLE_REBALANCE_DRAINING=false\nENABLE_REBALANCE_MONITORING=false": "drain", "ENABLE_REBALANCE_MONITORING=true": "drain",
		"CORDON_ONLY=true": "cordon",
	} {
		cfg := config.DefaultQueue()
		text := into(t, migration.Target{Queue: true}, mode+more).Text
		if err := config.Decode("a", []byte(text), &cfg); err != nil || cfg.Events.RebalanceRecommendation.Action != want {
			t.Errorf("with %q, a recommendation leads to %q (%v), want %q", more, cfg.Events.RebalanceRecommendation.Action, err, want)
		}
	}
}

func TestWhatTheQueueModeCannotHaveIsNamed(t *testing.T) {
	t.Parallel()
	const mode = "ENABLE_SQS_TERMINATION_DRAINING=true\nQUEUE_URL=https://sqs.eu-west-1.amazonaws.com/123456789012/nth\n"
	for content, want := range map[string]string{
		"DRY_RUN=true": `"nth config import"`,
		"QUEUE_URL=https://sqs.eu-west-1.amazonaws.com/123456789012/nth": "ENABLE_SQS_TERMINATION_DRAINING: is not true",
		"ENABLE_SQS_TERMINATION_DRAINING=true":                           "QUEUE_URL: is not set",
		pod("args: [--enable-sqs-termination-draining]\n    env: [{name: QUEUE_URL, valueFrom: {secretKeyRef: {name: a, key: b}}}]"): "QUEUE_URL: it comes from the Secret a",
		mode + "WORKERS=0":  `WORKERS="0": must be a whole number, and not zero`,
		mode + "WORKERS=-1": `WORKERS="-1": must be`,
		mode + "CHECK_TAG_BEFORE_DRAINING=maybe\nMANAGED_TAG=a": `CHECK_TAG_BEFORE_DRAINING="maybe": must be true or false`,
	} {
		settings, err := migration.Read(strings.NewReader(content))
		if err == nil {
			_, err = settings.For(migration.Target{Queue: true})
		}
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("of\n%s\nit is said %v, want %q", content, err, want)
		}
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

func TestATimeThatIsTooLongIsRefusedAndBecomesNoOther(t *testing.T) {
	t.Parallel()
	queued := "ENABLE_SQS_TERMINATION_DRAINING=true\nQUEUE_URL=https://sqs.us-east-1.amazonaws.com/1/q\n"
	for name, test := range map[string]struct {
		target  migration.Target
		content string
	}{
		"POD_TERMINATION_GRACE_PERIOD":   {migration.Target{}, "POD_TERMINATION_GRACE_PERIOD=18446744104"},
		"GRACE_PERIOD":                   {migration.Target{}, "GRACE_PERIOD=18446744104"},
		"SQS_MSG_VISIBILITY_TIMEOUT_SEC": {migration.Target{Queue: true}, queued + "SQS_MSG_VISIBILITY_TIMEOUT_SEC=18446744104"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			read, err := migration.Read(strings.NewReader(test.content))
			if err != nil {
				t.Fatal(err)
			}
			result, err := read.For(test.target)
			if err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("the error is %v, and what comes of it\n%s", err, result.Text)
			}
		})
	}
}
