package queue

import (
	"time"

	"github.com/nth-project/nth/pkg/event"
)

// spotNotice is how long EC2 leaves a spot instance after its warning; the message itself does not say.
const spotNotice = 2 * time.Minute

// reclaim is how long before the end of a Capacity Block EC2 begins to terminate its instances, and reclaimUltra the same of
// one of UltraServers. The message does not say which it is of, but it is sent ten minutes before that begins:
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-blocks.html.
const reclaim, reclaimUltra = 30 * time.Minute, time.Hour

// ec2Detail is the union of the details of EC2's events.
type ec2Detail struct {
	Instance        string `json:"instance-id"`
	Action          string `json:"instance-action"`
	State           string `json:"state"`
	TerminationTime string `json:"instance-termination-time"`
	Reservation     string `json:"capacity-reservation-id"`
	EndDate         string `json:"end-date"`
}

func (e envelope) spot() ([]Notice, error) {
	var d ec2Detail
	if err := e.detail(&d); err != nil {
		return nil, err
	}
	n, err := e.about(d.Instance, event.SpotInterruption, e.ID, e.Time)
	if err != nil {
		return nil, err
	}
	n.Event.Code = d.Action
	if at := e.time(); !at.IsZero() {
		n.Event.Deadline = at.Add(spotNotice)
	}
	return []Notice{n}, nil
}

func (e envelope) rebalance() ([]Notice, error) {
	var d ec2Detail
	if err := e.detail(&d); err != nil {
		return nil, err
	}
	n, err := e.about(d.Instance, event.RebalanceRecommendation, e.ID, e.Time)
	if err != nil {
		return nil, err
	}
	return []Notice{n}, nil
}

// stateChange reads that an instance has entered a state. The states are exact: "pending" concerns nobody, "running"
// ends an interruption, and the others are one.
func (e envelope) stateChange() ([]Notice, error) {
	var d ec2Detail
	if err := e.detail(&d); err != nil {
		return nil, err
	}
	n, err := e.about(d.Instance, event.StateChange, e.ID, e.Time)
	if err != nil {
		return nil, err
	}
	n.Event.Code = d.State
	switch d.State {
	case "stopping", "shutting-down":
	case "stopped", "terminated":
		n.Stopped = true
	case "running":
		n.About = Running
	case "pending":
		return nil, notOurs("the instance %s is only being started", d.Instance)
	default:
		return nil, poison("the instance %s is in an unknown state: %q", d.Instance, d.State)
	}
	return []Notice{n}, nil
}

// capacityBlock reads that a Capacity Block ends soon. The event names the block, not its instances.
func (e envelope) capacityBlock() ([]Notice, error) {
	var d ec2Detail
	if err := e.detail(&d); err != nil {
		return nil, err
	}
	if d.Reservation == "" {
		return nil, poison("the event %q is of no capacity reservation", e.DetailType)
	}
	n := Notice{About: Interruption, Reservation: d.Reservation, Event: event.Event{
		ID:   nameOf(event.ReservationEnd, d.Reservation, d.EndDate),
		Kind: event.ReservationEnd, Code: "capacity-block", State: event.Pending, Noticed: e.time(),
	}}
	if end := moment(d.EndDate); !end.IsZero() {
		n.Event.Deadline = end.Add(-reclaim)
		if at := e.time(); !at.IsZero() && end.Sub(at) >= reclaimUltra {
			n.Event.Deadline = end.Add(-reclaimUltra)
		}
	}
	return []Notice{n}, nil
}

// interruptible reads that an interruptible Capacity Reservation is wanted back by its owner.
func (e envelope) interruptible() ([]Notice, error) {
	var d ec2Detail
	if err := e.detail(&d); err != nil {
		return nil, err
	}
	n, err := e.about(d.Instance, event.ReservationEnd, e.ID, e.Time)
	if err != nil {
		return nil, err
	}
	n.Event.Code = "interruptible"
	if n.Event.Deadline = moment(d.TerminationTime); n.Event.Deadline.IsZero() && !e.time().IsZero() {
		n.Event.Deadline = e.time().Add(spotNotice)
	}
	return []Notice{n}, nil
}
