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

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/text"
)

// The severities of notices. Info: nothing has to be done about it. OK: the node is closed or drained as the rules ask. Warning: it is, and pods
// were deleted that could not be evicted. Critical: pods are left, or the work has failed.
const (
	Info     = "info"
	OK       = "ok"
	Warning  = "warning"
	Critical = "critical"
)

func severityOf(outcome string, deleted int) string {
	switch outcome {
	case Incomplete, Failed:
		return Critical
	case Cordoned, Drained:
		if deleted > 0 {
			return Warning
		}
		return OK
	}
	return Info
}

// Fields are the data of a webhook's template. What is not known is empty. No text in them, nor in their lists and tables, contains a
// quotation mark, a backslash or anything invisible, so that all can stand between the quotation marks of JSON as they are.
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
	Deadline    time.Time
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

// Machine describes the machine. What is not known is empty.
type Machine struct {
	ID, Type, LifeCycle, Account, Region, Zone string
	LocalIP, LocalName, PublicIP, PublicName   string
}

// subject is what is known about the node of a notice.
type subject struct {
	cluster string
	nodeInfo
	pods    []string          // that the drain has evicted, deleted, or waits for
	deleted map[string]string // what held each pod that was deleted
}

func (f *Fields) setSubject(s subject) {
	m := s.machine
	f.InstanceID, f.InstanceType, f.InstanceLifeCycle = m.ID, m.Type, m.LifeCycle
	f.AccountId, f.Region, f.AvailabilityZone = m.Account, m.Region, m.Zone
	f.PublicHostname, f.PublicIP, f.LocalHostname, f.LocalIP = m.PublicName, m.PublicIP, m.LocalName, m.LocalIP
	if m.ID != "" && m.Zone != "" {
		f.ProviderID = "aws:///" + m.Zone + "/" + m.ID
	}
	f.Cluster = cmp.Or(s.cluster, s.labels["alpha.eksctl.io/cluster-name"])
	f.Node = cmp.Or(f.Node, s.name)
	f.NodeName = f.Node
	f.NodeLabels, f.Pods, f.DeletedPods = map[string]string{}, append([]string{}, s.pods...), map[string]string{}
	maps.Copy(f.NodeLabels, s.labels)
	maps.Copy(f.DeletedPods, s.deleted)
}

// awsnthStates are aws-node-termination-handler's names, and EC2's, for the state of an event.
var awsnthStates = map[event.State]string{
	event.Pending: "active", event.Canceled: "canceled", event.Completed: "completed",
}

// newFields returns the fields of a notice.
func newFields(t state.Transition, outcome string, about subject, dryRun bool) Fields {
	e := t.Entry
	f := Fields{
		NoticeID: noticeID(e, outcome, t.At), Phase: phaseOf(outcome), Outcome: outcome, DryRun: dryRun, Made: t.At, Node: t.Node,
		EventKind: e.Event.Kind, Code: e.Event.Code, FirstSeen: e.FirstSeen, Deadline: cmp.Or(e.Event.Deadline, t.Deadline),
		Plan: t.Plan, Action: t.Action, Reason: t.Reason, Took: t.Took.Seconds(), Error: e.Error,
		Left: []string{}, HeldBy: map[string]string{},
	}
	if outcome == Moved && t.Detail != "" {
		f.Action = "" // The cordon is left to somebody else.
	}
	if !f.Deadline.IsZero() {
		f.SecondsLeft = max(0, int(f.Deadline.Sub(t.At).Seconds()))
	}
	if t.Err != nil {
		f.Error = t.Err.Error()
	}
	if r := e.Result; r != nil {
		f.Evicted, f.Deleted, f.Skipped = r.Evicted, r.Deleted, r.Skipped
		f.Left = append(f.Left, r.Left...)
		if r.HeldBy != nil {
			f.HeldBy = r.HeldBy
		}
	}
	f.Severity = severityOf(outcome, f.Deleted)
	f.setSubject(about)
	f.setAWSNTHFields(e)
	f.clean()
	f.Text = jsonSafe(f.sentence(), text.Page)
	return f
}

