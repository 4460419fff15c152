package notify

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	template "github.com/DataDog/datadog-agent/pkg/template/text"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/text"
)

// Fields are the data of a webhook's template. A field that is not known is empty. No text in the fields, their lists and tables contains a
// quotation mark, a backslash or an invisible character. So a template may put each between the quotation marks of JSON as it is.
//
// docs/notices.md describes each field.
type Fields struct {
	// What is reported, and of which node.
	NoticeID string
	Phase    Phase
	Outcome  string
	Severity string
	Text     string
	Test     bool
	DryRun   bool
	Made     time.Time
	Cluster  string
	Node     string

	// The event.
	EventKind   event.Kind
	Code        string
	FirstSeen   time.Time
	Deadline    *time.Time
	SecondsLeft int

	// What is done about it.
	Plan    string
	Action  string
	Reason  string
	Took    float64
	Evicted int
	Deleted int
	Skipped int
	Left    []string
	HeldBy  map[string]string
	// DeletedPods has the budget that held each pod that was deleted, by "namespace/name".
	DeletedPods map[string]string
	Error       string

	// The fields below have the names and the meaning that aws-node-termination-handler gives them.
	EventID              string
	Kind                 string
	Monitor              string
	Description          string
	State                string
	AutoScalingGroupName string
	NodeName             string
	NodeLabels           map[string]string
	Pods                 []string
	InstanceID           string
	ProviderID           string
	InstanceType         string
	IsManaged            bool
	StartTime            time.Time
	EndTime              time.Time
	TimeUntilEvent       time.Duration
	NodeProcessed        bool
	InProgress           bool
	AccountId            string //nolint:revive,staticcheck // Existing templates spell it so.
	InstanceLifeCycle    string
	PublicHostname       string
	PublicIP             string
	LocalHostname        string
	LocalIP              string
	AvailabilityZone     string
	Region               string
}

// Machine describes the machine. A field that is not known is empty.
type Machine struct {
	ID, Type, LifeCycle, Account, Region, Zone string
	LocalIP, LocalName, PublicIP, PublicName   string
}

// description describes the node of a notice. A field that is not known is empty.
type description struct {
	cluster string // the cluster's name in the settings
	name    string // the Node's
	machine Machine
	labels  map[string]string // the Node's
}

// awsnthStates are aws-node-termination-handler's names, and EC2's, for the state of an event.
var awsnthStates = map[event.State]string{
	event.Pending: "active", event.Canceled: "canceled", event.Completed: "completed",
}

