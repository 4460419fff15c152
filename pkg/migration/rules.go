package migration

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// rule says what becomes of one of the handler's settings: to converts it, or why says why it has no counterpart.
type rule struct {
	env   string // the environment variable
	chart string // the value of the Helm chart; "" if there is none
	to    conversion
	// why says why there is no counterpart, or what else to know about it.
	why string
	// always has to called even if the setting is not set.
	always bool
	// idle says why a value results in no line; "" means that it is what nth does anyway.
	idle string
	// queue is the rule for nth-queue, if it differs.
	queue *rule
}

// conversion turns a value into lines. Its error says what is wrong with the value, and follows the setting's name and, if that is
// no secret, the value.
type conversion func(s Settings, value string) ([]line, error)

// line is one setting of nth. Its value is TOML.
type line struct {
	table, key, value string
	// file is the file that the value names, and secret its content; both are "" if it names none.
	file, secret string
}

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
	queueOnly           = "of the queue mode, which nth-queue has: `nth-queue config import` takes it over"
	noMetadata          = "nth-queue asks no metadata service"
	everyKind           = "in the queue mode, the handler acts upon whatever is in the queue; `action` says more here"
	everyRecommendation = "in the queue mode, the handler drains for every recommendation that is in the queue, whatever this says"
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
		why: "the cordon ends after `cordon_for`", idle: "no more is done for a recommendation than ENABLE_REBALANCE_DRAINING says", queue: &rule{why: everyRecommendation}},
	{env: "ENABLE_REBALANCE_DRAINING", chart: "enableRebalanceDraining", to: whenTrue(rebalanceDrain), queue: &rule{to: queueRebalance, always: true, why: everyRecommendation}},
	{env: "CORDON_ONLY", chart: "cordonOnly", to: whenTrue(cordonOnly), queue: &rule{to: whenTrue(queueCordonOnly)}},
	{env: "DRY_RUN", chart: "dryRun", to: boolean("", "dry_run")},
	{env: "INSTANCE_METADATA_URL", chart: "instanceMetadataURL", to: endpoint, queue: &rule{why: noMetadata}},
	{env: "METADATA_TRIES", chart: "metadataTries", why: "a look that fails is repeated at the next poll, half a second later", queue: &rule{why: noMetadata}},
	{env: "NODE_TERMINATION_GRACE_PERIOD", chart: "nodeTerminationGracePeriod", why: "the deadline is the one that EC2 names, and nth uses all of it", queue: &rule{why: "`budget` of each kind of event says how long a drain may take; pods that are left then are deleted"}},
	{env: "POD_TERMINATION_GRACE_PERIOD", chart: "podTerminationGracePeriod", to: grace},
	{env: "GRACE_PERIOD", chart: "gracePeriod", to: oldGrace, idle: "it counts only if it is not negative, and POD_TERMINATION_GRACE_PERIOD is not set"},
	{env: "DELETE_LOCAL_DATA", chart: "deleteLocalData", to: either("drain", "protect_empty_dir", "false", "true")},
	{env: "IGNORE_DAEMON_SETS", chart: "ignoreDaemonSets", why: "DaemonSet pods are always left alone"},
	{env: "EXCLUDE_FROM_LOAD_BALANCERS", chart: "excludeFromLoadBalancers", to: boolean("drain", "exclude_from_load_balancers"),
		why: "`load_balancer_wait` waits for load balancers to follow"},
	{env: "TAINT_NODE", chart: "taintNode", why: noTaints, queue: &rule{to: boolean("fleet", "taints")}},
	{env: "TAINT_EFFECT", chart: "taintEffect", why: noTaints, queue: &rule{to: quoted("fleet", "taint_effect")}},
	{env: "ENABLE_OUT_OF_SERVICE_TAINT", chart: "enableOutOfServiceTaint", why: noTaints, queue: &rule{to: boolean("fleet", "out_of_service"), why: "once EC2 says that the instance is stopped or terminated"}},
	{env: "KUBE_API_QPS", why: "one node's drain has no limit on the client's side"},
	{env: "KUBE_API_BURST", why: "one node's drain has no limit on the client's side"},
	{env: "USE_APISERVER_CACHE", chart: "useAPIServerCacheToListPods", why: "pods are followed by a watch"},
	{env: "WORKERS", chart: "workers", why: "one node, one drain", queue: &rule{to: workers, why: "a spot interruption does not wait"}},
	{env: "NODE_NAME", why: ownIdentity, queue: &rule{why: everyNode}},
	{env: "POD_NAME", why: noPod},
	{env: "KUBERNETES_SERVICE_HOST", why: "the kubeconfig says where the API server is"},
	{env: "KUBERNETES_SERVICE_PORT", why: "the kubeconfig says where the API server is"},
	{env: "NAMESPACE", why: noPod},
	{env: "USE_PROVIDER_ID", chart: "useProviderId", why: ownIdentity, queue: &rule{why: "nodes are found by their provider ID, and by their private DNS name where they have none"}},
	{env: "UPTIME_FROM_FILE", chart: "procUptimeFile", why: "the kernel's boot ID tells whether there was a reboot", queue: &rule{why: "of the other mode"}},
	{env: "JSON_LOGGING", chart: "jsonLogging", to: whenTrue(jsonLog), why: "under systemd the journal has all fields, and `auto` writes to it"},
	{env: "LOG_LEVEL", chart: "logLevel", to: logLevel},
	{env: "LOG_FORMAT_VERSION", chart: "logFormatVersion", why: "nth's fields are its own: see docs/events.md"},

	{env: "EMIT_KUBERNETES_EVENTS", chart: "emitKubernetesEvents", to: boolean("kubernetes", "events")},
	{env: "KUBERNETES_EVENTS_EXTRA_ANNOTATIONS", chart: "kubernetesEventsExtraAnnotations", to: annotations},
	{env: "WEBHOOK_URL", chart: "webhookURL", to: webhookURL,
		why: "the handler posts once for each event, after the work: so does this. Without `at_detection = false` what is announced is posted, too, of which some is only told"},
	{env: "WEBHOOK_HEADERS", chart: "webhookHeaders", to: headers},
	{env: "WEBHOOK_TEMPLATE", chart: "webhookTemplate", to: template, idle: "WEBHOOK_TEMPLATE_FILE goes before it"},
	{env: "WEBHOOK_TEMPLATE_FILE", why: "copy the template to the node and name it as `template_file` in [webhook]"},
	{env: "WEBHOOK_PROXY", chart: "webhookProxy", to: webhookProxy, idle: "it holds a password, which is not shown: set `proxy` in [webhook] by hand, in a file that only root reads"},
	{env: "ENABLE_PROMETHEUS_SERVER", chart: "enablePrometheusServer", to: whenTrue(metricsListen),
		why: "`compatible` adds the metrics under their old names; the port is open to the network, as it was"},
	{env: "PROMETHEUS_SERVER_PORT", chart: "prometheusServerPort", to: metricsPort, idle: "counts only with ENABLE_PROMETHEUS_SERVER"},
	{env: "ENABLE_PROBES_SERVER", chart: "enableProbesServer", why: "the listener of [metrics] has /healthz; systemd's watchdog needs none"},
	{env: "PROBES_SERVER_PORT", chart: "probesServerPort", why: "the listener of [metrics] has /healthz"},
	{env: "PROBES_SERVER_ENDPOINT", chart: "probesServerEndpoint", why: "the listener of [metrics] has /healthz"},

	{env: "COMPLETE_LIFECYCLE_ACTION_DELAY_SECONDS", chart: "completeLifecycleActionDelaySeconds", why: "the hook is completed when the drain has ended"},
	{env: "HEARTBEAT_INTERVAL", chart: "heartbeatInterval", why: "the interval follows from the hook's own timeout"},
	{env: "HEARTBEAT_UNTIL", chart: "heartbeatUntil", why: "heartbeats end with the drain, which `budget` in [events.asg-termination] bounds"},
	{env: "AWS_REGION", chart: "awsRegion", to: quoted("aws", "region")},
	{env: "AWS_ENDPOINT", chart: "awsEndpoint", to: urlSetting("aws", "endpoint")},

	{env: "ENABLE_SQS_TERMINATION_DRAINING", chart: "enableSqsTerminationDraining", why: queueOnly, queue: &rule{why: "nth-queue is there for nothing else"}},
	{env: "QUEUE_URL", chart: "queueURL", why: queueOnly, queue: &rule{to: urlSetting("queue", "url")}},
	{env: "CHECK_TAG_BEFORE_DRAINING", chart: "checkTagBeforeDraining", why: queueOnly, queue: &rule{to: checkTag, idle: "every node of the cluster is drained, as it was"}},
	{env: "MANAGED_TAG", chart: "managedTag", why: queueOnly, queue: &rule{to: managedTag, always: true, why: "there, only instances with this tag are drained for, unless CHECK_TAG_BEFORE_DRAINING=false", idle: "every node of the cluster is drained, as it was"}},
	{env: "CHECK_ASG_TAG_BEFORE_DRAINING", chart: "checkASGTagBeforeDraining", why: queueOnly, queue: &rule{to: checkTag, idle: "every node of the cluster is drained, as it was"}},
	{env: "MANAGED_ASG_TAG", chart: "managedAsgTag", why: queueOnly, queue: &rule{to: managedTag, idle: "every node of the cluster is drained, as it was"}},
	{env: "DELETE_SQS_MSG_IF_NODE_NOT_FOUND", chart: "deleteSqsMsgIfNodeNotFound", why: queueOnly, queue: &rule{to: either("fleet", "unknown", quote("delete"), quote("leave"))}},
	{env: "SQS_MSG_VISIBILITY_TIMEOUT_SEC", chart: "sqsMsgVisibilityTimeoutSec", why: queueOnly, queue: &rule{to: visibility, why: "it is extended while a drain goes on, and here it is ten seconds or more"}},
}