// setAWSNTHFields fills in the fields of aws-node-termination-handler that are about the event.
func (f *Fields) setAWSNTHFields(e state.Entry) {
	ev := e.Event
	f.EventID, f.Kind = ev.ID, ev.Kind.Info().Handler.Event
	f.Monitor = f.Kind + "_MONITOR"
	f.State = awsnthStates[ev.State]
	f.Description = cmp.Or(ev.Description, ev.Kind.Info().Description)
	f.StartTime, f.EndTime = cmp.Or(ev.Deadline, ev.Noticed, e.FirstSeen), ev.Until
	if f.EndTime.IsZero() && ev.Kind == event.ScheduledMaintenance {
		f.EndTime = ev.Deadline
	}
	f.TimeUntilEvent = f.StartTime.Sub(f.Made)
	f.NodeProcessed = f.Outcome == Drained || f.Outcome == Cordoned
	f.InProgress = f.Phase == Announced
}

// maxElements is how many elements of a list or a table a notice has at most.
const maxElements = 512

// clean makes all texts safe within a JSON string, and bounds them.
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

// jsonSafe returns a text as one visible line without quotation marks and backslashes.
func jsonSafe(s string, limit int) string {
	return strings.NewReplacer(`"`, `'`, `\`, `/`).Replace(text.Visible(strings.Join(strings.Fields(s), " "), limit))
}

// noticeID depends on the time, as an event may be announced, and its outcome told, more than once.
func noticeID(e state.Entry, outcome string, made time.Time) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %d", e.Event.ID, outcome, made.UnixNano()))
	return hex.EncodeToString(sum[:16])
}

// sentence is the notice in one sentence: who, where, and what.
func (f *Fields) sentence() string {
	sender := "nth"
	if f.DryRun {
		sender += " (dry run)"
	}
	place := ""
	if f.Cluster != "" {
		place = "cluster " + f.Cluster + ", "
	}
	if f.Region != "" {
		place += f.Region + ", "
	}
	place += "node " + f.Node
	if f.InstanceID != "" {
		place += " (" + f.InstanceID + ")"
	}
	return fmt.Sprintf("%s: %s: %s: %s", sender, place, f.EventKind, f.outcomeText())
}

func (f *Fields) outcomeText() string {
	pods := fmt.Sprintf("%s evicted, %d deleted", text.Pods(f.Evicted), f.Deleted)
	switch f.Outcome {
	case string(Announced):
		return "announced; nth's plan: " + f.Plan
	case Drained:
		return fmt.Sprintf("drained: %s, %d left in place%s", pods, f.Skipped, listDeleted(f.DeletedPods))
	case Incomplete:
		return fmt.Sprintf("the drain ran out of time: %s, left: %s%s", pods, listPods(f.Left), listDeleted(f.DeletedPods))
	case Failed:
		return "it failed and will be tried again: " + f.Error
	case LeftAlone:
		return "the node is left alone because of its annotation " + drain.KeyPrefix + "action: its pods are not evicted"
	case Cordoned:
		return "cordoned"
	case Moved:
		if f.Action == string(policy.Uncordon) {
			return "put off; the node takes pods again until then"
		}
		return "put off; nothing is done for it until then, and the node stays as it is"
	}
	return f.Outcome + "; nothing of it is left on the node"
}

// listDeleted names the pods that were deleted, and the budget that held each; it is empty if none were.
func listDeleted(deleted map[string]string) string {
	if len(deleted) == 0 {
		return ""
	}
	pods := slices.Sorted(maps.Keys(deleted))
	for i, pod := range pods {
		if budget := deleted[pod]; budget != "" {
			pods[i] = fmt.Sprintf("%s (against the disruption budget %s)", pod, budget)
		}
	}
	return "; deleted, as they could not be evicted in time: " + listPods(pods)
}

// listPods lists some pods, and the number of the others.
func listPods(pods []string) string {
	const most = 20
	switch {
	case len(pods) == 0:
		return "not known"
	case len(pods) > most:
		return fmt.Sprintf("%s and %d more", strings.Join(pods[:most], ", "), len(pods)-most)
	}
	return strings.Join(pods, ", ")
}

// Samples returns the fields of a notice of every kind of event with every outcome, both with all that can be known and
// with as little as possible. Templates are tried with them.
func Samples() []Fields {
	var samples []Fields
	for _, kind := range event.AllKinds() {
		for _, outcome := range Outcomes() {
			samples = append(samples, sample(kind, outcome, true), sample(kind, outcome, false))
		}
	}
	return samples
}

// TestFields are those of the message of "nth check --webhook". sender says who sends it from where, as in "nth check on ip-10-0-0-1"; the
// node's name may be empty.
func TestFields(sender, node string, now time.Time) Fields {
	f := sample(event.SpotInterruption, string(Announced), false)
	f.Test, f.Made, f.Node, f.NodeName, f.FirstSeen, f.StartTime = true, now, node, node, now, now
	f.NoticeID, f.EventID = "test", "test"
	f.Plan = "nothing will be done"
	f.Description = "a test; nothing is announced"
	f.clean()
	at := ""
	if node != "" {
		at = ", node " + node
	}
	f.Text = jsonSafe("nth: this is a test message, sent by "+sender+at+"; nothing is announced, and nothing is done", text.Page)
	return f
}

// The time and the machine of the samples.
var (
	sampleTime    = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	sampleMachine = Machine{
		ID: "i-1234567890abcdef0", Type: "m5.large", LifeCycle: "spot", Account: "123456789012", Region: "us-east-1",
		Zone: "us-east-1a", LocalIP: "10.0.0.1", LocalName: "ip-10-0-0-1.ec2.internal", PublicIP: "203.0.113.7",
		PublicName: "ec2-203-0-113-7.compute-1.amazonaws.com",
	}
)

// sample makes up a notice. One that is not full comes from a machine without metadata.
func sample(kind event.Kind, outcome string, full bool) Fields {
	t := state.Transition{
		At: sampleTime.Add(time.Second), Node: "ip-10-0-0-1.ec2.internal", Plan: "nothing will be done",
		Entry: state.Entry{
			Event: event.Event{ID: string(kind) + "-1", Kind: kind, State: event.Pending}, FirstSeen: sampleTime,
		},
	}
	if !full {
		return newFields(t, outcome, subject{}, false)
	}
	fillSample(&t, phaseOf(outcome))
	return newFields(t, outcome, subject{
		cluster:  `the "east"`,
		nodeInfo: nodeInfo{machine: sampleMachine, labels: map[string]string{"topology.kubernetes.io/zone": "us-east-1a", "team": "web", "note": `the "1"`}},
		pods:     []string{"web-1", "web-2"},
		deleted:  map[string]string{"default/web-3\"": `default/web\`},
	}, false)
}

func fillSample(t *state.Transition, phase Phase) {
	ev := &t.Entry.Event
	ev.Code, ev.Description = "terminate", `it is "planned"; see C:\notes`
	ev.Noticed, ev.Deadline, ev.Until = sampleTime, sampleTime.Add(2*time.Minute), sampleTime.Add(time.Hour)
	t.Plan = "EC2 will terminate the instance; drain now"
	if phase == Announced {
		return
	}
	t.Action, t.Reason, t.Took = "drain", "EC2 will terminate the instance", 100*time.Second
	t.Err = errors.New("the deadline came first:\n\"default/web-1\"")
	t.Entry.Result = &state.Result{
		Evicted: 12, Deleted: 1, Skipped: 3, Left: []string{"default/web-1", "default/web-2\""},
		HeldBy: map[string]string{"default/web-1": `default/"web"`},
	}
}