// newFields returns the fields of a notice. about describes the node of the notice, and dryRun says whether nth only logs what it would do.
func newFields(n notice, about description, dryRun bool) Fields {
	e, m := n.Entry, about.machine
	ev := e.Event
	cluster, node := cmp.Or(about.cluster, about.labels["alpha.eksctl.io/cluster-name"]), cmp.Or(n.Node, about.name)
	f := Fields{
		NoticeID: noticeID(n), Phase: n.phase(), Outcome: n.outcome, Severity: n.severity(), DryRun: dryRun, Made: n.At, Cluster: cluster, Node: node,
		EventKind: ev.Kind, Code: ev.Code, FirstSeen: e.FirstSeen,
		Plan: n.Plan, Action: n.Action, Reason: n.Reason, Took: n.Took.Seconds(), Error: e.Error, DeletedPods: n.deleted,

		EventID: ev.ID, Kind: ev.Kind.Info().Handler.Event, Monitor: ev.Kind.Info().Handler.Event + "_MONITOR", State: awsnthStates[ev.State],
		Description: cmp.Or(ev.Description, ev.Summary()), NodeName: node, NodeLabels: about.labels,
		StartTime: cmp.Or(ev.Deadline, ev.Noticed, e.FirstSeen), EndTime: ev.Until,
		NodeProcessed: n.outcome == Drained || n.outcome == Cordoned, InProgress: n.outcome == string(Announced),
		InstanceID: m.ID, InstanceType: m.Type, InstanceLifeCycle: m.LifeCycle, AccountId: m.Account, Region: m.Region, AvailabilityZone: m.Zone,
		PublicHostname: m.PublicName, PublicIP: m.PublicIP, LocalHostname: m.LocalName, LocalIP: m.LocalIP,
	}
	f.TimeUntilEvent = f.StartTime.Sub(f.Made)
	if f.EndTime.IsZero() && ev.Kind == event.ScheduledMaintenance { // aws-node-termination-handler always gives it an end.
		f.EndTime = ev.Deadline
	}
	if m.ID != "" && m.Zone != "" {
		f.ProviderID = "aws:///" + m.Zone + "/" + m.ID
	}
	if n.outcome == Moved && n.Detail != "" {
		f.Action = "" // nth has not uncordoned the node: Detail names who still needs the cordon.
	}
	if deadline := cmp.Or(ev.Deadline, n.Deadline); !deadline.IsZero() { // the event's deadline, or else the step's
		f.Deadline, f.SecondsLeft = &deadline, max(0, int(deadline.Sub(n.At).Seconds()))
	}
	if n.Err != nil {
		f.Error = n.Err.Error()
	}
	if r := e.Result; r != nil {
		f.Evicted, f.Deleted, f.Skipped, f.Left, f.HeldBy = r.Evicted, r.Deleted, r.Skipped, r.Left, r.HeldBy
	}
	for _, pod := range n.pods {
		f.Pods = append(f.Pods, pod[strings.Index(pod, "/")+1:]) // aws-node-termination-handler's Pods are names without namespaces.
	}
	f.clean() // before Text, which may be longer than other fields, and contains some of them
	f.Text = n.text
	var sentence strings.Builder
	_ = textTemplate.Execute(&sentence, f) // It never fails.
	f.Text = jsonSafe(sentence.String(), text.Page)
	return f
}

// textTemplate renders a notice's Text: where something has happened, and what.
var textTemplate = template.Must(template.New("text").Parse(`nth
	{{- if .DryRun }} (dry run){{ end }}: {{ with .Cluster }}cluster {{ . }}, {{ end }}{{ with .Region }}{{ . }}, {{ end -}}
	node {{ .Node }}{{ with .InstanceID }} ({{ . }}){{ end }}: {{ .EventKind }}: {{ .Text }}`))

// maxElements is how many elements of a list or a table a notice has at most.
const maxElements = 512

// clean replaces all texts in the fields, their lists and tables by safe ones (jsonSafe), and keeps maxElements of each list and table. With
// reflection, no field can be forgotten.
func (f *Fields) clean() {
	all := reflect.ValueOf(f).Elem()
	for _, field := range all.Fields() {
		switch content := field.Interface().(type) {
		case string:
			field.SetString(jsonSafe(content, text.Line))
		case []string:
			kept := make([]string, min(len(content), maxElements))
			for i := range kept {
				kept[i] = jsonSafe(content[i], text.Line)
			}
			field.Set(reflect.ValueOf(kept))
		case map[string]string:
			kept := map[string]string{}
			for _, key := range slices.Sorted(maps.Keys(content))[:min(len(content), maxElements)] {
				kept[jsonSafe(key, text.Line)] = jsonSafe(content[key], text.Line)
			}
			field.Set(reflect.ValueOf(kept))
		}
	}
}