// forProgram returns the rule for the program that the settings are converted for.
func (r rule) forProgram(s Settings) rule {
	if !s.queue || r.queue == nil {
		return r
	}
	own := *r.queue
	own.env = r.env
	return own
}

func ruleOf(env string) (r rule, known bool) {
	i := slices.IndexFunc(rules, func(r rule) bool { return r.env == env })
	if i < 0 {
		return rule{}, false
	}
	return rules[i], true
}

// podValues are the chart's values that concern the pod and the objects around it.
var podValues = []string{
	"affinity", "customLabels", "daemonsetAffinity", "daemonsetNodeSelector", "daemonsetPriorityClassName", "daemonsetTolerations",
	"dnsConfig", "dnsPolicy", "fullnameOverride", "image", "imagePullSecrets", "labels", "linuxAffinity", "linuxDnsPolicy", "linuxNodeSelector",
	"linuxPodAnnotations", "linuxPodLabels", "linuxTolerations", "linuxUpdateStrategy", "nameOverride", "nodeSelector", "nodeSelectorTermsArch", "nodeSelectorTermsOs", "podAnnotations",
	"podDisruptionBudget", "podLabels", "podMonitor", "podSecurityContext", "priorityClassName", "probes", "rbac", "replicas",
	"resources", "securityContext", "serviceAccount", "serviceMonitor", "strategy", "targetNodeOs", "terminationGracePeriodSeconds",
	"tolerations", "topologySpreadConstraints", "updateStrategy", "useHostNetwork", "windowsAffinity", "windowsDnsPolicy",
	"windowsNodeSelector", "windowsPodAnnotations", "windowsPodLabels", "windowsTolerations", "windowsUpdateStrategy",
}

