package config

import (
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Common has the settings that both programs have.
type Common struct {
	DryRun bool
	// StateDirectory survives reboots, and RuntimeDirectory does not. They are no settings: systemd names them in the environment.
	StateDirectory   string
	RuntimeDirectory string
	Log              Log
	Kubernetes       Kubernetes
	Drain            Drain
	Webhook          Webhook
	Metrics          Metrics
}

// defaultCommon returns the defaults for the program of that name.
func defaultCommon(name string) Common {
	return Common{
		StateDirectory:   "/var/lib/" + name,
		RuntimeDirectory: "/run/" + name,
		Log:              Log{Level: "info", Format: "auto"},
		Kubernetes:       Kubernetes{Token: "auto", ToldCluster: ToldCluster{Condition: true, Events: true}},
		Drain:            Drain{Margin: 2 * time.Second, VolumeWait: 20 * time.Second},
		Webhook:          Webhook{At: phases},
	}
}

// Base returns c.
func (c *Common) Base() *Common { return c }

// KeepNotifications copies the tables that only concern reporting from other.
func (c *Common) KeepNotifications(other *Common) {
	c.Log, c.Webhook, c.Metrics = other.Log, other.Webhook, other.Metrics
}

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
	Format string // auto, text, journal, json or prefix
}

func (c *Log) table() Table {
	return Table{"log", "Logging.", []Setting{
		{"level", choice(&c.Level, "debug", "info", "warning", "error"),
			"The lowest level that is logged."},
		{"format", choice(&c.Format, "auto", "text", "journal", "json", "prefix"),
			"`journal` writes to the systemd journal with fields, `text` and `json` write lines to standard error. `prefix` writes lines that begin with a priority such as `<6>` to standard output, for what hands them to a journal. `auto` is `journal` when systemd connects standard error to the journal, `prefix` in a host container of Bottlerocket, else `text`."},
	}}
}

// Kubernetes is the table [kubernetes].
type Kubernetes struct {
	Kubeconfig string        // "" is searched for; for nth-queue, it is a credential or the service account
	Token      string        // auto, plugin or eks
	Heartbeat  time.Duration // nth only; 0 is none
	ToldCluster
}

// ToldCluster is the part of the table [kubernetes] that says what is reported to the cluster.
type ToldCluster struct {
	Condition bool
	Events    bool
}

// Values of kubernetes.token.
const (
	AutoToken   = "auto"
	PluginToken = "plugin"
)

func (c *Kubernetes) table(p program) Table {
	return p.table("kubernetes", p.either("The connection to the API server, with the kubelet's own identity, and what is reported there.",
		"The connection to the API server, and what is reported there."),
		Setting{"kubeconfig", optionalFile(&c.Kubeconfig),
			p.either("The kubelet's kubeconfig. Empty is the first that exists of `/var/lib/kubelet/kubeconfig`, `/etc/kubernetes/kubelet/kubeconfig` and `/etc/kubernetes/kubelet.conf`.",
				"The kubeconfig of an identity with the rights in docs/queue.md. Empty is the service's credential `kubeconfig` (`$CREDENTIALS_DIRECTORY`), which the unit loads from `/etc/nth/nth-queue.kubeconfig`, or else the service account of the pod that nth-queue runs in.")},
		Setting{"token", choice(&c.Token, AutoToken, PluginToken, "eks"),
			p.either("How to obtain the EKS token where the kubeconfig names a plugin for that (`aws eks get-token`, `aws-iam-authenticator`): made by nth itself from the instance's role, as the plugin would (`eks`), or by running the plugin (`plugin`). `auto` makes it where the plugin is asked for nothing but a cluster's token, and runs the plugin elsewhere, and where that fails or the token is refused. In a host container of Bottlerocket that does not see the host's files it is always `eks`.",
				"How to obtain the EKS token where the kubeconfig names a plugin for that (`aws eks get-token`, `aws-iam-authenticator`): made by nth-queue itself with the credentials by which it asks AWS, as the plugin would (`eks`), or by running the plugin (`plugin`). `auto` makes it where the plugin is asked for nothing but a cluster's token, and runs the plugin elsewhere, and where that fails or the token is refused.")},
		p.only(Setting{"heartbeat", duration(&c.Heartbeat, 0, day),
			"The time between two writes of the condition `InterruptionPending`, give or take a tenth, while nth watches and nothing changes: by `lastHeartbeatTime` others see which nodes have a live nth. With \"0s\" there is no condition before something is announced, and it is refreshed only while it is `True`, every five minutes."}),
		Setting{"condition", boolean(&c.Condition),
			"Maintain the Node's condition `InterruptionPending`."},
		Setting{"events", boolean(&c.Events),
			"Write Events about the Node, and about the pods that are evicted, for `kubectl describe` and for collectors."},
	)
}

