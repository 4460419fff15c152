// Package config reads what people write: /etc/nth/nth.toml and the drop-ins beside it.
//
// Config is plain data, and only cmd/nth knows it: it hands each package the few values that package asks for. Every
// key is described once, in settings.go: its name, its place in Config, what it may be and what it means. Decoding,
// validation, printing, docs/configuration.md and the shipped packaging/nth.toml all follow that one description.
//
// A wrong setting is an error, never a guess. Each fault is told in one line that names the file, the key, the value
// and what would be right, and all faults are told at once.
package config

import (
	"io"
	"time"

	"github.com/nth-project/nth/pkg/event"
)

//go:generate go test -run ^TestGenerated . -update

// DefaultFile is read when no file is named. It may be absent.
const DefaultFile = "/etc/nth/nth.toml"

// Config is everything that can be set.
type Config struct {
	DryRun           bool
	StateDirectory   string
	RuntimeDirectory string
	HostRoot         string // "" is "/"
	Log              Log
	IMDS             IMDS
	AWS              AWS
	Kubernetes       Kubernetes
	Drain            Drain
	LoadBalancers    LoadBalancers
	Webhook          Webhook
	Metrics          Metrics
	Events           Events
}

// Log is the table [log].
type Log struct {
	Level  string // debug, info, warning or error
	Format string // auto, text, journal, json or prefix
}

// IMDS is the table [imds].
type IMDS struct {
	Endpoint            string // "" is the service's own address
	UrgentInterval      time.Duration
	RebalanceInterval   time.Duration
	MaintenanceInterval time.Duration
	LifeCycles          []string // nil is all
}

// Kubernetes is the table [kubernetes].
type Kubernetes struct {
	Kubeconfig string // "" is to be searched for
	Source     string // kubeconfig or bottlerocket
	Token      string // auto, plugin or eks
	KeepWarm   time.Duration
	Heartbeat  time.Duration // 0 is none
	ToldCluster
}

// ToldCluster is the part of the table [kubernetes] that says what is told there.
type ToldCluster struct {
	Condition           bool
	LifecycleConditions bool
	Events              bool
	// EventSource and EventAnnotations are what each Event bears.
	EventSource      string
	EventAnnotations map[string]string
}

// Drain is the table [drain].
type Drain struct {
	ScriptsWait              time.Duration // nth only; 0 is none
	EvictAfter               time.Duration
	Margin                   time.Duration
	PodGracePeriod           *time.Duration // nil is each pod's own
	ProtectEmptyDir          bool
	ProtectUnmanaged         bool
	ExcludeFromLoadBalancers bool
	LoadBalancerWait         time.Duration
	VolumeWait               time.Duration
}

// Events holds one table for each kind of event. Actions are ignore, notify, cordon or drain.
type Events struct {
	SpotInterruption        SpotInterruption
	RebalanceRecommendation RebalanceRecommendation
	ScheduledMaintenance    ScheduledMaintenance
	ASGTermination          ASGTermination
	Shutdown                Shutdown
	Hibernation             Hibernation
	ReservationEnd          ReservationEnd
}

// SpotInterruption is the table [events.spot-interruption].
type SpotInterruption struct {
	Action         string
	Hibernate      string // an action too
	WithdrawnAfter time.Duration
}

// RebalanceRecommendation is the table [events.rebalance-recommendation].
type RebalanceRecommendation struct {
	Action         string
	CordonFor      time.Duration // 0 is until the recommendation is withdrawn
	WithdrawnAfter time.Duration
}

// ScheduledMaintenance is the table [events.scheduled-maintenance].
type ScheduledMaintenance struct {
	Action         string
	Lead           time.Duration
	Window         time.Duration
	Spread         time.Duration
	HardDeadline   bool
	WithdrawnAfter time.Duration
	// Codes says for each of EC2's event codes, and for "other" ones, when Action is taken: now, lead, window, notify
	// or ignore.
	Codes map[string]string
}

// ASGTermination is the table [events.asg-termination].
type ASGTermination struct {
	Termination
	WithdrawnAfter time.Duration
}

// Termination is what the table [events.asg-termination] says of both programs.
type Termination struct {
	Action       string
	Budget       time.Duration
	CompleteHook bool
	Hooks        []string // nil is the only one
	OnIncomplete string   // "continue" or "abandon"
}

// Shutdown is the table [events.shutdown].
type Shutdown struct {
	Action   string
	Margin   time.Duration
	PowerKey string // "nth" or "logind": who answers it
}

// Hibernation is the table [events.hibernation].
type Hibernation struct {
	Action string
}

// ReservationEnd is the table [events.reservation-end].
type ReservationEnd struct {
	Action         string
	Lead           time.Duration
	WithdrawnAfter time.Duration
}

// Default returns the settings of an empty file.
func Default() Config {
	return Config{
		StateDirectory:   "/var/lib/nth",
		RuntimeDirectory: "/run/nth",
		Log:              Log{Level: "info", Format: "auto"},
		IMDS: IMDS{
			UrgentInterval:      500 * time.Millisecond,
			RebalanceInterval:   5 * time.Second,
			MaintenanceInterval: 30 * time.Second,
		},
		Kubernetes: Kubernetes{
			Source: "kubeconfig", Token: "auto", KeepWarm: 5 * time.Minute, Heartbeat: 5 * time.Minute,
			ToldCluster: ToldCluster{Condition: true, Events: true, EventSource: "nth"},
		},
		Drain:   Drain{Margin: 2 * time.Second, VolumeWait: 20 * time.Second},
		Webhook: defaultWebhook(),
		Events:  defaultEvents(),
	}
}

func defaultEvents() Events {
	return Events{
		SpotInterruption: SpotInterruption{
			Action: "drain", Hibernate: "cordon", WithdrawnAfter: 30 * time.Second,
		},
		RebalanceRecommendation: RebalanceRecommendation{
			Action: "notify", CordonFor: time.Hour, WithdrawnAfter: 30 * time.Second,
		},
		ScheduledMaintenance: ScheduledMaintenance{
			Action: "drain", Lead: 10 * time.Minute, Window: day, Spread: 20 * time.Minute, WithdrawnAfter: time.Hour,
			Codes: map[string]string{
				"instance-stop":       "window",
				"instance-retirement": "window",
				"system-reboot":       "lead",
				"instance-reboot":     "lead",
				"system-maintenance":  "notify",
				"other":               "notify",
			},
		},
		ASGTermination: ASGTermination{
			Termination:    Termination{Action: "drain", Budget: 15 * time.Minute, CompleteHook: true, OnIncomplete: "continue"},
			WithdrawnAfter: 30 * time.Second,
		},
		Shutdown:       Shutdown{Action: "drain", Margin: 5 * time.Second, PowerKey: "nth"},
		Hibernation:    Hibernation{Action: "drain"},
		ReservationEnd: ReservationEnd{Action: "drain", Lead: 10 * time.Minute, WithdrawnAfter: 15 * time.Minute},
	}
}

// tableOf names the table that holds the settings of a kind of event.
func tableOf(kind event.Kind) string { return "events." + string(kind) }

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
