package migration

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// rule says what becomes of one setting: to converts it, or why says why it has no counterpart.
type rule struct {
	env   string // the environment variable
	chart string // the value of the Helm chart; "" if there is no such value
	to    conversion
	// why says why the setting has no counterpart, or what else to know about it.
	why string
	// always: to is called even if the setting is not set.
	always bool
	// queue is the rule for nth-queue; nil if it is the same.
	queue *rule
}

// conversion turns a value into lines. It returns none if nth does the same without a line. Its error completes the sentence "SETTING must be ...".
type conversion func(s Settings, value string) ([]line, error)

// line is one setting of nth. Its value is TOML.
type line struct{ table, key, value string }

// webhookURL is converted even if the input does not have its value: nth reads the address from a file of its own.
const webhookURL = "WEBHOOK_URL"

const (
	spot        = "events.spot-interruption"
	rebalance   = "events.rebalance-recommendation"
	maintenance = "events.scheduled-maintenance"
	asg         = "events.asg-termination"
	shutdown    = "events.shutdown"
	hibernation = "events.hibernation"
	reservation = "events.reservation-end"
	stateChange = "events.state-change"
)

const (
	queueOnly           = "of the queue mode: `nth-queue config import` converts it"
	noMetadata          = "nth-queue asks no metadata service"
	everyKind           = "the handler's queue mode acts on every message, whatever this says; here, `action` of each kind of event decides"
	everyRecommendation = "the handler's queue mode drains for every recommendation, whatever this says"
	everyNode           = "nth-queue acts for all nodes"
	noTaints            = "a node's own credential may not set taints; the cordon keeps new pods away"
	ownIdentity         = "the kubelet's credential says which node this is"
	noPod               = "there is no pod"
)