// The syntax of names and domains. Lengths are checked separately: a repetition count is compiled into as many copies, at every start.
var (
	component = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$`)
	keyName   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	keyDomain = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`)
)

const (
	longestName   = 63
	longestDomain = 253
)

// isKey tells whether s is the key of a label: a name, with or without a domain and a slash before it.
func isKey(s string) bool {
	domain, name, found := strings.Cut(s, "/")
	if !found {
		domain, name = "none", s
	}
	return len(domain) <= longestDomain && keyDomain.MatchString(domain) &&
		len(name) <= longestName && keyName.MatchString(name)
}

// Drain is the table [drain].
type Drain struct {
	ScriptsWait      time.Duration // nth only; 0 is none
	Margin           time.Duration
	PodGracePeriod   *time.Duration // nil is that of each pod
	ProtectEmptyDir  bool
	ProtectUnmanaged bool
	LoadBalancerWait time.Duration
	VolumeWait       time.Duration
}

func (c *Drain) table(p program) Table {
	return p.table("drain", "How nodes are drained, whatever the event.",
		p.only(Setting{"scripts_wait", duration(&c.ScriptsWait, 0, time.Hour),
			"The longest wait, once the node is cordoned, for the units that `nth-before-drain.target` wants, before the first eviction; a quarter of the time before a hard deadline at most. With `0s` the target is not started."}),
		Setting{"margin", duration(&c.Margin, 0, 10*time.Minute),
			"How long before a hard deadline every pod should be gone. A pod that resists eviction is deleted when only its grace period and this margin are left."},
		Setting{"pod_grace_period", optionalDuration(&c.PodGracePeriod, 0, day),
			"The grace period given to every pod. Empty is each pod's own."},
		Setting{"protect_empty_dir", boolean(&c.ProtectEmptyDir),
			"Do not evict pods with `emptyDir` volumes."},
		Setting{"protect_unmanaged", boolean(&c.ProtectUnmanaged),
			"Do not evict pods without a controller, which nothing would recreate."},
		Setting{"load_balancer_wait", duration(&c.LoadBalancerWait, 0, time.Hour),
			p.either("How long to wait before the first eviction, for load balancers to notice that the node has the label `node.kubernetes.io/exclude-from-external-load-balancers`. With `0s` the label is set only if there are `load_balancers.target_groups`.",
				"How long to wait before the first eviction, for load balancers to notice that the node has the label `node.kubernetes.io/exclude-from-external-load-balancers`. With `0s` the label is not set.")},
		Setting{"volume_wait", duration(&c.VolumeWait, 0, time.Hour),
			"The longest wait, once the pods are gone, for their volumes to be released. It ends `margin` before a deadline at the latest."},
	)
}

// Webhook is the table [webhook]. URL, Headers and Proxy are never printed.
type Webhook struct {
	URL, URLFile string // if both are "", the service's credential is used
	Headers      map[string]string
	HeadersFile  string
	Template     string // a template, or the absolute path of one; if "", the default is used
	TemplateText string // the valid one, set after validation; no setting
	Proxy        string
	CAFile       string
	Cluster      string   // in the notices
	At           []string // announced, ended and over
}

// IsTemplateFile tells whether Template is the path of a file. No template for JSON or text begins with a slash.
func (c *Webhook) IsTemplateFile() bool { return filepath.IsAbs(c.Template) }

