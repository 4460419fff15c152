package config

import (
	"net"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/nth-project/nth/pkg/event"
)

// table is one TOML table; the one without a name is the top of the file.
type table struct {
	name, doc string
	settings  []setting
}

// setting is one key of a table.
type setting struct {
	name  string
	value value
	doc   string
}

const day = 24 * time.Hour

var (
	actions    = []string{"ignore", "notify", "cordon", "drain"}
	levels     = []string{"debug", "info", "warning", "error"}
	formats    = []string{"auto", "text", "journal", "json", "prefix"}
	lifeCycles = []string{"spot", "on-demand", "scheduled", "capacity-block", "interruptible-capacity-reservation"}
	codes      = []string{"instance-stop", "instance-retirement", "system-reboot", "instance-reboot", "system-maintenance", "other"}
	keyOwners  = []string{"nth", "logind"}
	whens      = []string{"now", "lead", "window", "notify", "ignore"}
)

// tables describes every key there is, with its place in c.
func (c *Config) tables() []table {
	tables := []table{c.top(), c.Log.table(), c.IMDS.table(), c.AWS.table(), c.Kubernetes.table(), c.Drain.hostTable(), c.LoadBalancers.table(), c.Webhook.table(), c.Metrics.table()}
	return append(tables, c.Events.tables()...)
}

func (c *Config) top() table {
	return table{"", "", []setting{
		{"dry_run", boolean{&c.DryRun},
			"Watch, decide and log what would be done, but write nothing to the cluster except `kubernetes.heartbeat`."},
		{"state_directory", directory(&c.StateDirectory),
			"Where nth remembers what it has seen and done. `$STATE_DIRECTORY`, which systemd sets from `StateDirectory=`, overrides it."},
		{"runtime_directory", directory(&c.RuntimeDirectory),
			"Where nth keeps what needs not outlive a reboot. `$RUNTIME_DIRECTORY` overrides it."},
		{"host_root", optionalFile(&c.HostRoot),
			"Where the host's file system begins for an nth that runs in a container or a chroot of its own: the kubelet's files and plugin, and the sockets of D-Bus and systemd, are looked for below. Empty is `/`."},
	}}
}

func (c *Log) table() table {
	return table{"log", "Logging.", []setting{
		{"level", choice{&c.Level, levels},
			"The lowest level that is logged."},
		{"format", choice{&c.Format, formats},
			"`journal` writes to the systemd journal with fields, `text` and `json` write lines to standard error. `prefix` writes lines that begin with a priority such as `<6>` to standard output, for what hands them to a journal. `auto` is `journal` when systemd connects standard error to the journal, `prefix` in a host container of Bottlerocket, else `text`."},
	}}
}

func (c *IMDS) table() table {
	return table{"imds", "The instance metadata service, which announces what EC2 is going to do.", []setting{
		{"endpoint", optionalEndpoint(&c.Endpoint),
			"Another address to ask, for rehearsals. Empty is EC2's own: 169.254.169.254, or [fd00:ec2::254] where only that answers. `AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE=IPv6` in the environment, or `IPv4`, leaves one of them."},
		{"urgent_interval", duration{&c.UrgentInterval, 100 * time.Millisecond, 30 * time.Second},
			"How often to poll the documents that give only minutes of notice: spot interruption and Auto Scaling lifecycle state. What EC2 does not send to instances of this life cycle is looked at every five seconds."},
		{"rebalance_interval", duration{&c.RebalanceInterval, 100 * time.Millisecond, 10 * time.Minute},
			"How often to poll the rebalance recommendation."},
		{"maintenance_interval", duration{&c.MaintenanceInterval, 100 * time.Millisecond, time.Hour},
			"How often to poll scheduled maintenance."},
		{"life_cycles", choices{&c.LifeCycles, lifeCycles},
			"Watch only on instances of these life cycles (`[\"spot\"]`), so that one image serves all. Empty is all of them."},
	}}
}