// rules has one rule for each setting of the handler.
var rules = []rule{
	{env: "ENABLE_SPOT_INTERRUPTION_DRAINING", chart: "enableSpotInterruptionDraining", to: eventAction(spot), queue: &rule{why: everyKind}},
	{env: "ENABLE_SCHEDULED_EVENT_DRAINING", chart: "enableScheduledEventDraining", to: eventAction(maintenance),
		why: "stops and retirements are drained a day before their date, reboots ten to thirty minutes before: `codes`, `window` and `lead` say more", queue: &rule{why: everyKind}},
	{env: "ENABLE_ASG_LIFECYCLE_DRAINING", chart: "enableASGLifecycleDraining", to: eventAction(asg), queue: &rule{why: everyKind}},
	{env: "ENABLE_REBALANCE_MONITORING", chart: "enableRebalanceMonitoring", to: whenTrue(rebalanceCordon),
		why: "the cordon ends after `cordon_for`", queue: &rule{why: everyRecommendation}},
	{env: "ENABLE_REBALANCE_DRAINING", chart: "enableRebalanceDraining", to: whenTrue(rebalanceDrain), queue: &rule{to: queueRebalance, always: true, why: everyRecommendation}},
	{env: "CORDON_ONLY", chart: "cordonOnly", to: whenTrue(cordonOnly(spot, maintenance, asg, shutdown, hibernation)),
		queue: &rule{to: whenTrue(cordonOnly(spot, rebalance, maintenance, asg, reservation, stateChange))}},
	{env: "DRY_RUN", chart: "dryRun", to: boolean("", "dry_run")},
	{env: "INSTANCE_METADATA_URL", chart: "instanceMetadataURL", to: metadataURL, queue: &rule{why: noMetadata}},
	{env: "METADATA_TRIES", chart: "metadataTries", why: "a request that fails is repeated at the next poll, half a second later", queue: &rule{why: noMetadata}},
	{env: "NODE_TERMINATION_GRACE_PERIOD", chart: "nodeTerminationGracePeriod", why: "the deadline is the one that EC2 names, and nth uses all of it", queue: &rule{why: "`budget` in [events.asg-termination] is set by hand; other events have fixed times"}},
	{env: "POD_TERMINATION_GRACE_PERIOD", chart: "podTerminationGracePeriod", to: podGrace},
	{env: "GRACE_PERIOD", chart: "gracePeriod", why: "an older name of POD_TERMINATION_GRACE_PERIOD: set `pod_grace_period` in [drain] by hand"},
	{env: "DELETE_LOCAL_DATA", chart: "deleteLocalData", to: either("drain", "protect_empty_dir", "false", "true")},
	{env: "IGNORE_DAEMON_SETS", chart: "ignoreDaemonSets", why: "DaemonSet pods are always left alone"},
	{env: "EXCLUDE_FROM_LOAD_BALANCERS", chart: "excludeFromLoadBalancers", to: whenTrue(exclude),
		why: "evictions wait so long for load balancers to follow"},
	{env: "TAINT_NODE", chart: "taintNode", why: noTaints, queue: &rule{to: whenTrue(taints)}},
	{env: "TAINT_EFFECT", chart: "taintEffect", why: noTaints, queue: &rule{why: "TAINT_NODE uses it"}},
	{env: "ENABLE_OUT_OF_SERVICE_TAINT", chart: "enableOutOfServiceTaint", why: noTaints, queue: &rule{to: boolean("fleet", "out_of_service"), why: "once EC2 says that the instance is stopped or terminated"}},
	{env: "KUBE_API_QPS", why: "one node's drain has no limit of requests"},
	{env: "KUBE_API_BURST", why: "one node's drain has no limit of requests"},
	{env: "USE_APISERVER_CACHE", chart: "useAPIServerCacheToListPods", why: "pods are followed by a watch"},
	{env: "WORKERS", chart: "workers", why: "one node, one drain", queue: &rule{to: workers, why: "a spot interruption does not wait"}},
	{env: "NODE_NAME", why: ownIdentity, queue: &rule{why: everyNode}},
	{env: "POD_NAME", why: noPod},
	{env: "KUBERNETES_SERVICE_HOST", why: "the kubeconfig says where the API server is"},
	{env: "KUBERNETES_SERVICE_PORT", why: "the kubeconfig says where the API server is"},
	{env: "NAMESPACE", why: noPod},
	{env: "USE_PROVIDER_ID", chart: "useProviderId", why: ownIdentity, queue: &rule{why: "nodes are found by their provider ID, or by their private DNS name"}},
	{env: "UPTIME_FROM_FILE", chart: "procUptimeFile", why: "the kernel's boot ID says whether there was a reboot", queue: &rule{why: "of the other mode"}},
	{env: "JSON_LOGGING", chart: "jsonLogging", to: whenTrue(jsonLog), why: "under systemd the journal has all fields, and `auto` writes to it"},
	{env: "LOG_LEVEL", chart: "logLevel", to: logLevel},
	{env: "LOG_FORMAT_VERSION", chart: "logFormatVersion", why: "nth's fields are its own: see docs/events.md"},

	{env: "EMIT_KUBERNETES_EVENTS", chart: "emitKubernetesEvents", to: boolean("kubernetes", "events")},
	{env: "KUBERNETES_EVENTS_EXTRA_ANNOTATIONS", chart: "kubernetesEventsExtraAnnotations", why: "Events have nth's annotations, and no others"},
	{env: webhookURL, chart: "webhookURL", to: webhook, why: "put the URL into this file, which only root may read"},
	{env: "WEBHOOK_HEADERS", chart: "webhookHeaders", to: headers, why: "put the headers into this file, which only root may read, as they are"},
	{env: "WEBHOOK_TEMPLATE", chart: "webhookTemplate", to: words("webhook", "template")},
	{env: "WEBHOOK_TEMPLATE_FILE", why: "copy the template to the node and name its path as `template` in [webhook]"},
	{env: "WEBHOOK_PROXY", chart: "webhookProxy", to: webhookProxy},
	{env: "ENABLE_PROMETHEUS_SERVER", chart: "enablePrometheusServer", to: whenTrue(metricsListen),
		why: "the metrics have other names; the port is open to the network, as it was"},
	{env: "PROMETHEUS_SERVER_PORT", chart: "prometheusServerPort", to: metricsPort},
	{env: "ENABLE_PROBES_SERVER", chart: "enableProbesServer", why: "the listener of [metrics] has /healthz; systemd's watchdog needs none"},
	{env: "PROBES_SERVER_PORT", chart: "probesServerPort", why: "the listener of [metrics] has /healthz"},
	{env: "PROBES_SERVER_ENDPOINT", chart: "probesServerEndpoint", why: "the listener of [metrics] has /healthz"},

	{env: "COMPLETE_LIFECYCLE_ACTION_DELAY_SECONDS", chart: "completeLifecycleActionDelaySeconds", why: "the hook is completed when the drain has ended"},
	{env: "HEARTBEAT_INTERVAL", chart: "heartbeatInterval", why: "the interval follows from the hook's own timeout"},
	{env: "HEARTBEAT_UNTIL", chart: "heartbeatUntil", why: "heartbeats end with the drain, which `budget` in [events.asg-termination] bounds"},
	{env: "AWS_REGION", chart: "awsRegion", why: "nth asks in the region of the instance", queue: &rule{why: "nth-queue asks in the region of the queue's URL"}},
	{env: "AWS_ENDPOINT", chart: "awsEndpoint", why: "AWS_ENDPOINT_URL in the environment of the service names another endpoint"},

	{env: "ENABLE_SQS_TERMINATION_DRAINING", chart: "enableSqsTerminationDraining", why: queueOnly, queue: &rule{why: "it is what nth-queue does"}},
	{env: "QUEUE_URL", chart: "queueURL", why: queueOnly, queue: &rule{to: urlText("queue", "url")}},
	{env: "CHECK_TAG_BEFORE_DRAINING", chart: "checkTagBeforeDraining", why: queueOnly, queue: &rule{to: checkTag}},
	{env: "MANAGED_TAG", chart: "managedTag", why: queueOnly, queue: &rule{to: managedTag, always: true, why: "the handler drains only instances with this tag, unless CHECK_TAG_BEFORE_DRAINING=false"}},
	{env: "CHECK_ASG_TAG_BEFORE_DRAINING", chart: "checkASGTagBeforeDraining", why: queueOnly, queue: &rule{to: checkTag}},
	{env: "MANAGED_ASG_TAG", chart: "managedAsgTag", why: queueOnly, queue: &rule{to: managedTag}},
	{env: "DELETE_SQS_MSG_IF_NODE_NOT_FOUND", chart: "deleteSqsMsgIfNodeNotFound", why: queueOnly, queue: &rule{why: "such messages are deleted: one queue serves one cluster"}},
	{env: "SQS_MSG_VISIBILITY_TIMEOUT_SEC", chart: "sqsMsgVisibilityTimeoutSec", why: queueOnly, queue: &rule{why: "nth-queue extends the visibility timeout of a message during its drain"}},
}