// placementValues are those podValues that say on which nodes the pod runs.
var placementValues = []string{"affinity", "daemonsetAffinity", "daemonsetNodeSelector", "linuxAffinity", "linuxNodeSelector", "nodeSelector"}

func parseBool(value string) (bool, error) {
	b, err := strconv.ParseBool(value)
	if err != nil {
		return false, errors.New("must be true or false")
	}
	return b, nil
}

func parseInt(value string) (int, error) {
	// The chart's numbers may have been floats.
	f, err := strconv.ParseFloat(value, 64)
	if err != nil || f != float64(int(f)) {
		return 0, errors.New("must be a whole number")
	}
	return int(f), nil
}

// parseSeconds refuses numbers that overflow a Duration.
func parseSeconds(value string) (time.Duration, error) {
	n, err := parseInt(value)
	if longest := int(math.MaxInt64 / time.Second); err == nil && (n > longest || n < -longest) {
		err = fmt.Errorf("must be no more than %d seconds", longest)
	}
	return time.Duration(n) * time.Second, err
}

// one is a single line.
func one(table, key, value string) []line { return []line{{table: table, key: key, value: value}} }

// either is for a setting that is true or false there, and has one of two values here.
func either(table, key, whenTrue, whenFalse string) conversion {
	return func(_ Settings, value string) ([]line, error) {
		on, err := parseBool(value)
		if on {
			return one(table, key, whenTrue), err
		}
		return one(table, key, whenFalse), err
	}
}