// hostTable is the table for a program on the machine itself, where there are scripts to run.
func (c *Drain) hostTable() table {
	t := c.table()
	t.settings = append([]setting{
		{"scripts_wait", duration{&c.ScriptsWait, 0, time.Hour},
			"The longest wait, once the node is cordoned, for the units that `nth-before-drain.target` wants, before the first eviction; a quarter of the time before a hard deadline at most. With `0s` the target is not started."},
	}, t.settings...)
	return t
}

func (c *Drain) table() table {
	return table{"drain", "How nodes are drained, whatever the event.", []setting{
		{"evict_after", duration{&c.EvictAfter, 0, time.Hour},
			"How long to wait between the cordon and the first eviction."},
		{"margin", duration{&c.Margin, 0, 10 * time.Minute},
			"How long before a hard deadline every pod should be gone. A pod that resists eviction is deleted when only its grace period and this margin are left."},
		{"pod_grace_period", optionalDuration{&c.PodGracePeriod, 0, day},
			"The grace period given to every pod. Empty is each pod's own."},
		{"protect_empty_dir", boolean{&c.ProtectEmptyDir},
			"Do not evict pods with `emptyDir` volumes."},
		{"protect_unmanaged", boolean{&c.ProtectUnmanaged},
			"Do not evict pods without a controller, which nothing would recreate."},
		{"exclude_from_load_balancers", boolean{&c.ExcludeFromLoadBalancers},
			"Label the node `node.kubernetes.io/exclude-from-external-load-balancers` before evicting."},
		{"load_balancer_wait", duration{&c.LoadBalancerWait, 0, time.Hour},
			"How long to wait after that label, for load balancers to notice."},
		{"volume_wait", duration{&c.VolumeWait, 0, time.Hour},
			"The longest wait, once the pods are gone, for their volumes to be released. It ends `margin` before a deadline at the latest."},
	}}
}

func (c *Events) tables() []table {
	return []table{
		c.SpotInterruption.table(),
		c.RebalanceRecommendation.table(),
		c.ScheduledMaintenance.table(),
		c.ASGTermination.table(),
		c.Shutdown.table(),
		c.Hibernation.table(),
		c.ReservationEnd.table(),
	}
}

const (
	actionDoc    = "What to do: nothing at all, only report it, cordon, or cordon and drain."
	spreadDoc    = "Over how long the instances of a fleet begin, for codes that wait: each at a moment of its own, which follows from its instance ID, and none later than `lead` before. `0s` is all at once."
	withdrawnDoc = "How long the announcement must have been missing, while the metadata service answers, before it counts as withdrawn and what was done for it is undone."
)

func (c *SpotInterruption) table() table {
	return table{tableOf(event.SpotInterruption), "EC2 reclaims a spot instance, with about two minutes' notice.", []setting{
		{"action", choice{&c.Action, actions}, actionDoc},
		{"hibernate", choice{&c.Hibernate, actions},
			"What is done instead if the instance will only be hibernated; never more than `action`."},
		{"withdrawn_after", duration{&c.WithdrawnAfter, 0, 7 * day}, withdrawnDoc},
	}}
}

func (c *RebalanceRecommendation) table() table {
	return table{tableOf(event.RebalanceRecommendation), "A spot instance is at elevated risk of interruption.", []setting{
		{"action", choice{&c.Action, actions}, actionDoc},
		{"cordon_for", duration{&c.CordonFor, 0, 30 * day},
			"How long a cordon lasts if no drain follows; `0s` is until the recommendation is withdrawn."},
		{"withdrawn_after", duration{&c.WithdrawnAfter, 0, 7 * day}, withdrawnDoc},
	}}
}