// jsonEscapes replace what has a meaning between the quotation marks of JSON.
var jsonEscapes = strings.NewReplacer(`"`, `'`, `\`, `/`)

// jsonSafe returns a text as one visible line of at most limit bytes, which may stand between the quotation marks of JSON. Apostrophes replace
// quotation marks, and slashes replace backslashes.
func jsonSafe(s string, limit int) string {
	return jsonEscapes.Replace(text.Visible(strings.Join(strings.Fields(s), " "), limit))
}

// noticeID returns the ID by which a receiver recognizes a notice that arrives twice. The ID depends on the time of the transition, as an event
// may have the same outcome more than once.
func noticeID(n notice) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %d", n.Entry.Event.ID, n.outcome, n.At.UnixNano()))
	return hex.EncodeToString(sum[:16])
}

// TestFields returns the fields of the test message that "nth check --webhook" sends. sender says which program sends the message from which
// machine. node is the Node's name; empty if it is not known.
func TestFields(sender, node string, now time.Time) Fields {
	f := newFields(notice{outcome: string(Announced), Transition: state.Transition{
		At: now, Node: node, Plan: "nothing will be done", Entry: state.Entry{FirstSeen: now, Event: event.Event{
			ID: "test", Kind: event.SpotInterruption, State: event.Pending, Description: "a test; nothing is announced",
		}},
	}}, description{}, false)
	f.Test, f.NoticeID = true, "test"
	if node != "" {
		sender += ", node " + node
	}
	f.Text = jsonSafe("nth: this is a test message, sent by "+sender+"; nothing is announced, and nothing is done", text.Page)
	return f
}

// Samples returns the fields of made-up notices, with which NewTemplate tries a template. For every kind of event and every outcome, one sample
// has all that can be known, and one has as little as possible.
func Samples() []Fields {
	outcomes := slices.Sorted(maps.Keys(classes))
	for _, ending := range state.Endings() {
		outcomes = append(outcomes, string(ending))
	}
	var samples []Fields
	for _, kind := range event.AllKinds() {
		for _, outcome := range outcomes {
			const full = true
			samples = append(samples, sample(kind, outcome, full), sample(kind, outcome, !full))
		}
	}
	return samples
}

// sample returns the fields of a made-up notice. If full is set, the notice has all that can be known, and quotation marks, backslashes and line
// breaks in its texts. Otherwise the notice is about a machine without metadata.
func sample(kind event.Kind, outcome string, full bool) Fields {
	seen := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	n := notice{outcome: outcome, text: outcome, Transition: state.Transition{
		At: seen.Add(time.Second), Node: "ip-10-0-0-1.ec2.internal", Plan: "nothing will be done",
		Entry: state.Entry{Event: event.Event{ID: string(kind) + "-1", Kind: kind, State: event.Pending}, FirstSeen: seen},
	}}
	if !full {
		return newFields(n, description{}, false)
	}
	ev := &n.Entry.Event
	ev.Code, ev.Description = "terminate", `it is "planned"; see C:\notes`
	ev.Noticed, ev.Deadline, ev.Until = seen, seen.Add(2*time.Minute), seen.Add(time.Hour)
	n.Plan, n.Reason = "EC2 will terminate the instance; plan: drain now", "EC2 will terminate the instance"
	if n.outcome != string(Announced) {
		n.Action, n.Took, n.Err = string(policy.Drain), 100*time.Second, errors.New("no answer:\n\"default/web-1\"")
		n.pods, n.deleted = []string{"default/web-1", "default/web-2", `default/web-3"`}, map[string]string{`default/web-3"`: `default/web\`}
		n.Entry.Result = &state.Result{
			Evicted: 12, Deleted: 1, Skipped: 3, Left: []string{"default/web-1", `default/web-2"`}, HeldBy: map[string]string{"default/web-1": `default/"web"`},
		}
	}
	return newFields(n, description{
		cluster: `the "east"`, labels: map[string]string{"topology.kubernetes.io/zone": "us-east-1a", "team": "web", "note": `the "1"`},
		machine: Machine{
			ID: "i-1234567890abcdef0", Type: "m5.large", LifeCycle: "spot", Account: "123456789012", Region: "us-east-1", Zone: "us-east-1a",
			LocalIP: "10.0.0.1", LocalName: "ip-10-0-0-1.ec2.internal", PublicIP: "203.0.113.7", PublicName: "ec2-203-0-113-7.compute-1.amazonaws.com",
		},
	}, false)
}
