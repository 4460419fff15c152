package migration_test

import (
	"errors"
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

var update = flag.Bool("update", false, "write the results into testdata")

const (
	queueMode = "ENABLE_SQS_TERMINATION_DRAINING=true\nQUEUE_URL=https://sqs.eu-west-1.amazonaws.com/123456789012/nth\n"
	secretDir = "/etc/nth/secret"
)

// imported converts settings for nth.
func imported(t *testing.T, content string) string {
	t.Helper()
	return convert(t, migration.Target{Secrets: secretDir}, content).Text
}

func convert(t *testing.T, target migration.Target, content string) migration.Result {
	t.Helper()
	settings, err := migration.Read(strings.NewReader(content))
	if err != nil {
		t.Fatalf("%v:\n%s", err, content)
	}
	result, err := settings.For(target)
	if err != nil {
		t.Fatalf("%v:\n%s", err, content)
	}
	return result
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

// object is a ConfigMap or a Secret named "a".
func object(kind, data string) string {
	return "---\nkind: " + kind + "\nmetadata: {name: a}\n" + map[string]string{"ConfigMap": "data", "Secret": "stringData"}[kind] + ": {" + data + "}\n"
}

// yamlQuote writes a string in double quotes, as YAML understands them.
func yamlQuote(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\r", `\r`, "\t", `\t`, "\a", `\a`, "\x1b", `\e`, "\x7f", `\x7f`,
		"\u0085", `\N`, "\u2028", `\L`).Replace(text) + `"`
}

// names are the settings that the page about the migration explains.
func names(t *testing.T) []string {
	t.Helper()
	page, err := os.ReadFile("../../docs/migration.md")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range regexp.MustCompile("`([A-Z][A-Z0-9]*_[A-Z0-9_]*|WORKERS|NAMESPACE)`").FindAllSubmatch(page, -1) {
		names = append(names, string(m[1]))
	}
	slices.Sort(names)
	return slices.Compact(names)
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
			target := migration.Target{Queue: strings.Contains(input, "queue"), Secrets: secretDir}
			got := convert(t, target, string(content)).Text
			if target.Queue {
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
	configMap := object("ConfigMap", "CORDON_ONLY: 'true', flag: 'true'")
	for name, content := range map[string]string{
		"environment":                  "# old\n\nexport CORDON_ONLY='true'",
		"environment, other names":     "_=/usr/bin/env\nhttp_proxy=\nCORDON_ONLY=true",
		"environment of a process":     "WEBHOOK_TEMPLATE={\n\"a\":1}\x00LOG_LEVEL=error\x00CORDON_ONLY=true\x00",
		"environment, the last counts": "CORDON_ONLY=false\nCORDON_ONLY=true",
		"chart":                        "cordonOnly: true",
		"chart, as text":               "cordonOnly: 'true'",
		"chart after a comment":        "--- # values\r\ncordonOnly: true\r\n",
		"chart, an alias":              "dryRun: &on true\ncordonOnly: *on",
		"chart that depends on it":     "aws-node-termination-handler: {cordonOnly: true}\ncordonOnly: false",
		"extraEnv":                     "cordonOnly: false\nextraEnv: [" + variable + "]",
		"variable":                     pod("env: [" + variable + "]"),
		"variable over ConfigMap":      pod("envFrom: [{configMapRef: {name: a}}]\n    env: ["+variable+"]") + object("ConfigMap", "CORDON_ONLY: 'false'"),
		"flag":                         pod("args: [--cordon-only=true]"),
		"flag with one dash":           pod("args: [-cordon-only]"),
		"flag of the command":          pod("command: [/node-termination-handler, --cordon-only]"),
		"flag after an unknown one":    pod("args: [--nope, some, --cordon-only]"),
		"flag over a variable":         pod("args: [--cordon-only]\n    env: [{name: CORDON_ONLY, value: 'false'}]"),
		"one of two containers":        "kind: Pod\nspec: {containers: [{image: a}, {name: aws-node-termination-handler, args: [--cordon-only]}]}",
		"Deployment":                   "kind: Deployment\nspec: {template: {spec: {containers: [{args: [--cordon-only]}]}}}",
		"list of objects":              "kind: List\nitems: [{kind: DaemonSet, spec: {template: {spec: {containers: [{args: [--cordon-only]}]}}}}]",
		"ConfigMap":                    pod("envFrom: [{configMapRef: {name: a}}]") + configMap,
		"ConfigMap, before the pod":    configMap + "---\n" + pod("envFrom: [{configMapRef: {name: a}}]"),
		"ConfigMap with a prefix":      pod("envFrom: [{prefix: CORDON_, configMapRef: {name: a}}]") + object("ConfigMap", "ONLY: 'true'"),
		"key of a ConfigMap":           pod("env: [{name: CORDON_ONLY, valueFrom: {configMapKeyRef: {name: a, key: flag}}}]") + configMap,
		"key of a Secret":              pod("env: [{name: CORDON_ONLY, valueFrom: {secretKeyRef: {name: a, key: b}}}]") + "---\nkind: Secret\nmetadata: {name: a}\ndata: {b: dHJ1ZQo=}\n",
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
	for environment, want := range map[string][]string{ // spot, rebalance, maintenance, Auto Scaling, shutdown
		"NODE_NAME=a": {"drain", "notify", "drain", "drain", "drain"},
		"ENABLE_SPOT_INTERRUPTION_DRAINING=false":                          {"ignore", "notify", "drain", "drain", "drain"},
		"ENABLE_REBALANCE_MONITORING=true":                                 {"drain", "cordon", "drain", "drain", "drain"},
		"ENABLE_REBALANCE_MONITORING=true\nENABLE_REBALANCE_DRAINING=true": {"drain", "drain", "drain", "drain", "drain"},
		"CORDON_ONLY=true\nENABLE_REBALANCE_DRAINING=true":                 {"cordon", "cordon", "cordon", "cordon", "cordon"},
		"CORDON_ONLY=true\nENABLE_SCHEDULED_EVENT_DRAINING=false":          {"cordon", "notify", "ignore", "cordon", "cordon"},
	} {
		e := nthSettings(t, imported(t, environment)).Events
		got := []string{e.SpotInterruption.Action, e.RebalanceRecommendation.Action, e.ScheduledMaintenance.Action, e.ASGTermination.Action, e.Shutdown.Action}
		if !slices.Equal(got, want) {
			t.Errorf("of %q, the actions are %v, want %v", environment, got, want)
		}
	}
}

// Also for kinds of events that the handler does not know.
func TestImport_CordonOnlyDrainsForNoEvent(t *testing.T) {
	t.Parallel()
	for _, events := range []any{
		nthSettings(t, imported(t, "CORDON_ONLY=true")).Events,
		queueSettings(t, convert(t, migration.Target{Queue: true}, queueMode+"CORDON_ONLY=true").Text).Events,
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
		cfg := queueSettings(t, convert(t, migration.Target{Queue: true}, queueMode+more).Text)
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
		if got := nthSettings(t, imported(t, "webhookTemplate: "+yamlQuote(text)+"\n")).Webhook.Template; got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func TestImport_RefusesWrongInput(t *testing.T) {
	t.Parallel()
	nested := func(deep int) string { return "a: " + strings.Repeat("[", deep) + strings.Repeat("]", deep) }
	for name, test := range map[string]struct {
		content, want string
		queue         bool
	}{
		"not a boolean":        {content: "DRY_RUN=maybe", want: `DRY_RUN = "maybe": must be true or false`},
		"not a number":         {content: "POD_TERMINATION_GRACE_PERIOD=1m", want: `POD_TERMINATION_GRACE_PERIOD = "1m": must be a whole number`},
		"a long number":        {content: "POD_TERMINATION_GRACE_PERIOD=18446744104", want: "must be a whole number"},
		"not a port":           {content: "ENABLE_PROMETHEUS_SERVER=true\nPROMETHEUS_SERVER_PORT=http", want: `PROMETHEUS_SERVER_PORT = "http": must be a whole number`},
		"two faults":           {content: "DRY_RUN=maybe\nCORDON_ONLY=perhaps", want: "\nDRY_RUN = "},
		"headers":              {content: "WEBHOOK_HEADERS=X-A: hunter2", want: "WEBHOOK_HEADERS = (not shown): must be a JSON object"},
		"a header's name":      {content: `WEBHOOK_HEADERS={"X hunter2":"b"}`, want: "(not shown): must be a JSON object of valid"},
		"a header's value":     {content: pod(`env: [{name: WEBHOOK_HEADERS, value: '{"X-A":"a\nhunter2"}'}]`), want: "(not shown): must be a JSON object of valid"},
		"URL":                  {content: "WEBHOOK_URL=hooks.example.com/hunter2", want: "WEBHOOK_URL = (not shown): must be a URL"},
		"URL without a host":   {content: "WEBHOOK_URL=http://:80/", want: "WEBHOOK_URL = (not shown): must be a URL"},
		"URL at a wrong place": {content: "LOG_LEVEL=https://hooks.example.com/hunter2", want: "LOG_LEVEL = (not shown): must be debug"},
		"URL with a password":  {content: "INSTANCE_METADATA_URL=http://me:hunter2@[a", want: "INSTANCE_METADATA_URL = (not shown): must be a URL without a password"},
		"annotations":          {content: "KUBERNETES_EVENTS_EXTRA_ANNOTATIONS=a", want: `"a": must be key=value pairs`},
		"workers":              {content: queueMode + "WORKERS=0", want: `WORKERS = "0": must be a whole number above zero`, queue: true},
		"tag":                  {content: queueMode + "CHECK_TAG_BEFORE_DRAINING=maybe", want: "must be true or false", queue: true},
		"queue mode for nth":   {content: queueMode, want: `"nth-queue config import"`},
		"nth for queue mode":   {content: "DRY_RUN=true", want: `"nth config import"`, queue: true},
		"empty":                {content: "---\n# a comment\n", want: "the file has no settings"},
		"not YAML":             {content: "a: [hunter2", want: "line 1: not YAML"},
		"unknown alias":        {content: "webhookProxy: *hunter2", want: "not YAML"},
		"wrong type":           {content: "kind: Pod\nspec: {containers: hunter2}", want: "line 2: not YAML as expected"},
		"extraEnv":             {content: "extraEnv: {NAME: hunter2}", want: "extraEnv must be a list"},
		"no container":         {content: "apiVersion: v1\nkind: ConfigMap\ndata: {}", want: "there must be one container"},
		"two containers":       {content: "kind: Pod\nspec: {containers: [{image: a}, {image: b}]}", want: "there must be one container"},
		"too long":             {content: "A=" + strings.Repeat("a", 4<<20), want: "at most 4 MiB"},
		"too deep":             {content: nested(60), want: "nested more than 50 deep"},
		"far too deep":         {content: nested(20_000), want: "not YAML"},
		"many aliases":         {content: "a: &a 1\nb: [" + strings.Repeat("*a,", 101) + "]", want: "more than 100 YAML aliases"},
		"not UTF-8":            {content: "LOG_LEVEL=info\nWEBHOOK_TEMPLATE=\xff\n", want: "line 2 must be UTF-8"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			settings, err := migration.Read(strings.NewReader(test.content))
			if err == nil {
				_, err = settings.For(migration.Target{Queue: test.queue, Secrets: secretDir})
			}
			if err == nil || !strings.Contains("\n"+err.Error(), test.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error is %v, want %q", err, test.want)
			}
		})
	}
}

func TestImport_NamesWhatItDoesNotConvert(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		"SOME_VARIABLE=hunter2":                                                             "SOME_VARIABLE: not a setting",
		"enableNothing: true\nimage: {tag: a}\nreplicas: 2":                                 "enableNothing, image, replicas: about the pod or its objects, or unknown",
		"nodeSelector: {a: b}":                                                              "nodeSelector: nth runs where its image or package is",
		"kind: Pod\nspec: {containers: [{}], affinity: {nodeAffinity: {}}}":                 "affinity: nth runs where",
		"aws-node-termination-handler: {}\ndryRun: true":                                    "values outside aws-node-termination-handler",
		"webhookURLSecretName: b":                                                           "WEBHOOK_URL: its value is in the Secret b",
		"webhookTemplateConfigMapName: b":                                                   "WEBHOOK_TEMPLATE_FILE: copy the template",
		"WEBHOOK_TEMPLATE={}\nWEBHOOK_TEMPLATE_FILE=/a":                                     "WEBHOOK_TEMPLATE: WEBHOOK_TEMPLATE_FILE overrides it",
		"GRACE_PERIOD=30":                                                                   "GRACE_PERIOD: an older name",
		"CORDON_ONLY=false":                                                                 "CORDON_ONLY: there is nothing to set",
		pod("envFrom: [{secretRef: {name: b}}]"):                                            "the Secret b: may have settings",
		pod("envFrom: [{secretRef: {name: a}}]") + object("ConfigMap", ""):                  "the Secret a: may have settings",
		pod("env: [{name: LOG_LEVEL, valueFrom: {secretKeyRef: {name: a, key: b}}}]"):       "LOG_LEVEL: its value is in the Secret a",
		pod("env: [{name: LOG_LEVEL, valueFrom: {fieldRef: {fieldPath: a}}}]"):              "LOG_LEVEL: its value is in a field of the pod",
		pod("env: [{name: WEBHOOK_TEMPLATE, value: $(PLACE)-1}]"):                           "WEBHOOK_TEMPLATE: its value is in another variable",
		pod("args: [--cordon-only=$(ONLY)]"):                                                "CORDON_ONLY: its value is in another variable",
		pod("command: [sh, -c, \"WEBHOOK_URL=hunter2 /node-termination-handler\"]"):         "the container's command: it is not the handler",
		pod("args: [hunter2, --dry-run]"):                                                   "argument 1, which is not shown",
		pod("args: [--token=hunter2]"):                                                      "the flag --token: not a setting",
		pod("args: [--token, hunter2, --dry-run]"):                                          "the flag --token: not a setting",
		pod("args: [-phunter, '--Bearer hunter2', '--https://a/hunter2', '---', -hunter2]"): "a flag, which is not shown: not a setting",
		pod("args: [--log-level, --webhook-url=https://a.example.com/hunter2]"):             "url_file",
	} {
		result := convert(t, migration.Target{Secrets: secretDir}, content)
		if !strings.Contains(result.Text, want) || strings.Contains(result.Text, "hunter") {
			t.Errorf("of\n%s\nwant %q and no secret:\n%s", content, want, result.Text)
		}
		if strings.Contains(want, "WEBHOOK_URL") && !slices.Equal(nthSettings(t, result.Text).Webhook.At, []string{"ended"}) {
			t.Errorf("of\n%s\nthe webhook posts more than once for an event", content)
		}
	}
}

// An object is looked for in the namespace of the pod.
func TestImport_Namespaces(t *testing.T) {
	t.Parallel()
	in := func(namespace string) string {
		return "kind: Pod\nmetadata: {namespace: '" + namespace + "'}\nspec: {containers: [{envFrom: [{configMapRef: {name: a}}]}]}\n"
	}
	configMap := func(namespace, level string) string {
		return "---\nkind: ConfigMap\nmetadata: {name: a, namespace: " + namespace + "}\ndata: {LOG_LEVEL: " + level + "}\n"
	}
	for content, want := range map[string]string{
		in("b") + configMap("b", "debug") + configMap("c", "error"): "debug",
		in("b") + configMap("''", "debug"):                          "debug",
		in("") + configMap("b", "debug"):                            "debug",
		in("b") + configMap("c", "error"):                           "info",
	} {
		text := imported(t, content)
		if got := nthSettings(t, text).Log.Level; got != want || strings.Contains(text, "may have settings") != (want == "info") {
			t.Errorf("of\n%s\nthe level is %q, want %q:\n%s", content, got, want, text)
		}
	}
}

// Text from the input ends up in comments of a file that nth reads.
func TestImport_CommentsStayComments(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"a\ndry_run = true\n#", "a\rdry_run = true", "a\a\x1b[2J\x7f", "a\u0085dry_run = true", "a\u2028dry_run = true\u202e", strings.Repeat("a☃", 200)} {
		quoted := yamlQuote(text)
		for place, content := range map[string]string{
			"chart":    quoted + ": a",
			"Secret":   "webhookURLSecretName: " + quoted,
			"variable": pod("env: [{name: " + quoted + ", value: a}]"),
			"source":   pod("envFrom: [{configMapRef: {name: " + quoted + "}}]"),
			"flag":     pod("args: [" + yamlQuote("--"+text) + "]"),
			"argument": pod("args: [" + quoted + "]"),
		} {
			got := imported(t, content)
			if cfg := nthSettings(t, got); cfg.DryRun || !utf8.ValidString(got) || strings.ContainsAny(got, "\r\a\x1b\u0085\u2028\u202e") {
				t.Errorf("%s: of %q becomes\n%q", place, text, got)
			}
		}
	}
}

func TestImport_SecretsGoIntoFiles(t *testing.T) {
	t.Parallel()
	const content = "WEBHOOK_URL=https://hooks.example.com/hunter2\nWEBHOOK_HEADERS={\"Authorization\":\"Bearer hunter2\"}\n" +
		"WEBHOOK_PROXY=http://me:hunter2@proxy:3128\nAWS_SECRET_ACCESS_KEY=hunter2\n"
	for _, dir := range []string{"", secretDir} {
		result := convert(t, migration.Target{Secrets: dir}, content)
		for _, name := range []string{"WEBHOOK_URL", "WEBHOOK_HEADERS", "WEBHOOK_PROXY", "AWS_SECRET_ACCESS_KEY"} {
			if !strings.Contains(result.Text, name) {
				t.Errorf("%s is not named:\n%s", name, result.Text)
			}
		}
		webhook := nthSettings(t, result.Text).Webhook
		if strings.Contains(result.Text, "hunter2") || !slices.Equal(webhook.At, []string{"ended"}) {
			t.Errorf("a secret is shown, or the webhook does not post once:\n%s", result.Text)
		}
		want := map[string]string{}
		if dir != "" {
			want = map[string]string{webhook.URLFile: "https://hooks.example.com/hunter2", webhook.HeadersFile: `{"Authorization":"Bearer hunter2"}`}
		}
		if !reflect.DeepEqual(result.Secrets, want) {
			t.Errorf("the files are %q, want %q", result.Secrets, want)
		}
	}
}

// Whatever the setting: a text from a Secret is in a file for secrets, or nowhere.
func TestImport_ShowsNothingFromASecret(t *testing.T) {
	t.Parallel()
	values := []string{"hunter2", "https://hunter2.example.com", "eu-hunter-2", "4711", `{"hunter2":"hunter2"}`, "hunter2=hunter2"}
	for _, name := range names(t) {
		for _, text := range values {
			for _, target := range []migration.Target{{Secrets: secretDir}, {}, {Secrets: secretDir, Queue: true}} {
				content := pod("env: [{name: "+name+", valueFrom: {secretKeyRef: {name: a, key: b}}}]") + object("Secret", "b: "+yamlQuote(text))
				if target.Queue && name != "ENABLE_SQS_TERMINATION_DRAINING" {
					content = strings.Replace(content, "env: [", "env: [{name: ENABLE_SQS_TERMINATION_DRAINING, value: 'true'}, ", 1)
				}
				settings, err := migration.Read(strings.NewReader(content))
				if err != nil {
					t.Fatal(err)
				}
				result, err := settings.For(target)
				if err != nil {
					result.Text = err.Error()
				}
				if strings.Contains(result.Text, "hunter") || strings.Contains(result.Text, "4711") || !strings.Contains(result.Text, name) {
					t.Errorf("%s = %q with %+v:\n%s", name, text, target, result.Text)
				}
			}
		}
	}
}

// A template that does not work is left out, and the rest is converted.
func TestImport_TemplateThatDoesNotWork(t *testing.T) {
	t.Parallel()
	target := migration.Target{Secrets: secretDir, CheckTemplate: func(template string, headers map[string]string) error {
		if strings.HasPrefix(template, "good") && headers["Content-Type"] == "text/plain" {
			return nil
		}
		return errors.New("it gives no JSON: " + template)
	}}
	const header = "\nLOG_LEVEL=debug\nWEBHOOK_HEADERS={\"Content-Type\":\"text/plain\"}"
	fromSecret := pod("env: [{name: LOG_LEVEL, value: debug}, {name: WEBHOOK_TEMPLATE, valueFrom: {secretKeyRef: {name: a, key: b}}}]") + object("Secret", "b: hunter2")
	for content, want := range map[string]string{
		"WEBHOOK_TEMPLATE=good" + header: `template = "good"`,
		"WEBHOOK_TEMPLATE=bad" + header:  "left out, and nth posts its own text: it gives no JSON: bad",
		fromSecret:                       "left out, and nth posts its own text: the template, which is not shown",
	} {
		text := convert(t, target, content).Text
		cfg := nthSettings(t, text)
		if !strings.Contains(text, want) || strings.Contains(text, "hunter2") || cfg.Log.Level != "debug" || cfg.Webhook.IsTemplateFile() || cfg.Webhook.Template == "bad" {
			t.Errorf("of\n%s\nwant %q:\n%s", content, want, text)
		}
	}
}

func TestImport_ConvertsAllThatThePageNames(t *testing.T) {
	t.Parallel()
	for _, name := range names(t) {
		settings, err := migration.Read(strings.NewReader(name + "=1"))
		if err != nil {
			t.Fatal(err)
		}
		if result, err := settings.For(migration.Target{}); err == nil && strings.Contains(result.Text, "that nth knows") {
			t.Errorf("docs/migration.md explains %s, which is not known", name)
		}
	}
}