func (c *ScheduledMaintenance) table() table {
	return table{tableOf(event.ScheduledMaintenance), "EC2 has planned a reboot, stop, retirement or maintenance.", []setting{
		{"action", choice{&c.Action, actions}, actionDoc},
		{"lead", duration{&c.Lead, 0, 30 * day},
			"How long before the maintenance begins (`NotBefore`) the action does at the latest, for codes that say `lead` or `window`."},
		{"window", duration{&c.Window, 0, 30 * day},
			"How long before the maintenance begins the action does at the earliest, for codes that say `window`. It is never less than `lead` and `spread` together."},
		{"spread", duration{&c.Spread, 0, day}, spreadDoc},
		{"hard_deadline", boolean{&c.HardDeadline},
			"Delete pods that resist eviction in time for the window. Otherwise their disruption budgets are respected to the end."},
		{"withdrawn_after", duration{&c.WithdrawnAfter, 0, 7 * day}, withdrawnDoc},
		{"codes", choiceOfEach{&c.Codes, codes, whens},
			"When the action is taken for each event code: at once (`now`), `lead` before the maintenance begins, near its date (`window`), or not, with (`notify`) or without (`ignore`) a word. `other` is every code that EC2 may yet invent."},
	}}
}

func (c *ASGTermination) table() table {
	return table{tableOf(event.ASGTermination), "The Auto Scaling group has chosen the instance for termination.", []setting{
		{"action", choice{&c.Action, actions}, actionDoc},
		{"budget", duration{&c.Budget, time.Second, 2 * day},
			"How long the drain may take: the announcement names no time. Heartbeats hold the machine that long, if nth may send them; otherwise keep this within the timeout of the group's lifecycle hook."},
		{"complete_hook", boolean{&c.CompleteHook},
			"If `action` is `drain`: hold the machine by heartbeats while it lasts, and complete the group's lifecycle hook when it has ended. It needs a policy on the instance's role, see docs/lifecycle.md."},
		hooksSetting("hooks", &c.Hooks, "unless it notifies somebody or is the one of an EKS managed node group."),
		c.onIncomplete(),
		{"withdrawn_after", duration{&c.WithdrawnAfter, 0, 7 * day}, withdrawnDoc},
	}}
}

// hooksSetting is a list of lifecycle hooks to complete, with which of the group's is completed unless otherwise.
func hooksSetting(key string, at *[]string, unless string) setting {
	return setting{key, names{at, hookName, `a list of names of lifecycle hooks, such as ["drain"]`},
		"The names of the lifecycle hooks to complete. Empty is the group's only one, " + unless}
}

func (c *Termination) onIncomplete() setting {
	return setting{"on_incomplete", choice{&c.OnIncomplete, []string{"continue", "abandon"}},
		"How the hooks are completed when the time is over and pods are left: `abandon` keeps the machine, running, where the group's instance lifecycle policy says so (TerminateHookAbandon=retain), and is `continue` elsewhere. It needs one permission more, see docs/lifecycle.md."}
}

func (c *Shutdown) table() table {
	return table{tableOf(event.Shutdown), "The operating system goes down, whoever asked for it.", []setting{
		{"action", choice{&c.Action, actions}, actionDoc},
		{"margin", duration{&c.Margin, 0, 10 * time.Minute},
			"How much of the time that there is for a shutdown or a sleep is left unused, so that it goes on by itself."},
		{"power_key", choice{&c.PowerKey, keyOwners},
			"Who answers the power button, which is all that EC2 presses. `nth` drains the node, if `action` is `drain`, and has logind power the machine off then, so that the kubelet's own graceful shutdown comes after it; see docs/shutdown.md. `logind` announces a shutdown to both at once."},
	}}
}

func (c *Hibernation) table() table {
	return table{tableOf(event.Hibernation), "The machine is put to sleep, which is what EC2's hibernation is to it. What was done is undone when it wakes.", []setting{
		{"action", choice{&c.Action, actions}, actionDoc},
	}}
}

func (c *ReservationEnd) table() table {
	return table{tableOf(event.ReservationEnd), "The Capacity Block, or the interruptible Capacity Reservation, that the instance runs in comes to its end. EC2 is asked for it, which needs a policy on the instance's role, see docs/reservations.md.", []setting{
		{"action", choice{&c.Action, actions}, actionDoc},
		{"lead", duration{&c.Lead, time.Minute, 30 * day},
			"How long before EC2 begins to terminate instances the action begins: that is half an hour before the end of a Capacity Block, and an hour for UltraServers."},
		{"withdrawn_after", duration{&c.WithdrawnAfter, 0, 7 * day},
			"How long the end must have been missing, while EC2 answers, before it counts as withdrawn and what was done for it is undone."},
	}}
}