// parseBool also reads the other booleans of YAML 1.1, by which Helm reads values (https://yaml.org/type/bool.html).
func parseBool(value string) (bool, error) {
	switch strings.ToLower(value) {
	case "y", "yes", "on":
		return true, nil
	case "n", "no", "off":
		return false, nil
	}
	b, err := strconv.ParseBool(value)
	if err != nil {
		return false, errors.New("true or false")
	}
	return b, nil
}

// parseInt returns a whole number of at most nine digits.
func parseInt(value string) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n > 999_999_999 || n < -999_999_999 {
		return 0, errors.New("a whole number of at most nine digits")
	}
	return n, nil
}

// one returns a single line.
func one(table, key, value string) []line { return []line{{table, key, value}} }

// either returns the conversion of a boolean of the handler: the key gets whenTrue or whenFalse, which are TOML.
func either(table, key, whenTrue, whenFalse string) conversion {
	return func(_ Settings, value string) ([]line, error) {
		on, err := parseBool(value)
		if on {
			return one(table, key, whenTrue), err
		}
		return one(table, key, whenFalse), err
	}
}

// boolean returns the conversion of a boolean that is one here, too.
func boolean(table, key string) conversion { return either(table, key, "true", "false") }

// whenTrue returns the conversion of a boolean that becomes these lines if it is true, and none if it is false.
func whenTrue(lines func(s Settings) []line) conversion {
	return func(s Settings, value string) ([]line, error) {
		on, err := parseBool(value)
		if !on || err != nil {
			return nil, err
		}
		return lines(s), nil
	}
}

