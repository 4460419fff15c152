package notify

import (
	"errors"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/record"
)

// Samples returns fields of a notice of every kind of event with every outcome, with all that can be known and with as
// little as can be. Templates are tried with them.
func Samples() []Fields {
	var samples []Fields
	for _, kind := range event.AllKinds() {
		for _, outcome := range Outcomes() {
			samples = append(samples, sample(kind, outcome, true), sample(kind, outcome, false))
		}
	}
	return samples
}

// TestFields is what the message of "nth check --webhook" is made of.
func TestFields(node string, now time.Time) Fields {
	f := sample(event.SpotInterruption, Announced.String(), false)
	f.Test, f.Made, f.Node, f.NodeName, f.FirstSeen, f.StartTime = true, now, node, node, now, now
	f.NoticeID, f.EventID = "test", "test"
	f.Plan = "nothing will be done"
	f.Text = harmless("nth: this is a test that somebody has asked for on node " + node + "; nothing is announced")
	f.Description = "a test; nothing is announced"
	return f
}

// The moment and the machine of the samples.
var (
	sampleTime    = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	sampleMachine = Machine{
		ID: "i-1234567890abcdef0", Type: "m5.large", LifeCycle: "spot", Account: "123456789012", Region: "us-east-1",
		Zone: "us-east-1a", LocalIP: "10.0.0.1", LocalName: "ip-10-0-0-1.ec2.internal", PublicIP: "203.0.113.7",
		PublicName: "ec2-203-0-113-7.compute-1.amazonaws.com",
	}
)

// sample makes up a notice. What is known of it makes a full one; a sparse one comes from a machine without metadata.
func sample(kind event.Kind, outcome string, full bool) Fields {
	phase := phaseOf(outcome)
	h := record.Happening{
		At: sampleTime.Add(time.Second), Node: "ip-10-0-0-1.ec2.internal", Plan: "nothing will be done",
		Entry: record.Entry{
			Event: event.Event{ID: string(kind) + "-1", Kind: kind, State: event.Pending}, FirstSeen: sampleTime,
		},
	}
	if full {
		fill(&h, phase)
	}
	f := fieldsOf(h, phase, outcome, nil, false)
	if full {
		sampleMachine.into(&f)
		f.NodeLabels = map[string]string{"topology.kubernetes.io/zone": "us-east-1a", "team": "web"}
		f.Pods = []string{"web-1", "web-2"}
	}
	return f
}

func fill(h *record.Happening, phase Phase) {
	ev := &h.Entry.Event
	ev.Code, ev.Description = "terminate", `it is "planned"; see C:\notes`
	ev.Noticed, ev.Deadline, ev.Until = sampleTime, sampleTime.Add(2*time.Minute), sampleTime.Add(time.Hour)
	h.Plan = "EC2 will terminate the instance; drain now"
	if phase == Announced {
		return
	}
	h.Action, h.Reason, h.Took = "drain", "EC2 will terminate the instance", 100*time.Second
	h.Err = errors.New("the deadline came first:\n\"default/web-1\"")
	h.Entry.Result = &record.Result{
		Evicted: 12, Deleted: 1, Skipped: 3, Left: []string{"default/web-1", "default/web-2"},
		HeldBy: map[string]string{"default/web-1": "default/web"},
	}
}