// AWS is the table [aws].
type AWS struct {
	Region   string // "" is the instance's, or the queue's
	Endpoint string // "" is the region's own
	// EC2Endpoint is nth's alone: nth-queue has one for all.
	EC2Endpoint string
}

func (c *AWS) table() table {
	return table{"aws", "AWS's own services, which are asked with the role of the instance.", []setting{
		{"region", regionName(&c.Region),
			"The region to ask in. Empty is the one that the instance is in."},
		{"endpoint", optionalEndpoint(&c.Endpoint),
			"Another address of Auto Scaling to ask, such as that of a VPC endpoint without private DNS, or a rehearsal's. Empty is the region's own, or what `AWS_ENDPOINT_URL_AUTO_SCALING`, `AWS_USE_FIPS_ENDPOINT` and their like in the environment say."},
		{"ec2_endpoint", optionalEndpoint(&c.EC2Endpoint),
			"The same for EC2."},
	}}
}

func (c *AWS) queueTable() table {
	return table{"aws", "AWS's own services, which are asked with the credentials that AWS's programs would find: an instance's role, those of a pod or a service account, the environment.", []setting{
		{"region", regionName(&c.Region),
			"The region to ask in. Empty is the one in the queue's URL; of a URL that names none, it is what `AWS_REGION` in the environment says."},
		{"endpoint", optionalEndpoint(&c.Endpoint),
			"Another address to ask, for SQS, EC2 and Auto Scaling alike, such as a rehearsal's. Empty is the region's own; `AWS_ENDPOINT_URL_SQS` and its like in the environment lead to the endpoints of a VPC."},
	}}
}

func regionName(at *string) text {
	return text{at, func(s string) bool { return s == "" || region.MatchString(s) }, `a region such as "eu-central-1", or ""`}
}

var region = regexp.MustCompile(`^[a-z]{2,4}(-[a-z]+)+-[0-9]+$`)

var (
	sources = []string{"kubeconfig", "bottlerocket"}
	tokens  = []string{"auto", "plugin", "eks"}
)

func (c *Kubernetes) table() table {
	return table{"kubernetes", "The way to the API server, with the kubelet's own identity, and what is told there.", append([]setting{
		{"kubeconfig", optionalFile(&c.Kubeconfig),
			"The kubelet's kubeconfig. Empty is the first that exists of `/var/lib/kubelet/kubeconfig`, `/etc/kubernetes/kubelet/kubeconfig` and `/etc/kubernetes/kubelet.conf`."},
		{"source", choice{&c.Source, sources},
			"Where the API server, its certificate and the cluster's name are from: the kubelet's kubeconfig, or the settings of the Bottlerocket host on which nth is a host container."},
		{"token", choice{&c.Token, tokens},
			"How to obtain the EKS token where the kubeconfig names a plugin for that (`aws eks get-token`, `aws-iam-authenticator`): made by nth itself from the instance's role, as the plugin would (`eks`), or by running the plugin (`plugin`). `auto` makes it where the plugin is asked for nothing but a cluster's token, and runs the plugin elsewhere, and where that fails or the token is refused. With `source = \"bottlerocket\"` it is always `eks`."},
		{"keep_warm", duration{&c.KeepWarm, time.Second, day},
			"The time between two cheap requests that keep the credential fresh, so that a drain never starts by fetching a token."},
		{"heartbeat", duration{&c.Heartbeat, 0, day},
			"The time between two writes of the condition `InterruptionPending`, give or take a tenth, while nth watches and nothing changes: by `lastHeartbeatTime` others see which nodes have a live nth. With \"0s\" there is no condition before something is announced, and it is refreshed only while it is `True`, every five minutes."},
	}, c.ToldCluster.settings()...)}
}

