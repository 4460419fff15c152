package queue

import (
	"strings"
	"time"

	"github.com/nth-project/nth/pkg/event"
)

// healthDetail is the detail of an AWS Health event.
type healthDetail struct {
	ARN          string `json:"eventArn"`
	Service      string `json:"service"`
	Code         string `json:"eventTypeCode"`
	Category     string `json:"eventTypeCategory"`
	Status       string `json:"statusCode"`
	Start        string `json:"startTime"`
	End          string `json:"endTime"`
	Descriptions []struct {
		Text string `json:"latestDescription"`
	} `json:"eventDescription"`
	Entities []struct {
		Value  string `json:"entityValue"`
		Status string `json:"status"`
	} `json:"affectedEntities"`
}

// health reads a scheduled change of AWS Health. Every instance in it has an event of its own, so that one which cannot
// be drained does not hide behind one which can.
func (e envelope) health() ([]Notice, error) {
	var d healthDetail
	if err := e.detail(&d); err != nil {
		return nil, err
	}
	if d.Service != "EC2" || d.Category != "scheduledChange" {
		return nil, notOurs("AWS Health writes of %q in %q", d.Category, d.Service)
	}
	var notices []Notice
	for _, entity := range d.Entities {
		if !instanceID.MatchString(entity.Value) {
			continue // A volume, a host, a reservation.
		}
		n, err := e.about(entity.Value, event.ScheduledMaintenance, d.identity(e)...)
		if err != nil {
			return nil, err
		}
		n.Event.Code, n.Event.Deadline, n.Event.Until = maintenanceCode(d.Code), healthTime(d.Start), healthTime(d.End)
		if len(d.Descriptions) > 0 {
			n.Event.Description = d.Descriptions[0].Text
		}
		if d.Status == "closed" || entity.Status == "RESOLVED" {
			n.Event.State = event.Completed
		}
		notices = append(notices, n)
	}
	if len(notices) == 0 {
		return nil, notOurs("the change %s that AWS Health writes of affects no instance", d.Code)
	}
	return notices, nil
}

// identity is the change's: it stays the same when AWS Health writes of it again.
func (d healthDetail) identity(e envelope) []string {
	if d.ARN != "" {
		return []string{d.ARN}
	}
	return []string{e.ID, e.Time}
}

// maintenanceCodes are parts of AWS Health's codes, and what the metadata service calls the same. The first that is found
// counts.
var maintenanceCodes = []struct{ part, code string }{
	{"RETIREMENT", "instance-retirement"},
	{"SYSTEM_REBOOT", "system-reboot"},
	{"INSTANCE_REBOOT", "instance-reboot"},
	{"INSTANCE_STOP", "instance-stop"},
	{"MAINTENANCE", "system-maintenance"},
}

func maintenanceCode(code string) string {
	for _, known := range maintenanceCodes {
		if strings.Contains(code, known.part) {
			return known.code
		}
	}
	return code
}

// healthTime reads a time as AWS Health writes it; zero if it is none that can be believed.
func healthTime(text string) time.Time {
	t, err := time.Parse(time.RFC1123, text)
	if err != nil {
		return moment(text)
	}
	return event.CredibleTime(t)
}