func boolean(table, key string) conversion { return either(table, key, "true", "false") }

// whenTrue is for a setting that has an effect only if it is true.
func whenTrue(lines func(s Settings) []line) conversion {
	return func(s Settings, value string) ([]line, error) {
		on, err := parseBool(value)
		if !on || err != nil {
			return nil, err
		}
		return lines(s), nil
	}
}

func quoted(table, key string) conversion {
	return func(_ Settings, value string) ([]line, error) { return one(table, key, quote(value)), nil }
}

// eventAction is for a setting that enables a kind of event.
func eventAction(table string) conversion {
	return func(s Settings, value string) ([]line, error) {
		return either(table, "action", quote(s.limited("drain")), quote("ignore"))(s, value)
	}
}

// rebalanceCordon and rebalanceDrain together say what a rebalance recommendation leads to.
func rebalanceCordon(s Settings) []line {
	if s.is("ENABLE_REBALANCE_DRAINING") {
		return nil
	}
	return one(rebalance, "action", quote("cordon"))
}

func rebalanceDrain(s Settings) []line { return one(rebalance, "action", quote(s.limited("drain"))) }

// cordonOnly prevents drains for all events, including those that the handler does not know.
func cordonOnly(s Settings) []line {
	var lines []line
	for table, env := range map[string]string{
		spot: "ENABLE_SPOT_INTERRUPTION_DRAINING", maintenance: "ENABLE_SCHEDULED_EVENT_DRAINING", asg: "ENABLE_ASG_LIFECYCLE_DRAINING",
		shutdown: "", hibernation: "",
	} {
		if s.value(env) == "" || s.is(env) {
			lines = append(lines, line{table: table, key: "action", value: quote("cordon")})
		}
	}
	return lines
}

func queueCordonOnly(Settings) []line {
	var lines []line
	for _, table := range []string{spot, rebalance, maintenance, asg, reservation, stateChange} {
		lines = append(lines, line{table: table, key: "action", value: quote("cordon")})
	}
	return lines
}

// limited returns the action, or "cordon" if the handler was told to cordon only.
func (s Settings) limited(action string) string {
	if s.is("CORDON_ONLY") {
		return "cordon"
	}
	return action
}

func (s Settings) is(env string) bool {
	on, err := parseBool(s.value(env))
	return on && err == nil
}

// awsEndpoint is the address of EC2's metadata service, which is the default.
const awsEndpoint = "http://169.254.169.254"