// phases are those of a notice; see docs/notices.md.
var phases = []string{"announced", "ended", "over"}

func (c *Webhook) table() Table {
	return Table{"webhook", "Where notices are posted to. docs/notices.md says when, and what a template can use.", []Setting{
		{"url", secret{optionalText(&c.URL, isEndpoint, `a URL that begins with "https://" or "http://"`)},
			"The address. Empty is what `url_file` says, or the service's credential `webhook-url`; without any, nothing is posted. It is never printed or logged."},
		{"url_file", optionalFile(&c.URLFile),
			"A file that holds the address, read for each notice."},
		{"headers", secret{headers(&c.Headers)},
			"Headers to send, such as `{ Authorization = \"...\" }`. `Content-Type` is `application/json` unless one says otherwise. Their values are never printed or logged."},
		{"headers_file", optionalFile(&c.HeadersFile),
			"A file with a line `Name: value` for each further header, or an object in JSON, read for each notice. Empty is the service's credential `webhook-headers`, if it has one."},
		{"template", anyText(&c.Template),
			"What is posted: a template as Go's text/template has them, with the functions of sprig, or the absolute path of a file that holds one, which is read at the start and at a reload. There are some in `/usr/share/nth/webhook`. Empty is `{\"text\": \"...\"}` with one sentence."},
		{"proxy", secret{optionalText(&c.Proxy, isProxy, `a URL that begins with "http://", "https://", "socks5://" or "tcp://"`)},
			"The proxy to go through. Those in the environment are not used. It is never printed."},
		{"ca_file", optionalFile(&c.CAFile),
			"Certificates, in PEM, to trust in addition to the system's."},
		{"cluster", optionalText(&c.Cluster, func(s string) bool { return len(s) <= longestName && component.MatchString(s) }, "a name of letters, digits, dashes and dots"),
			"The cluster's name in the notices. Empty is the name in the Node's label `alpha.eksctl.io/cluster-name`, if it has one."},
		{"at", list(&c.At, func(s string) bool { return slices.Contains(phases, s) }, "a list of any of "+quoteAll(phases)),
			"When to post: when an event is announced; when what was to be done about it has ended, well or not; when the event is over and nothing of it is left on the node."},
	}}
}

// Metrics is the table [metrics].
type Metrics struct {
	Listen     string // "host:port"; "" is off
	Textfile   string // "" is off
	Compatible bool
}

func (c *Metrics) table(p program) Table {
	return p.table("metrics", p.either("Metrics for Prometheus, and whether nth is alive. docs/metrics.md lists them.",
		"Metrics for Prometheus, and whether nth-queue is alive. docs/metrics.md lists them."),
		Setting{"listen", optionalText(&c.Listen, isListener, `an address such as ":9092" or "127.0.0.1:9092"`),
			"Where `/metrics` and `/healthz` are served. `\":9092\"` is every address of the machine; `\"127.0.0.1:9092\"` is reached from this machine only. Empty is nowhere."},
		Setting{"textfile", optionalText(&c.Textfile, isTextfile, `an absolute path that ends with ".prom"`),
			p.either("A file that node_exporter's textfile collector reads. The unit lets nth write into `/var/lib/node_exporter` and `/var/lib/prometheus/node-exporter`; another directory needs `ReadWritePaths=`. Empty is none.",
				"A file that node_exporter's textfile collector reads. The service's user has to be allowed to write into its directory, see docs/metrics.md. Empty is none.")},
		Setting{"compatible", boolean(&c.Compatible),
			"Add the counters of aws-node-termination-handler, `actions_total` and `events_error_total`, for dashboards that have them."},
	)
}

// isListener tells whether s is an address to listen on: a port, after a host name or an IP address if there is one.
func isListener(s string) bool {
	host, port, err := net.SplitHostPort(s)
	number, bad := strconv.ParseUint(port, 10, 16)
	return err == nil && bad == nil && number > 0 && !strings.ContainsAny(host, " /")
}

func isTextfile(s string) bool {
	return filepath.IsAbs(s) && filepath.Clean(s) == s && strings.HasSuffix(s, ".prom")
}
