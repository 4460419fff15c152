package config

import (
	"io"
	"time"

	"github.com/nth-project/nth/pkg/event"
)

// QueueFile is read by nth-queue when no file is named. It may be absent.
const QueueFile = "/etc/nth/nth-queue.toml"

// Queue is everything that can be set for nth-queue, which drains the nodes that an SQS queue tells of.
type Queue struct {
	DryRun           bool
	StateDirectory   string
	RuntimeDirectory string
	Log              Log
	Queue            SQS
	AWS              AWS
	Kubernetes       QueueKubernetes
	Fleet            Fleet
	Drain            Drain
	Webhook          Webhook
	Metrics          Metrics
	Events           QueueEvents
}

// SQS is the table [queue].
type SQS struct {
	URL        string
	Visibility time.Duration
	Receivers  int
}

// QueueKubernetes is the table [kubernetes].
type QueueKubernetes struct {
	Kubeconfig string // "" is the service's credential or the pod's own identity
	Token      string // plugin or eks
	ToldCluster
}

// Fleet is the table [fleet].
type Fleet struct {
	MaxDraining      int // 0 is no limit
	MaxPerGroup      int // 0 is no limit
	GroupLabel       string
	ManagedTag       string // "" is not looked for
	Cluster          string // "" is what the tags of the Nodes' instances say
	Unknown          string // delete or leave
	UncordonStarted  bool
	Taints           bool
	TaintEffect      string
	OutOfService     bool
	DeleteNode       bool
	RestartWait      time.Duration // 0 restarts nothing
	CompleteLaunches bool
	LaunchHooks      []string // nil is the only one
	AfterDrain       string   // keep, terminate or detach
}

// QueueEvents holds one table for each kind of event that comes through a queue.
type QueueEvents struct {
	SpotInterruption        QueueSpot
	RebalanceRecommendation QueueRebalance
	ScheduledMaintenance    QueueMaintenance
	ASGTermination          Termination
	ReservationEnd          Budgeted
	StateChange             Budgeted
	StatusCheck             QueueStatusCheck
}

// QueueSpot is the table [events.spot-interruption].
type QueueSpot struct {
	Action    string
	Hibernate string // an action too
}

// QueueRebalance is the table [events.rebalance-recommendation].
type QueueRebalance struct {
	Action    string
	CordonFor time.Duration // 0 is for ever
}

// QueueMaintenance is the table [events.scheduled-maintenance].
type QueueMaintenance struct {
	Action       string
	Lead         time.Duration
	Window       time.Duration
	Spread       time.Duration
	HardDeadline bool
	Codes        map[string]string
}

// Budgeted is the table of a kind of event that may name no time.
type Budgeted struct {
	Action string
	Budget time.Duration
}

// QueueStatusCheck is the table [events.status-check].
type QueueStatusCheck struct {
	Action string
	After  time.Duration
	Budget time.Duration
}

// DefaultQueue returns the settings of an empty file.
func DefaultQueue() Queue {
	events := defaultEvents()
	return Queue{
		StateDirectory:   "/var/lib/nth-queue",
		RuntimeDirectory: "/run/nth-queue",
		Log:              Default().Log,
		Queue:            SQS{Visibility: 20 * time.Second, Receivers: 3},
		Kubernetes:       QueueKubernetes{Token: "auto", ToldCluster: ToldCluster{Condition: true, Events: true, EventSource: "nth-queue"}},
		Fleet: Fleet{
			GroupLabel: "topology.kubernetes.io/zone", Unknown: "delete", UncordonStarted: true,
			TaintEffect: "NoSchedule", CompleteLaunches: true, AfterDrain: "keep",
		},
		Drain:   Default().Drain,
		Webhook: defaultWebhook(),
		Events: QueueEvents{
			SpotInterruption:        QueueSpot{Action: events.SpotInterruption.Action, Hibernate: events.SpotInterruption.Hibernate},
			RebalanceRecommendation: QueueRebalance{Action: events.RebalanceRecommendation.Action, CordonFor: events.RebalanceRecommendation.CordonFor},
			ScheduledMaintenance: QueueMaintenance{
				Action: events.ScheduledMaintenance.Action, Lead: events.ScheduledMaintenance.Lead, Window: events.ScheduledMaintenance.Window,
				Spread: events.ScheduledMaintenance.Spread, Codes: events.ScheduledMaintenance.Codes,
			},
			ASGTermination: events.ASGTermination.Termination,
			ReservationEnd: Budgeted{Action: "drain", Budget: 10 * time.Minute},
			StateChange:    Budgeted{Action: "drain", Budget: 5 * time.Minute},
			StatusCheck:    QueueStatusCheck{Action: "notify", After: 5 * time.Minute, Budget: 15 * time.Minute},
		},
	}
}

// LoadQueue reads nth-queue's settings as Load reads nth's. The empty path is QueueFile.
func LoadQueue(path string) (Queue, error) {
	sources, err := QueueSources(path)
	if err != nil {
		return Queue{}, err
	}
	cfg := DefaultQueue()
	if err = read(sources, cfg.tables()); !usable(err) {
		return Queue{}, err
	}
	return cfg, err
}

// QueueSources lists the files that LoadQueue reads for path, in order, with those beside them that it does not.
func QueueSources(path string) ([]Source, error) { return sourcesAt(path, QueueFile) }

// EncodeQueue writes every setting of nth-queue, as Encode does for nth.
func EncodeQueue(w io.Writer, cfg Queue) error { return encode(w, cfg.tables()) }

// DescribeQueue lists nth-queue's tables and keys, as Describe does nth's.
func DescribeQueue() []Table {
	cfg := DefaultQueue()
	return describe(cfg.tables())
}

// tables describes every key there is, with its place in c.
func (c *Queue) tables() []table {
	tables := []table{
		c.top(), c.Log.table(), c.Queue.table(), c.AWS.queueTable(), c.Kubernetes.table(), c.Fleet.table(), c.Drain.table(),
		c.Webhook.table(), c.Metrics.queueTable(),
	}
	return append(tables, c.Events.tables()...)
}

func (c *QueueEvents) tables() []table {
	return []table{
		c.SpotInterruption.table(), c.RebalanceRecommendation.table(), c.ScheduledMaintenance.table(),
		c.ASGTermination.queueTable(),
		c.ReservationEnd.table(event.ReservationEnd, "The Capacity Block, or the interruptible Capacity Reservation, that the instance runs in comes to its end."),
		c.StateChange.table(event.StateChange, "The instance stops or terminates, whoever asked for it."),
		c.StatusCheck.table(),
	}
}