// words returns the conversion of a text that is copied.
func words(table, key string) conversion {
	return func(_ Settings, value string) ([]line, error) { return one(table, key, quote(value)), nil }
}

// urlText returns the conversion of a URL that is copied. All users of the machine may read the configuration file, so a URL with a user or
// password is refused.
func urlText(table, key string) conversion {
	return func(_ Settings, value string) ([]line, error) {
		if strings.Contains(value, "@") {
			return nil, errors.New("a URL without a password")
		}
		return one(table, key, quote(value)), nil
	}
}

// metadataURL converts the address of the metadata service. EC2's own address becomes no line, as it is nth's default.
func metadataURL(s Settings, value string) ([]line, error) {
	if strings.HasPrefix(value, "http://169.254.169.254") {
		return nil, nil
	}
	return urlText("imds", "endpoint")(s, value)
}

// eventAction returns the conversion of a setting that enables a kind of event.
func eventAction(table string) conversion {
	return func(s Settings, value string) ([]line, error) {
		return either(table, "action", quote(s.limited("drain")), quote("ignore"))(s, value)
	}
}

// rebalanceCordon and rebalanceDrain together say what a rebalance recommendation leads to. The handler cordons if it only monitors.
func rebalanceCordon(s Settings) []line {
	if s.is("ENABLE_REBALANCE_DRAINING") {
		return nil // rebalanceDrain sets the action.
	}
	return one(rebalance, "action", quote("cordon"))
}

// rebalanceDrain: see rebalanceCordon.
func rebalanceDrain(s Settings) []line { return one(rebalance, "action", quote(s.limited("drain"))) }

// queueRebalance is for the queue mode, in which no setting keeps the handler from draining.
func queueRebalance(s Settings, _ string) ([]line, error) { return rebalanceDrain(s), nil }

// limited returns the action, or "cordon" if the handler only cordons.
func (s Settings) limited(action string) string {
	if s.is("CORDON_ONLY") {
		return "cordon"
	}
	return action
}

// cordonOnly sets the action "cordon" in these tables of events, unless a rule before it has set their action. Some are of events that the handler
// does not know, and for which nth would drain.
func cordonOnly(tables ...string) func(Settings) []line {
	return func(Settings) []line {
		var lines []line
		for _, table := range tables {
			lines = append(lines, line{table, "action", quote("cordon")})
		}
		return lines
	}
}

// taints sets fleet.taints to the effect that the handler has for its taints, or to its default.
func taints(s Settings) []line {
	return one("fleet", "taints", quote(cmp.Or(s.text("TAINT_EFFECT"), "NoSchedule")))
}

// podGrace converts the grace period of pods, in seconds.
func podGrace(_ Settings, value string) ([]line, error) {
	seconds, err := parseInt(value)
	if err != nil || seconds < 0 { // Negative means the grace period of each pod, as nth has it without the setting.
		return nil, err
	}
	return one("drain", "pod_grace_period", quote((time.Duration(seconds) * time.Second).String())), nil
}

// exclude sets how long evictions wait for load balancers, which nth needs for the label.
func exclude(Settings) []line { return one("drain", "load_balancer_wait", quote("20s")) }

// jsonLog sets the format of the log.
func jsonLog(Settings) []line { return one("log", "format", quote("json")) }

// logLevel converts the level of the log, whose names are the same here.
func logLevel(_ Settings, value string) ([]line, error) {
	level := strings.ToLower(value)
	if !slices.Contains([]string{"debug", "info", "error"}, level) {
		return nil, errors.New("debug, info or error")
	}
	return one("log", "level", quote(level)), nil
}

