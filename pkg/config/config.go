// Package config reads the configuration files: /etc/nth/nth.toml and /etc/nth/nth-queue.toml, and their drop-ins.
//
// Config and Queue are plain data, and only cmd knows them: it passes to each package the few values that the package needs.
//
// A file consists of tables, such as [drain], and a table of keys. Each table has a type, and next to the type the method table, which describes
// its keys once: name, field, allowed values, default and meaning (Setting). Decoding, validation, printing, docs/configuration.md and the shipped
// packaging/nth.toml all follow from that description. Newcomers begin with Config.tables, and with Load (load.go).
//
// A wrong setting is an error, never a guess. The error has one line for each fault in all the files, which names the file, the
// key, the value and what would be right.
package config

import (
	"bufio"
	"fmt"
	"io"
	"slices"
)

//go:generate go test -run ^TestGenerated . -update

// DefaultFile and QueueFile are read when no file is named; they need not exist.
const (
	DefaultFile = "/etc/nth/nth.toml"
	QueueFile   = "/etc/nth/nth-queue.toml"
)

// Config has the settings of nth.
type Config struct {
	Common
	HostRoot      string // "" is "/"
	IMDS          IMDS
	LoadBalancers LoadBalancers
	Events        Events
}

// Queue has the settings of nth-queue, which drains nodes for messages in an SQS queue.
type Queue struct {
	Common
	Queue  SQS
	Fleet  Fleet
	Events QueueEvents
}

// Default returns the settings of an empty file of nth.
func Default() Config { return defaults[Config]() }

// DefaultQueue returns the settings of an empty file of nth-queue.
func DefaultQueue() Queue { return defaults[Queue]() }

// defaults returns the settings of an empty file of a program.
func defaults[C any, P Pointer[C]]() C {
	var c C
	for _, t := range P(&c).tables() {
		for _, s := range t.Settings {
			if s.value.initial != nil {
				s.value.set(s.value.initial)
			}
		}
	}
	return c
}

// Table describes one table of the configuration file; Name is "" for the top of the file.
type Table struct {
	Name, Doc string
	Settings  []Setting
}

// Setting describes one key of a table, with its value in some settings. Doc is written in Markdown.
type Setting struct {
	Name  string
	value value
	Doc   string
}

// Default returns the value in TOML. It is the default for a Setting that Describe returns.
func (s Setting) Default() string { return s.value.show() }

// Allowed says which values are allowed; it completes the sentence "must be ...".
func (s Setting) Allowed() string { return s.value.allowed }

// tables describes every key of nth's file. The settings point to the fields of c: to set one changes c.
func (c *Config) tables() []Table {
	top := c.top(host)
	top.Settings = append(top.Settings, Setting{"host_root", optionalFile(&c.HostRoot),
		"Where the host's file system begins, if nth runs in a container or a chroot: the kubelet's files and plugin, and the sockets of D-Bus and systemd, are below it. Empty is `/`."})
	tables := []Table{
		top, c.Log.table(), c.IMDS.table(), c.Kubernetes.table(host), c.Drain.table(host), c.LoadBalancers.table(),
		c.Webhook.table(), c.Metrics.table(host),
	}
	return append(tables, c.Events.tables()...)
}

// tables describes every key of nth-queue's file. The settings point to the fields of c: to set one changes c.
func (c *Queue) tables() []Table {
	tables := []Table{
		c.top(queue), c.Log.table(), c.Queue.table(), c.Kubernetes.table(queue), c.Fleet.table(), c.Drain.table(queue),
		c.Webhook.table(), c.Metrics.table(queue),
	}
	return append(tables, c.Events.tables()...)
}

// program is the program whose file is described. Some keys exist for one program only, and some are explained differently.
type program bool

const (
	host  program = true  // nth
	queue program = false // nth-queue
)

// either returns the text nth if p is host, and the text nthQueue if p is queue.
func (p program) either(nth, nthQueue string) string {
	if p == host {
		return nth
	}
	return nthQueue
}

// only returns a setting that only the program owner has. If p is the other program, it returns an empty Setting, which table leaves out.
func (p program) only(owner program, s Setting) Setting {
	if p == owner {
		return s
	}
	return Setting{}
}

// table returns a Table with those settings that p has: it leaves out the empty ones, which come from only.
func (p program) table(name, doc string, settings ...Setting) Table {
	return Table{name, doc, slices.DeleteFunc(settings, func(s Setting) bool { return s.Name == "" })}
}

// Pointer is a pointer to the settings of a program: to a Config or a Queue.
type Pointer[C any] interface {
	*C
	// Base returns the settings that both programs have.
	Base() *Common
	tables() []Table
}

// Describe returns every table and key of a program, with the values in defaults, in the sequence of the documentation.
func Describe[C any, P Pointer[C]](defaults C) []Table { return P(&defaults).tables() }

// Encode writes every setting of cfg in TOML, so that Decode reads the same settings from it. It does not write secrets: a comment says that they
// are set.
func Encode[C any, P Pointer[C]](w io.Writer, cfg C) error {
	b := bufio.NewWriter(w)
	for _, t := range P(&cfg).tables() {
		if t.Name != "" {
			fmt.Fprintf(b, "\n[%s]\n", t.Name)
		}
		for _, s := range t.Settings {
			shown := s.value.show()
			if s.value.secret && shown != `""` {
				fmt.Fprintf(b, "# %s is set, and not shown.\n", s.Name)
				continue
			}
			fmt.Fprintf(b, "%s = %s\n", s.Name, shown)
		}
	}
	return b.Flush()
}