// settings describes what the cluster is told, which is the same for nth and for nth-queue.
func (c *ToldCluster) settings() []setting {
	return []setting{
		{"condition", boolean{&c.Condition},
			"Maintain the Node's condition `InterruptionPending`."},
		{"lifecycle_conditions", boolean{&c.LifecycleConditions},
			"Maintain the Node's conditions `DrainInProgress`, `Drained`, `MaintenancePlanned` and `MaintenanceInProgress`, as far as they are nobody else's. In Kubernetes they are alpha."},
		{"events", boolean{&c.Events},
			"Write Events about the Node, and about the pods that are evicted, for `kubectl describe` and whoever collects them."},
		{"event_source", text{&c.EventSource, func(s string) bool { return len(s) <= longestName && component.MatchString(s) },
			"a name of letters, digits, dashes and dots"},
			"The component that Events name as their source."},
		{"event_annotations", texts{&c.EventAnnotations, annotation,
			`a table of annotations such as { "example.com/team" = "a" }, each of up to 1024 bytes`},
			"Annotations that every Event gets; of the same name, they go before those of nth."},
	}
}

// The shapes of names and domains. How long they may be is no part of the expressions: a count in one is compiled into so
// many copies, at every start.
var (
	component = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$`)
	keyName   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	keyDomain = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`)
)

const (
	longestName   = 63
	longestDomain = 253
)

// annotation tells whether the API server takes that for an annotation of reasonable size.
func annotation(key, text string) bool { return isKey(key) && len(text) <= 1024 }

// isKey tells whether that is the key of an annotation or a label: a name, after a domain and a slash or alone.
func isKey(s string) bool {
	domain, name, found := strings.Cut(s, "/")
	if !found {
		domain, name = "none", s
	}
	return len(domain) <= longestDomain && keyDomain.MatchString(domain) &&
		len(name) <= longestName && keyName.MatchString(name)
}

// Metrics is the table [metrics].
type Metrics struct {
	Listen     string // "host:port"; "" is off
	Textfile   string // "" is off
	Compatible bool
}

func (c *Metrics) table() table {
	return table{"metrics", "Metrics for Prometheus, and whether nth is alive. docs/metrics.md lists them.", []setting{
		listenSetting(&c.Listen),
		{"textfile", textfile(&c.Textfile),
			"A file that node_exporter's textfile collector reads. The unit lets nth write into `/var/lib/node_exporter` and `/var/lib/prometheus/node-exporter`; another directory needs `ReadWritePaths=`. Empty is none."},
		compatibleSetting(&c.Compatible),
	}}
}

func listenSetting(at *string) setting {
	return setting{
		"listen", text{at, isListener, `an address such as ":9092" or "127.0.0.1:9092", or ""`},
		"Where `/metrics` and `/healthz` are served. `\":9092\"` is every address of the machine; `\"127.0.0.1:9092\"` is reached from this machine only. Empty is nowhere.",
	}
}

func compatibleSetting(at *bool) setting {
	return setting{
		"compatible", boolean{at},
		"Add the counters of aws-node-termination-handler, `actions_total` and `events_error_total`, for dashboards that have them.",
	}
}

// isListener tells whether something can be listened at there. A host is an IP address or a name.
func isListener(s string) bool {
	if s == "" {
		return true
	}
	host, port, err := net.SplitHostPort(s)
	number, bad := strconv.ParseUint(port, 10, 16)
	return err == nil && bad == nil && number > 0 && !strings.ContainsAny(host, " /")
}

func textfile(at *string) text {
	return text{at, isTextfile, `an absolute path that ends with ".prom", or ""`}
}

func isTextfile(s string) bool {
	return s == "" || filepath.IsAbs(s) && filepath.Clean(s) == s && strings.HasSuffix(s, ".prom")
}

// LoadBalancers is the table [load_balancers].
type LoadBalancers struct {
	TargetGroups []string // ARNs, or "all" alone; nil is none
	Endpoint     string   // "" is the region's own
}

