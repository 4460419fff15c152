package config

import (
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Common has the settings that both programs have.
type Common struct {
	DryRun bool
	// StateDirectory survives reboots, and RuntimeDirectory does not. No file sets them: systemd names them in the environment. They have no default.
	StateDirectory   string
	RuntimeDirectory string
	Log              Log
	Kubernetes       Kubernetes
	Drain            Drain
	Webhook          Webhook
	Metrics          Metrics
}

// Base returns c: it implements Pointer for the types that embed Common.
func (c *Common) Base() *Common { return c }

// top describes the keys of both programs at the top of the file.
func (c *Common) top(p program) Table {
	return p.table("", "",
		Setting{"dry_run", boolean(&c.DryRun),
			p.either("Watch, decide and log what would be done, but write nothing to the cluster except `kubernetes.heartbeat`.",
				"Watch, decide and log what would be done, but write nothing to the cluster, complete no lifecycle action and delete no message.")},
	)
}

// Log is the table [log].
type Log struct {
	Level  string // debug, info, warning or error
	Format string // auto, text, json or prefix
}

// table describes the table [log]. Each Setting reads and shows a field of c.
func (c *Log) table() Table {
	return Table{"log", "Logging.", []Setting{
		{"level", choice(&c.Level, "debug", "info", "warning", "error").initially("info"),
			"The lowest level that is logged."},
		{"format", choice(&c.Format, "auto", "text", "json", "prefix").initially("auto"),
			"`auto` writes to the systemd journal, with fields, where standard error leads there, and is `text` elsewhere. The others write to standard error, or in a host container of Bottlerocket to standard output; `prefix` has a priority such as `<6>` before each line. A host container has `prefix` by default."},
	}}
}

// Kubernetes is the table [kubernetes].
type Kubernetes struct {
	Kubeconfig string        // "" is the first that is found; for nth-queue, the service's credential or the pod's service account
	Heartbeat  time.Duration // nth only; 0 is none
	Condition  bool          // nth-queue only
	Labels     bool
	Events     bool
}

// table describes the table [kubernetes]. Each Setting reads and shows a field of c.
func (c *Kubernetes) table(p program) Table {
	return p.table("kubernetes", p.either("The connection to the API server, with the kubelet's own identity, and what is reported there.",
		"The connection to the API server, and what is reported there."),
		Setting{"kubeconfig", optionalFile(&c.Kubeconfig),
			p.either("The kubelet's kubeconfig. Empty is the first that exists of `/var/lib/kubelet/kubeconfig`, `/etc/kubernetes/kubelet/kubeconfig` and `/etc/kubernetes/kubelet.conf`.",
				"The kubeconfig of an identity with the rights in docs/queue.md. Empty is the service's credential `kubeconfig`, which the unit loads from `/etc/nth/nth-queue.kubeconfig`, or else the service account of the pod.")},
		p.only(host, Setting{"heartbeat", duration(&c.Heartbeat, 0, day).initially("5m"),
			"How often the condition `InterruptionPending` is renewed, give or take a tenth: its `lastHeartbeatTime` shows which nodes have a live nth. With `0s` it is set only when something is announced, and not renewed."}),
		p.only(queue, Setting{"condition", boolean(&c.Condition).initially(true),
			"Maintain the Node's condition `InterruptionPending`."}),
		Setting{"labels", boolean(&c.Labels),
			"Keep the labels `nth-project.github.io/interruption` and `…/maintenance-not-before` with the condition."},
		Setting{"events", boolean(&c.Events).initially(true),
			p.either("Write Events about the Node, and about pods that are evicted or deleted.",
				"Write Events about the Node, and about pods that are deleted.")},
	)
}

// Drain is the table [drain].
type Drain struct {
	ScriptsWait         time.Duration // nth only; 0 is none
	Margin              time.Duration
	PodGracePeriod      time.Duration // 0 is that of each pod
	ProtectEmptyDir     bool
	ProtectUnmanaged    bool
	RespectDoNotDisrupt bool
	LoadBalancerWait    time.Duration
}

// table describes the table [drain]. Each Setting reads and shows a field of c.
func (c *Drain) table(p program) Table {
	return p.table("drain", "How nodes are drained, whatever the event.",
		p.only(host, Setting{"scripts_wait", duration(&c.ScriptsWait, 0, time.Hour),
			"The longest wait, after the cordon, for the units that `nth-before-drain.target` wants; at most a quarter of the time before a hard deadline. With `0s` the target is not started."}),
		Setting{"margin", duration(&c.Margin, 0, 10*time.Minute).initially("2s"),
			"How long before a hard deadline every pod should be gone. A pod that resists eviction is deleted when only its grace period and this margin are left."},
		Setting{"pod_grace_period", duration(&c.PodGracePeriod, 0, day),
			"The grace period given to every pod; `0s` is each pod's own."},
		Setting{"protect_empty_dir", boolean(&c.ProtectEmptyDir),
			"Do not evict pods with `emptyDir` volumes."},
		Setting{"protect_unmanaged", boolean(&c.ProtectUnmanaged),
			"Do not evict pods without a controller, which nothing would recreate."},
		Setting{"respect_do_not_disrupt", boolean(&c.RespectDoNotDisrupt),
			"Treat pods with `karpenter.sh/do-not-disrupt: \"true\"` or `cluster-autoscaler.kubernetes.io/safe-to-evict: \"false\"` like `nth-project.github.io/evict: at-deadline`."},
		Setting{"load_balancer_wait", duration(&c.LoadBalancerWait, 0, time.Hour),
			"How long evictions wait for load balancers to notice the label `node.kubernetes.io/exclude-from-external-load-balancers`. With `0s` it is set only if there are `load_balancers.target_groups`."},
	)
}

// Webhook is the table [webhook]. Proxy is never printed, as it may contain a password.
type Webhook struct {
	URLFile     string // "" is the service's credential
	HeadersFile string // "" is the service's credential
	Template    string // a template, or the absolute path of one; if "", the default is used
	Proxy       string
	Cluster     string   // the cluster's name in notices
	At          []string // the phases at which notices are posted
}

// IsTemplateFile reports whether Template is the path of a file. No template for JSON or text begins with a slash.
func (c *Webhook) IsTemplateFile() bool { return filepath.IsAbs(c.Template) }

// phases are the phases of an event at which a notice can be posted; see docs/notices.md.
var phases = []string{"announced", "ended", "over"}

func isPhase(s string) bool { return slices.Contains(phases, s) }

// table describes the table [webhook]. Each Setting reads and shows a field of c.
func (c *Webhook) table() Table {
	return Table{"webhook", "Where notices are posted to. docs/notices.md says when, and what a template can use.", []Setting{
		{"url_file", optionalFile(&c.URLFile),
			"A file that holds the address, which is never printed or logged. Empty is the service's credential `webhook-url`; without any, nothing is posted."},
		{"headers_file", optionalFile(&c.HeadersFile),
			"A file with headers to send: one JSON object, such as `{\"Authorization\": \"...\"}`. `Content-Type` is `application/json` by default. Empty is the service's credential `webhook-headers`, if any."},
		{"template", anyText(&c.Template),
			"The template of what is posted, or the absolute path of its file, which is read at the start and at a reload. Empty is `{\"text\": \"...\"}` with one sentence."},
		{"proxy", hidden(anyText(&c.Proxy)),
			"The proxy to use, such as `http://proxy.example:3128`; never printed. Those in the environment are ignored."},
		{"cluster", anyText(&c.Cluster),
			"The cluster's name in notices. Empty is the Node's label `alpha.eksctl.io/cluster-name`."},
		{"at", list(&c.At, isPhase, "a list of any of "+quoteAll(phases)).initially([]any{"announced", "ended", "over"}),
			"When to post: an event is announced; the work for it has ended, well or not; it is over and undone."},
	}}
}

// Metrics is the table [metrics].
type Metrics struct {
	Listen   string // "host:port"; "" is off
	Textfile string // "" is off
}

// table describes the table [metrics]. Each Setting reads and shows a field of c.
func (c *Metrics) table(p program) Table {
	return p.table("metrics", "Metrics for Prometheus. docs/metrics.md lists them.",
		Setting{"listen", optionalText(&c.Listen, isListener, `an address such as ":9092" or "127.0.0.1:9092"`),
			"Where `/metrics` and `/healthz` are served: `\":9092\"` is every address of the machine, `\"127.0.0.1:9092\"` this machine only. Empty is nowhere."},
		Setting{"textfile", optionalText(&c.Textfile, isTextfile, `an absolute path that ends with ".prom"`),
			"A file for node_exporter's textfile collector, in a directory that the service may write to; see docs/metrics.md. Empty is none."},
	)
}

// isListener reports whether s is an address to listen on: a port, after a host name or an IP address if there is one.
func isListener(s string) bool {
	host, port, err := net.SplitHostPort(s)
	if err != nil || strings.ContainsAny(host, " /") {
		return false
	}
	number, err := strconv.ParseUint(port, 10, 16)
	return err == nil && number > 0
}

// isTextfile reports whether s is an absolute path without "..", with the ending that node_exporter's textfile collector reads.
func isTextfile(s string) bool {
	return filepath.IsAbs(s) && filepath.Clean(s) == s && strings.HasSuffix(s, ".prom")
}