// webhook names a file for the address, which is not copied. As the handler does, nth then posts once for each event, after the drain.
func webhook(Settings, string) ([]line, error) {
	return []line{{"webhook", "url_file", quote("/etc/nth/webhook-url")}, {"webhook", "at", `["ended"]`}}, nil
}

// headers names a file for the headers, unless there is only the one that nth sends by itself. As in every conversion, the error says what the
// value must be.
func headers(_ Settings, value string) ([]line, error) {
	var pairs map[string]string
	if err := json.Unmarshal([]byte(value), &pairs); err != nil {
		return nil, errors.New("a JSON object of strings")
	}
	for name, text := range pairs {
		if !strings.EqualFold(name, "Content-Type") || text != "application/json" {
			return one("webhook", "headers_file", quote("/etc/nth/webhook-headers")), nil
		}
	}
	return nil, nil
}

// webhookProxy converts a proxy, but leaves out one with a user or password: all users of the machine may read the configuration file.
func webhookProxy(_ Settings, value string) ([]line, error) {
	u, err := url.Parse(value)
	if err != nil || u.Hostname() == "" {
		return nil, errors.New("a URL such as http://proxy:3128")
	}
	if u.User != nil {
		return nil, nil
	}
	return one("webhook", "proxy", quote(value)), nil
}

// workers converts how many nodes are drained at once. It refuses zero: the handler drains no node then, while for nth-queue it means no limit.
func workers(_ Settings, value string) ([]line, error) {
	n, err := parseInt(value)
	if err != nil || n < 1 {
		return nil, errors.New("a whole number above zero")
	}
	return one("fleet", "max_draining", strconv.Itoa(n)), nil
}

// checkTag converts one of the two settings that say whether only tagged instances are handled.
func checkTag(s Settings, value string) ([]line, error) {
	if _, err := parseBool(value); err != nil {
		return nil, err
	}
	return managedTag(s, value)
}

// managedTag converts the four settings that together say which instances are handled. Only tagged ones are, unless CHECK_TAG_BEFORE_DRAINING is
// false. Without that setting, its older name CHECK_ASG_TAG_BEFORE_DRAINING counts.
func managedTag(s Settings, _ string) ([]line, error) {
	if s.given["MANAGED_TAG"].from != "" || s.given["MANAGED_ASG_TAG"].from != "" {
		return nil, nil // The tag is in a Secret or ConfigMap. Operators set it by hand; the default would be another tag.
	}
	check := cmp.Or(s.text("CHECK_TAG_BEFORE_DRAINING"), s.text("CHECK_ASG_TAG_BEFORE_DRAINING"))
	if on, err := parseBool(check); err == nil && !on {
		return nil, nil
	}
	return one("fleet", "managed_tag", quote(cmp.Or(s.text("MANAGED_TAG"), s.text("MANAGED_ASG_TAG"), "aws-node-termination-handler/managed"))), nil
}

// metricsListen sets a listener on the handler's port and on all addresses.
func metricsListen(s Settings) []line {
	port := cmp.Or(s.text("PROMETHEUS_SERVER_PORT"), "9092")
	return one("metrics", "listen", quote("0.0.0.0:"+port))
}

// metricsPort sets the port, if ENABLE_PROMETHEUS_SERVER is true. Otherwise the handler has no listener.
func metricsPort(s Settings, value string) ([]line, error) {
	if _, err := parseInt(value); err != nil || !s.is("ENABLE_PROMETHEUS_SERVER") {
		return nil, err
	}
	return metricsListen(s)[:1], nil // only the listener
}

// quote writes a string as TOML, in single quotes if that saves escapes. JSON's escapes are valid in TOML.
func quote(text string) string {
	control := func(r rune) bool { return r < ' ' || r == 0x7f || r == '\'' }
	if strings.ContainsAny(text, `"\`) && !strings.ContainsFunc(text, control) {
		return "'" + text + "'"
	}
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(text) // Neither encoding a string nor writing to a Builder can fail.
	return strings.ReplaceAll(strings.TrimSpace(b.String()), "\x7f", `\u007f`)
}