func (c *LoadBalancers) table() table {
	return table{"load_balancers", "Load balancers of AWS, which are asked with the role of the instance when they are done with it.", []setting{
		{"target_groups", targetGroups{names{&c.TargetGroups, targetGroup, `a list of ARNs of target groups, or ["all"]`}},
			"The target groups of Elastic Load Balancing that this node or its pods are in, by their ARNs. Evictions wait until the node is out of them, instead of for `drain.load_balancer_wait`, and the end of the drain until its pods are. `[\"all\"]` stands for those of the instance's VPC. Empty asks nothing. It needs a policy on the instance's role, see docs/load-balancers.md."},
		{"endpoint", optionalEndpoint(&c.Endpoint),
			"Another address to ask, such as that of a VPC endpoint without private DNS, or a rehearsal's. Empty is the region's own, or what `AWS_ENDPOINT_URL_ELASTIC_LOAD_BALANCING_V2`, `AWS_USE_FIPS_ENDPOINT` and their like in the environment say."},
	}}
}

// allGroups stands for the target groups of the VPC.
const allGroups = "all"

var targetGroupARN = regexp.MustCompile(`^arn:aws[a-z-]*:elasticloadbalancing:[a-z0-9-]+:\d{12}:targetgroup/[A-Za-z0-9-]{1,32}/[0-9a-f]{16}$`)

func targetGroup(s string) bool { return s == allGroups || targetGroupARN.MatchString(s) }

// targetGroups are names, of which one stands for all and goes alone.
type targetGroups struct{ names }

func (v targetGroups) set(got any, fault func(string, any, string)) {
	if list, ok := got.([]any); ok && len(list) > 1 {
		for _, item := range list {
			if item == allGroups {
				fault("", got, v.want)
				return
			}
		}
	}
	v.names.set(got, fault)
}

// Webhook is the table [webhook]. URL, Headers and Proxy are never printed.
type Webhook struct {
	URL, URLFile           string // both "" is a credential of the service, or off
	Headers                map[string]string
	HeadersFile            string
	Template, TemplateFile string // both "" is nth's own
	TemplateText           string // what is of use of these two, noted by who has judged them; no setting
	Proxy                  string
	CAFile                 string
	Timeout                time.Duration
	AtDetection            bool
	AtEnd                  bool
	AtClose                bool
}

func defaultWebhook() Webhook {
	return Webhook{Timeout: 5 * time.Second, AtDetection: true, AtEnd: true, AtClose: true}
}

func (c *Webhook) table() table {
	return table{"webhook", "Where notices are posted to. docs/notices.md says when, and what a template can use.", []setting{
		{"url", secret{&c.URL, isEndpoint, `a URL that begins with "https://" or "http://", or ""`},
			"The address. Empty is what `url_file` says, or the service's credential `webhook-url`; without any, nothing is posted. It is never printed or logged."},
		{"url_file", optionalFile(&c.URLFile),
			"A file that holds the address, read for each notice."},
		{"headers", secrets{&c.Headers},
			"Headers to send, such as `{ Authorization = \"...\" }`. `Content-Type` is `application/json` unless one says otherwise. Their values are never printed or logged."},
		{"headers_file", optionalFile(&c.HeadersFile),
			"A file with a line `Name: value` for each further header, or an object in JSON, read for each notice. Empty is the service's credential `webhook-headers`, if it has one."},
		{"template", anyText(&c.Template),
			"What is posted: a template as Go's text/template has them, with the functions of sprig. Empty is `template_file`, or `{\"text\": \"...\"}` with one sentence."},
		{"template_file", optionalFile(&c.TemplateFile),
			"A file that holds the template, read at the start and at a reload. There are some in `/usr/share/nth/webhook`."},
		{"proxy", secret{&c.Proxy, isProxy, `a URL that begins with "http://", "https://", "socks5://" or "tcp://", or ""`},
			"The proxy to go through. Those in the environment are not used. It is never printed."},
		{"ca_file", optionalFile(&c.CAFile),
			"Certificates, in PEM, to trust beside the system's."},
		{"timeout", duration{&c.Timeout, 100 * time.Millisecond, time.Minute},
			"How long one attempt may take. One that fails is repeated, for a day at most."},
		{"at_detection", boolean{&c.AtDetection},
			"Post when an event is announced."},
		{"at_end", boolean{&c.AtEnd},
			"Post when what was to be done about it is done, its time is over, or it went wrong."},
		{"at_close", boolean{&c.AtClose},
			"Post when the event no longer stands and nothing of it is left on the node."},
	}}
}
