package notify_test

import (
	"context"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/state"
)

const jsonType = "application/json; charset=utf-8"

// compile returns a template for texts.
func compile(t *testing.T, text string) *notify.Template {
	t.Helper()
	template, err := notify.NewTemplate("test", text, "text/plain")
	if err != nil {
		t.Fatal(err)
	}
	return template
}

// samples makes the samples once: there are hundreds.
var samples = sync.OnceValue(notify.Samples)

// sampleOf is the fullest sample of an outcome.
func sampleOf(t *testing.T, kind event.Kind, outcome string) notify.Fields {
	t.Helper()
	i := slices.IndexFunc(samples(), func(f notify.Fields) bool { return f.EventKind == kind && f.Outcome == outcome })
	if i < 0 {
		t.Fatalf("there is no sample of %s, %s", kind, outcome)
	}
	return samples()[i]
}

func TestTemplate_ErrorsNameTheLine(t *testing.T) {
	for name, test := range map[string]struct{ text, kind, want string }{
		"no such field":        {"{\n\n\"a\": \"{{ .Nope }}\"}", jsonType, "test:3:9: "},
		"no such function":     {"\n{{ nope }}", jsonType, "test:2: function \"nope\" not defined"},
		"not closed":           {"\n\n{{ if .Test }}", jsonType, "test:3: unexpected EOF"},
		"reads environment":    {"{{ env \"HOME\" }}", jsonType, "function \"env\" not defined"},
		"a loop with text":     {"{{ range 2000 }}{{ $.Text }}{{ end }}", "text/plain", "the webhook's template renders more than 131072 bytes for one notice"},
		"any number of values": {"{{ until 1000000000 }}", "text/plain", `function "until" not defined`},
		"a text of any length": {`{{ repeat 1000000000 "a" }}`, "text/plain", `function "repeat" not defined`},
		"no JSON":              {"hello {{ .Text }}", jsonType, `test: the webhook's template does not render valid JSON for the outcome "announced", but the Content-Type is JSON: invalid character`},
		"no JSON, sometimes":   {"{\n{{ if eq .Outcome \"incomplete\" }}oops{{ end }}}", "application/cloudevents+json", `for the outcome "incomplete", but the Content-Type is JSON: invalid character`},
		"nothing":              {"{{ if .Test }}{}{{ end }}\n", "text/plain", "test: the webhook's template renders no text for any notice"},
		"a method of a time":   {"{{ .StartTime.Unix }}", "text/plain", `test:1:13: executing "test" at <.StartTime.Unix>: can't evaluate field Unix in type time.Time; a template cannot call its methods`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := notify.NewTemplate("test", test.text, test.kind)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// What operators have written for aws-node-termination-handler: the fields of its manual, and sprig's functions.
func TestTemplate_OfAWSNodeTerminationHandlerWorksUnchanged(t *testing.T) {
	f := sampleOf(t, event.ScheduledMaintenance, "drained")
	for text, want := range map[string]string{
		`{"text":":rotating_light: {{ .Kind }} {{ .InstanceID }} {{ .NodeName }} {{ .Description }} {{ .StartTime }}"}`: `{"text":":rotating_light: SCHEDULED_EVENT i-1234567890abcdef0 ip-10-0-0-1.ec2.internal ` +
			`it is 'planned'; see C:/notes 2026-03-01 12:02:00 +0000 UTC"}`,
		`{{ .EventID }} {{ .Monitor }} {{ .State }} [{{ .AutoScalingGroupName }}] {{ .IsManaged }}`:                                          `scheduled-maintenance-1 SCHEDULED_EVENT_MONITOR active [] false`,
		`{{ .ProviderID }} {{ .InstanceType }} {{ .InstanceLifeCycle }} {{ .AccountId }} {{ .Region }} {{ .AvailabilityZone }}`:              `aws:///us-east-1a/i-1234567890abcdef0 m5.large spot 123456789012 us-east-1 us-east-1a`,
		`{{ .LocalIP }} {{ .LocalHostname }} {{ .PublicIP }} {{ .PublicHostname }}`:                                                          `10.0.0.1 ip-10-0-0-1.ec2.internal 203.0.113.7 ec2-203-0-113-7.compute-1.amazonaws.com`,
		`{{ range .Pods }}{{ . }},{{ end }} {{ index .NodeLabels "team" }} {{ .NodeLabels.team }}`:                                           `web-1,web-2,web-3', web web`,
		`{{ .NodeProcessed }} {{ .InProgress }} {{ .TimeUntilEvent }}`:                                                                       `true false 1m59s`,
		`{{ date "2006" .StartTime }} {{ unixEpoch .EndTime }} {{ with .Deadline }}{{ dateInZone "15:04" . "UTC" }} {{ toJson . }}{{ end }}`: `2026 1772370000 12:02 "2026-03-01T12:02:00Z"`,
		`{{ .Kind | lower | replace "_" "-" }} {{ .PublicIP | default "none" | quote }} {{ toJson .Pods }}`:                                  `scheduled-event "203.0.113.7" ["web-1","web-2","web-3'"]`,
	} {
		got, err := compile(t, text).Render(f)
		if err != nil || got != want {
			t.Errorf("%s\ngives %s (%v)\nwant  %s", text, got, err, want)
		}
	}
}

func TestFields_CanStandInAStringOfJSON(t *testing.T) {
	template := compile(t, `{"a": "{{ .Description }}", "b": "{{ .Error }}", "c": "{{ .Text }}", "d": "{{ .Cluster }}",
		"e": "{{ join "," .Left }}", "f": "{{ join "," .Pods }}", "g": "{{ range $k, $v := .HeldBy }}{{ $k }}{{ $v }}{{ end }}",
		"h": "{{ range $k, $v := .NodeLabels }}{{ $k }}{{ $v }}{{ end }}", "i": "{{ range $k, $v := .DeletedPods }}{{ $k }}{{ $v }}{{ end }}"}`)
	for _, f := range samples() {
		got, err := template.Render(f)
		if err != nil || !json.Valid([]byte(got)) {
			t.Errorf("%s, %s gives no JSON (%v): %s", f.EventKind, f.Outcome, err, got)
		}
		if f.Kind == "" || f.Description == "" || f.Text == "" || f.StartTime.IsZero() {
			t.Errorf("a sample of %s, %s lacks something: %+v", f.EventKind, f.Outcome, f)
		}
	}
}

// read returns the text of a file, whose path is from the project's top.
func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// shipped compiles a template that the packages bring; "" is nth's own.
func shipped(t *testing.T, name string) *notify.Template {
	t.Helper()
	text := ""
	if name != "" {
		text = read(t, "packaging/webhook/"+name+".tmpl")
	}
	template, err := notify.NewTemplate(name, text, jsonType)
	if err != nil {
		t.Fatal(err)
	}
	return template
}

// rendered is a message without the escapes of JSON for HTML.
func rendered(t *testing.T, template *notify.Template, f notify.Fields) string {
	t.Helper()
	text, err := template.Render(f)
	if err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer(`\u003c`, "<", `\u003e`, ">").Replace(text)
}

func TestShippedTemplates_EscapeMarkup(t *testing.T) {
	const mark = "<!channel> <https://evil.example|here> [here](https://evil.example)"
	f := sampleOf(t, event.SpotInterruption, notify.Incomplete)
	f.Text, f.Node, f.Cluster, f.InstanceType = mark, mark, mark, mark
	f.Left, f.DeletedPods = []string{mark}, map[string]string{mark: mark}
	for name, forbidden := range map[string]string{"slack": "<", "teams": "](", "": "<"} {
		if text := rendered(t, shipped(t, name), f); strings.Contains(text, forbidden) {
			t.Errorf("%s.tmpl gives %s", name, text)
		}
	}
	_ = shipped(t, "json") // It has JSON, and programs read it.
}

func TestPagerDuty_OpensAndResolvesOneIncident(t *testing.T) {
	template, keys := shipped(t, "pagerduty"), map[string]bool{}
	clean := sampleOf(t, event.SpotInterruption, notify.Drained)
	clean.Severity = notify.OK
	for outcome, want := range map[string]string{
		"announced": "", "left-alone": "", "drained": "trigger warning", "incomplete": "trigger critical", "failed": "trigger critical", "cordoned": "resolve info",
		"moved": "resolve info", "withdrawn": "resolve info", "canceled": "resolve info", "completed": "resolve info", "clean": "resolve info",
	} {
		f := clean
		if outcome != "clean" {
			f = sampleOf(t, event.SpotInterruption, outcome)
		}
		text, got := rendered(t, template, f), ""
		if text != "" {
			var m struct {
				RoutingKey  string `json:"routing_key"`
				EventAction string `json:"event_action"`
				DedupKey    string `json:"dedup_key"`
				Payload     struct{ Summary, Source, Severity string }
			}
			if err := json.Unmarshal([]byte(text), &m); err != nil || m.RoutingKey == "" || m.Payload.Summary == "" || m.Payload.Source == "" {
				t.Errorf("%s: %v: %s", outcome, err, text)
			}
			keys[m.DedupKey] = true
			got = m.EventAction + " " + m.Payload.Severity
		}
		if got != want {
			t.Errorf("%s gives %q, want %q", outcome, got, want)
		}
	}
	if len(keys) != 1 || keys[""] {
		t.Errorf("the keys are %v, want one", keys)
	}
}

// rows are how docs/notices.md begins the description of fields, and names those of one row.
var (
	rows  = regexp.MustCompile("(?m)^\\| (`\\.[A-Za-z]+`(?:, `\\.[A-Za-z]+`)*) \\|")
	names = regexp.MustCompile("[A-Za-z]+")
)

func TestManual_DescribesEveryField(t *testing.T) {
	text := read(t, "docs/notices.md")
	var described, defined []string
	for _, match := range rows.FindAllStringSubmatch(text, -1) {
		described = append(described, names.FindAllString(match[1], -1)...)
	}
	for field := range reflect.TypeFor[notify.Fields]().Fields() {
		defined = append(defined, field.Name)
	}
	if !slices.Equal(described, defined) {
		t.Errorf("docs/notices.md describes\n%q\nand there are\n%q", described, defined)
	}
}

// outcomes is a row of docs/notices.md that says when something has an outcome: its phase, and the outcomes.
var outcomes = regexp.MustCompile("(?m)^\\| `(announced|ended|over)` \\| ([a-z`, -]*) \\|")

func TestManual_ListsEveryOutcome(t *testing.T) {
	text := read(t, "docs/notices.md")
	described, defined := map[string]bool{}, map[string]bool{}
	for _, match := range outcomes.FindAllStringSubmatch(text, -1) {
		for outcome := range strings.FieldsFuncSeq(match[2], func(r rune) bool { return strings.ContainsRune("`, ", r) }) {
			described[match[1]+" "+outcome] = true
		}
	}
	for _, f := range samples() {
		defined[string(f.Phase)+" "+f.Outcome] = true
	}
	if !maps.Equal(described, defined) {
		t.Errorf("docs/notices.md describes\n%q\nand there are\n%q", slices.Sorted(maps.Keys(described)), slices.Sorted(maps.Keys(defined)))
	}
}

var update = flag.Bool("update", false, "write docs/notices.txt")

// docs/notices.txt has what the templates of the packages make of a drain that deletes a pod against its budget.
func TestExamples_AreWhatTheTemplatesGive(t *testing.T) {
	var all strings.Builder
	for _, file := range []string{"slack.tmpl", "teams.tmpl", "pagerduty.tmpl", "json.tmpl"} {
		all.WriteString("# " + file + "\n")
		for _, message := range messagesOfADrain(t, file) {
			all.WriteString("\n" + strings.TrimSpace(message) + "\n")
		}
		all.WriteString("\n")
	}
	want := strings.TrimSuffix(all.String(), "\n")
	if *update {
		if err := os.WriteFile("../../docs/notices.txt", []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if read(t, "docs/notices.txt") != want {
		t.Error("docs/notices.txt differs from what the templates give; run: go test ./pkg/notify -run Examples -update")
	}
}

// messagesOfADrain returns what a template of the packages makes of an announcement, a drain that is complete, and one that is not.
func messagesOfADrain(t *testing.T, file string) (messages []string) {
	t.Helper()
	hooked(t, func(r *hookRig) {
		r.opts.Cluster = "production"
		r.about.Machine = func(context.Context) notify.Machine {
			return notify.Machine{ID: "i-1234567890abcdef0", Type: "m5.large", Zone: "eu-central-1a", Region: "eu-central-1"}
		}
		r.useTemplate(read(t, "packaging/webhook/"+file))
		at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		hear := func(kind state.TransitionKind, after time.Duration, change func(*state.Transition)) {
			r.hear(kind, "spot-1", drain(state.Draining), func(h *state.Transition) {
				h.At, h.Entry.FirstSeen, h.Entry.Event.Deadline, h.Took = at.Add(after), at, at.Add(2*time.Minute), after
				change(h)
			})
		}
		hear(state.Announced, 0, func(h *state.Transition) {
			h.Plan = "EC2 will terminate this spot instance at 12:02:00 UTC on 1 Mar 2026; plan: drain now"
		})
		hear(state.NodeCordoned, 0, func(*state.Transition) {})
		hear(state.PodHeld, time.Minute, func(h *state.Transition) { h.Pod, h.Detail = "shop/db-0", "shop/db" })
		hear(state.PodDeleted, time.Minute, func(h *state.Transition) { h.Pod = "shop/db-0" })
		hear(state.Done, 95*time.Second, func(h *state.Transition) { h.Entry.Result = &state.Result{Evicted: 11, Deleted: 1, Skipped: 2} })
		hear(state.RanOut, 2*time.Minute, func(h *state.Transition) {
			h.Entry.Result = &state.Result{Evicted: 11, Deleted: 1, Skipped: 2, Left: []string{"shop/cart-7"}, HeldBy: map[string]string{"shop/cart-7": "shop/cart"}}
		})
		r.pass(time.Second)
		for _, p := range r.posted() {
			messages = append(messages, p.text)
		}
	})
	return messages
}