func endpoint(s Settings, value string) ([]line, error) {
	if strings.TrimRight(value, "/") == awsEndpoint {
		return nil, nil
	}
	return urlSetting("imds", "endpoint")(s, value)
}

// urlSetting is for a URL, which is shown in the file.
func urlSetting(table, key string) conversion {
	return func(s Settings, value string) ([]line, error) {
		if hasPassword(value) {
			return nil, errors.New("must be a URL without a password")
		}
		return quoted(table, key)(s, value)
	}
}

// hasPassword reports whether a URL has credentials, or may have.
func hasPassword(value string) bool {
	u, err := url.Parse(value)
	return err == nil && u.User != nil || err != nil && strings.Contains(value, "@")
}

// oldGrace is for the older of two settings, which the newer one overrides.
func oldGrace(s Settings, value string) ([]line, error) {
	if s.isGiven("POD_TERMINATION_GRACE_PERIOD") {
		return nil, nil
	}
	return grace(s, value)
}

func grace(_ Settings, value string) ([]line, error) {
	grace, err := parseSeconds(value)
	if err != nil || grace < 0 { // each pod's own
		return nil, err
	}
	return one("drain", "pod_grace_period", quote(grace.String())), nil
}

func jsonLog(Settings) []line { return one("log", "format", quote("json")) }

func logLevel(_ Settings, value string) ([]line, error) {
	level := strings.ToLower(value)
	if !slices.Contains([]string{"debug", "info", "error"}, level) {
		return nil, errors.New("must be debug, info or error")
	}
	return one("log", "level", quote(level)), nil
}

func annotations(_ Settings, value string) ([]line, error) {
	pairs := map[string]string{}
	for pair := range strings.SplitSeq(value, ",") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || strings.Contains(value, "=") {
			return nil, errors.New("must be key=value pairs, with commas between them")
		}
		pairs[key] = value
	}
	return one("kubernetes", "event_annotations", inlineTable(pairs)), nil
}

// headers leaves out the header that nth sends by default. All values but that of Content-Type may be secrets.
func headers(s Settings, value string) ([]line, error) {
	var pairs map[string]string
	if err := json.Unmarshal([]byte(value), &pairs); err != nil {
		return nil, errors.New("must be a JSON object of strings")
	}
	public := true
	for _, name := range sortedKeys(pairs) {
		if !headerName.MatchString(name) {
			return nil, errors.New("one of the names is none that a header may have")
		}
		if strings.ContainsFunc(pairs[name], unicode.IsControl) {
			return nil, fmt.Errorf("the value of %q must be a text on one line", name)
		}
		if strings.EqualFold(name, "Content-Type") && pairs[name] == "application/json" {
			delete(pairs, name)
			continue
		}
		public = public && strings.EqualFold(name, "Content-Type")
	}
	switch {
	case len(pairs) == 0:
		return nil, nil
	case public:
		return one("webhook", "headers", inlineTable(pairs)), nil
	}
	content, err := json.Marshal(pairs)
	return []line{s.secretFile("headers_file", headersFile, string(content))}, err
}

// headerName matches a token of HTTP.
var headerName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

// The names of the files for secrets.
const urlFile, headersFile, templateFile = "webhook-url", "webhook-headers", "webhook-template"

// secretFile is a line that names a file which has the value.
func (s Settings) secretFile(key, file, content string) line {
	file = path.Join(s.secrets, file)
	return line{table: "webhook", key: key, value: quote(file), file: file, secret: content}
}

func webhookURL(s Settings, value string) ([]line, error) {
	if u, err := url.Parse(value); err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("must be a URL that begins with https:// or http://")
	}
	return append([]line{s.secretFile("url_file", urlFile, value)}, postOnce...), nil
}

