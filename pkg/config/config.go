// Package config reads what people write: /etc/nth/nth.toml and /etc/nth/nth-queue.toml, and the drop-ins beside them.
//
// Config and Queue are plain data, and only cmd knows them: it hands each package the few values that package asks for.
// Every key is described once, beside the type of its table: its name, its place there, what it may be and what it means.
// Decoding, validation, printing, docs/configuration.md and the shipped packaging/nth.toml all follow that one
// description. What both programs have is in Common and Announced, in shared.go and events.go.
//
// A wrong setting is an error, never a guess. Each fault is told in one line that names the file, the key, the value
// and what would be right, and all faults are told at once.
package config

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"time"
)

//go:generate go test -run ^TestGenerated . -update

// DefaultFile and QueueFile are read when no file is named. They may be absent.
const (
	DefaultFile = "/etc/nth/nth.toml"
	QueueFile   = "/etc/nth/nth-queue.toml"
)

// Config is everything that can be set for nth.
type Config struct {
	Common
	HostRoot      string // "" is "/"
	IMDS          IMDS
	LoadBalancers LoadBalancers
	Events        Events
}

// Queue is everything that can be set for nth-queue, which drains the nodes that an SQS queue tells of.
type Queue struct {
	Common
	Queue  SQS
	Fleet  Fleet
	Events QueueEvents
}

// Default returns the settings of an empty file.
func Default() Config {
	c := Config{
		Common: defaultCommon("nth"),
		IMDS: IMDS{
			UrgentInterval:      500 * time.Millisecond,
			RebalanceInterval:   5 * time.Second,
			MaintenanceInterval: 30 * time.Second,
		},
		Events: defaultEvents(),
	}
	c.Kubernetes.Source, c.Kubernetes.KeepWarm, c.Kubernetes.Heartbeat = "kubeconfig", 5*time.Minute, 5*time.Minute
	return c
}

// DefaultQueue returns the settings of an empty file of nth-queue.
func DefaultQueue() Queue {
	return Queue{
		Common: defaultCommon("nth-queue"),
		Queue:  SQS{Visibility: 20 * time.Second, Receivers: 3},
		Fleet: Fleet{
			GroupLabel: "topology.kubernetes.io/zone", Unknown: "delete", UncordonStarted: true,
			TaintEffect: "NoSchedule", CompleteLaunches: true, AfterDrain: "keep",
		},
		Events: defaultQueueEvents(),
	}
}

// table is one TOML table; the one without a name is the top of the file.
type table struct {
	name, doc string
	settings  []setting
}

// setting is one key of a table; one without a name is not in this program's file.
type setting struct {
	name  string
	value value
	doc   string
}

// tables describes every key there is, with its place in c.
func (c *Config) tables() []table {
	top := c.top(host)
	top.settings = append(top.settings, setting{"host_root", optionalFile(&c.HostRoot),
		"Where the host's file system begins for an nth that runs in a container or a chroot of its own: the kubelet's files and plugin, and the sockets of D-Bus and systemd, are looked for below. Empty is `/`."})
	tables := []table{
		top, c.Log.table(), c.IMDS.table(), c.AWS.table(host), c.Kubernetes.table(host), c.Drain.table(host), c.LoadBalancers.table(),
		c.Webhook.table(), c.Metrics.table(host),
	}
	return append(tables, c.Events.tables()...)
}

// tables describes every key there is, with its place in c.
func (c *Queue) tables() []table {
	tables := []table{
		c.top(queue), c.Log.table(), c.Queue.table(), c.AWS.table(queue), c.Kubernetes.table(queue), c.Fleet.table(), c.Drain.table(queue),
		c.Webhook.table(), c.Metrics.table(queue),
	}
	return append(tables, c.Events.tables()...)
}

// program is the one whose file is described: some keys are in the file of nth alone, and some are explained otherwise.
type program bool

const (
	host  program = true  // nth
	queue program = false // nth-queue
)

// either is the text for nth, or the one for nth-queue.
func (p program) either(nth, nthQueue string) string {
	if p == host {
		return nth
	}
	return nthQueue
}

// only is a setting of the file of nth, and none of that of nth-queue.
func (p program) only(s setting) setting {
	if p == host {
		return s
	}
	return setting{}
}

// table is a table of those settings that p's file has.
func (p program) table(name, doc string, settings ...setting) table {
	settings = slices.DeleteFunc(settings, func(s setting) bool { return s.name == "" })
	return table{name, doc, settings}
}

// Pointer is a pointer to the settings of a program: to a Config or a Queue.
type Pointer[C any] interface {
	*C
	// Base is what both programs have.
	Base() *Common
	tables() []table
}

// Table describes one table of the configuration file; Name is "" for the top of the file.
type Table struct {
	Name, Doc string
	Settings  []Setting
}

// Setting describes one key of a table. Default is written in TOML, Allowed in words, Doc in Markdown.
type Setting struct {
	Name, Default, Allowed, Doc string
}

// Describe lists every table and key that a program has with its defaults, in the order in which files and documentation have them.
func Describe[C any, P Pointer[C]](defaults C) []Table {
	var described []Table
	for _, t := range P(&defaults).tables() {
		settings := make([]Setting, len(t.settings))
		for i, s := range t.settings {
			settings[i] = Setting{Name: s.name, Default: s.value.show(), Allowed: s.value.allowed(), Doc: s.doc}
		}
		described = append(described, Table{Name: t.name, Doc: t.doc, Settings: settings})
	}
	return described
}

// Encode writes every setting of cfg as TOML. What it writes loads again to the same settings, but for secrets, of which
// a comment says that they are set.
func Encode[C any, P Pointer[C]](w io.Writer, cfg C) error {
	b := bufio.NewWriter(w)
	for _, t := range P(&cfg).tables() {
		if t.name != "" {
			fmt.Fprintf(b, "\n[%s]\n", t.name)
		}
		for _, s := range t.settings {
			fmt.Fprintln(b, printed(s))
		}
	}
	return b.Flush()
}