// template has no effect if there is a file for it. A template from a Secret may contain a key.
func template(s Settings, value string) ([]line, error) {
	switch {
	case s.isGiven("WEBHOOK_TEMPLATE_FILE"):
		return nil, nil
	case s.given["WEBHOOK_TEMPLATE"].secret:
		return []line{s.secretFile("template_file", templateFile, value)}, nil
	}
	return one("webhook", "template", quote(value)), nil
}

// postOnce makes the webhook post as the handler does: once for each event, after the drain.
var postOnce = []line{{table: "webhook", key: "at_detection", value: "false"}, {table: "webhook", key: "at_close", value: "false"}}

func webhookProxy(_ Settings, value string) ([]line, error) {
	u, err := url.Parse(value)
	if err != nil || u.Hostname() == "" {
		return nil, errors.New("must be a URL such as tcp://proxy:3128")
	}
	if u.User != nil {
		return nil, nil
	}
	return one("webhook", "proxy", quote(value)), nil
}

// queueRebalance is for the queue mode, in which no setting keeps the handler from draining.
func queueRebalance(s Settings, value string) ([]line, error) {
	if value != "" {
		if _, err := parseBool(value); err != nil {
			return nil, err
		}
	}
	return rebalanceDrain(s), nil
}

// workers is how many nodes are drained at once. Zero is refused: the handler drains none then, while here it means no limit.
func workers(_ Settings, value string) ([]line, error) {
	n, err := parseInt(value)
	if err != nil || n < 1 {
		return nil, errors.New("must be a whole number, and not zero")
	}
	return one("fleet", "max_draining", strconv.Itoa(n)), nil
}

// checkTag is for the two settings that say whether only tagged instances are handled.
func checkTag(s Settings, value string) ([]line, error) {
	if _, err := parseBool(value); err != nil {
		return nil, err
	}
	return managedTag(s, value)
}

// managedTag is for the four settings that together say which instances are handled: only tagged ones, unless the newer of the two
// "check" settings, or the older if only that is given, is false.
func managedTag(s Settings, _ string) ([]line, error) {
	for _, env := range []string{"CHECK_TAG_BEFORE_DRAINING", "CHECK_ASG_TAG_BEFORE_DRAINING"} {
		if !s.isGiven(env) {
			continue
		}
		if check, err := parseBool(s.value(env)); err == nil && !check {
			return nil, nil
		}
		break
	}
	tag := cmp.Or(s.value("MANAGED_TAG"), s.value("MANAGED_ASG_TAG"), handlerTag)
	return one("fleet", "managed_tag", quote(tag)), nil
}

// handlerTag is the default of the handler.
const handlerTag = "aws-node-termination-handler/managed"

// visibility is raised to the least that nth-queue accepts.
func visibility(_ Settings, value string) ([]line, error) {
	visibility, err := parseSeconds(value)
	if err != nil {
		return nil, err
	}
	return one("queue", "visibility", quote(max(visibility, 10*time.Second).String())), nil
}

// metricsListen keeps the handler's port, on all addresses.
func metricsListen(s Settings) []line {
	port, err := parseInt(s.value("PROMETHEUS_SERVER_PORT"))
	if err != nil {
		port = handlerPort // The port's own rule reports it.
	}
	return []line{listener(port), {table: "metrics", key: "compatible", value: "true"}}
}

func metricsPort(s Settings, value string) ([]line, error) {
	port, err := parseInt(value)
	if err != nil || !s.is("ENABLE_PROMETHEUS_SERVER") {
		return nil, err
	}
	return []line{listener(port)}, nil
}

// handlerPort is the default of the handler.
const handlerPort = 9092

func listener(port int) line {
	return line{table: "metrics", key: "listen", value: quote(fmt.Sprintf("0.0.0.0:%d", port))}
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

// inlineTable writes a table on one line.
func inlineTable(pairs map[string]string) string {
	var written []string
	for _, key := range sortedKeys(pairs) {
		written = append(written, quote(key)+" = "+quote(pairs[key]))
	}
	return "{ " + strings.Join(written, ", ") + " }"
}
