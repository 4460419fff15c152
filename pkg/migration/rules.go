package migration

import (
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
)

// rule says what becomes of one setting of the handler.
type rule struct {
	env  string     // the environment variable
	keys []string   // the settings of nth, which all get the converted value
	to   conversion // nil if the conversion of another setting uses the value
	why  string     // what else to know, for the comment above the lines; "" if nothing
}

// conversion turns the value of a setting into TOML. The result "" means that no key is set for this value. The error completes the sentence
// "SETTING must be ...". s has the other settings.
type conversion func(s settings, value string) (string, error)

// webhookURL is converted even if the value is not in the manifest: nth reads the address from a file of its own.
const webhookURL = "WEBHOOK_URL"

// The keys of the actions for kinds of events.
const (
	spot        = "events.spot-interruption.action"
	rebalance   = "events.rebalance-recommendation.action"
	maintenance = "events.scheduled-maintenance.action"
	asg         = "events.asg-termination.action"
	shutdown    = "events.shutdown.action"
	hibernation = "events.hibernation.action"
	reservation = "events.reservation-end.action"
	stateChange = "events.state-change.action"
)

// nthRules are the rules for nth alone, queueRules those for nth-queue alone, and rules those for both. A setting without a rule has no
// counterpart. Of two rules for one key, the first that sets it counts. So CORDON_ONLY, the last rule for actions, sets only the actions that no
// other rule has set. Some of them are for events that the handler does not know, and for which nth would drain.
var (
	nthRules = []rule{
		{env: "ENABLE_SPOT_INTERRUPTION_DRAINING", keys: []string{spot}, to: drainOrIgnore},
		{env: "ENABLE_SCHEDULED_EVENT_DRAINING", keys: []string{maintenance}, to: drainOrIgnore,
			why: "Stops and retirements are drained a day before their date, reboots ten to thirty minutes before: `codes`, `window` and `lead` say more."},
		{env: "ENABLE_ASG_LIFECYCLE_DRAINING", keys: []string{asg}, to: drainOrIgnore},
		{env: "ENABLE_REBALANCE_DRAINING", keys: []string{rebalance}, to: whenTrue(drain)},
		{env: "ENABLE_REBALANCE_MONITORING", keys: []string{rebalance}, to: whenTrue(cordon), why: "The cordon ends after `cordon_for`."},
		{env: "CORDON_ONLY", keys: []string{spot, maintenance, asg, shutdown, hibernation}, to: whenTrue(cordon)},
		{env: "INSTANCE_METADATA_URL", keys: []string{"imds.endpoint"}, to: metadataURL},
	}
	queueRules = []rule{
		{env: "ENABLE_REBALANCE_DRAINING", keys: []string{rebalance}, to: always(drain), why: "The handler's queue mode drains for every recommendation, whatever this says."},
		{env: "CORDON_ONLY", keys: []string{spot, rebalance, maintenance, asg, reservation, stateChange}, to: whenTrue(cordon)},
		{env: "TAINT_NODE", keys: []string{"fleet.taints"}, to: whenTrue(func(s settings) string { return quote(cmp.Or(s.text("TAINT_EFFECT"), "NoSchedule")) })},
		{env: "TAINT_EFFECT"},
		{env: "ENABLE_OUT_OF_SERVICE_TAINT", keys: []string{"fleet.out_of_service"}, to: boolean},
		{env: "WORKERS", keys: []string{"fleet.max_draining"}, to: number, why: "A spot interruption does not wait."},
		{env: "QUEUE_URL", keys: []string{"queue.url"}, to: urlText},
		{env: "CHECK_TAG_BEFORE_DRAINING", keys: []string{"fleet.managed_tag"}, to: whenTrue(managedTag),
			why: "The handler drains only instances with this tag, unless CHECK_TAG_BEFORE_DRAINING=false."},
		{env: "MANAGED_TAG"},
		{env: "CHECK_ASG_TAG_BEFORE_DRAINING"},
		{env: "MANAGED_ASG_TAG"},
	}
	rules = []rule{
		{env: "DRY_RUN", keys: []string{"dry_run"}, to: boolean},
		{env: "POD_TERMINATION_GRACE_PERIOD", keys: []string{"drain.pod_grace_period"}, to: podGrace},
		{env: "DELETE_LOCAL_DATA", keys: []string{"drain.protect_empty_dir"}, to: either("false", "true")},
		{env: "EXCLUDE_FROM_LOAD_BALANCERS", keys: []string{"drain.load_balancer_wait"}, to: whenTrue(constant(`"20s"`)), why: "Evictions wait so long for load balancers to follow."},
		{env: "JSON_LOGGING", keys: []string{"log.format"}, to: whenTrue(constant(`"json"`)), why: "Under systemd the journal has all fields, and `auto` writes to it."},
		{env: "LOG_LEVEL", keys: []string{"log.level"}, to: logLevel},
		{env: "EMIT_KUBERNETES_EVENTS", keys: []string{"kubernetes.events"}, to: boolean},
		{env: webhookURL, keys: []string{"webhook.url_file"}, to: always(constant(`"/etc/nth/webhook-url"`)), why: "Put the URL into this file, which only root may read."},
		{env: webhookURL, keys: []string{"webhook.at"}, to: always(constant(`["ended"]`)), why: "As the handler does, nth then posts once for each event, after the drain."},
		{env: "WEBHOOK_HEADERS", keys: []string{"webhook.headers_file"}, to: headers, why: "Put the headers into this file, which only root may read, as they are."},
		{env: "WEBHOOK_TEMPLATE", keys: []string{"webhook.template"}, to: func(_ settings, value string) (string, error) { return quote(value), nil }},
		{env: "WEBHOOK_PROXY", keys: []string{"webhook.proxy"}, to: urlText},
		{env: "ENABLE_PROMETHEUS_SERVER", keys: []string{"metrics.listen"}, to: whenTrue(func(s settings) string { return quote("0.0.0.0:" + cmp.Or(s.text("PROMETHEUS_SERVER_PORT"), "9092")) }),
			why: "The metrics have other names; the port is open to the network, as it was."},
		{env: "PROMETHEUS_SERVER_PORT"},
	}
)

// rulesFor returns the rules for nth-queue if queue is true, and else those for nth.
func rulesFor(queue bool) []rule {
	if queue {
		return slices.Concat(queueRules, rules)
	}
	return slices.Concat(nthRules, rules)
}

// parseBool reads a boolean as the handler does. Its error is that of a conversion.
func parseBool(value string) (bool, error) {
	b, err := strconv.ParseBool(value)
	if err != nil {
		return false, errors.New("true or false")
	}
	return b, nil
}

// either returns the conversion of a boolean to one of two texts of TOML.
func either(ifTrue, ifFalse string) conversion {
	return func(_ settings, value string) (string, error) {
		on, err := parseBool(value)
		if on {
			return ifTrue, err
		}
		return ifFalse, err
	}
}

// boolean is the conversion of a boolean to the same boolean.
var boolean = either("true", "false")

// whenTrue returns the conversion of a boolean: true becomes the TOML that value returns, and false sets nothing.
func whenTrue(value func(settings) string) conversion {
	return func(s settings, given string) (string, error) {
		on, err := parseBool(given)
		if !on {
			return "", err
		}
		return value(s), err
	}
}

// always returns the conversion of a setting whose value makes no difference: any value becomes the TOML that value returns.
func always(value func(settings) string) conversion {
	return func(s settings, _ string) (string, error) { return value(s), nil }
}

// constant returns a function, for whenTrue and always, that returns this TOML.
func constant(toml string) func(settings) string { return func(settings) string { return toml } }

// cordon returns the action that only cordons.
var cordon = constant(`"cordon"`)

// drain returns the action for a kind of event for which the handler drains. With CORDON_ONLY, the handler only cordons, and so does nth.
func drain(s settings) string {
	if s.is("CORDON_ONLY") {
		return cordon(s)
	}
	return `"drain"`
}

// drainOrIgnore is the conversion of a setting that enables a kind of event: true becomes the action of drain, and false "ignore".
func drainOrIgnore(s settings, value string) (string, error) {
	return either(drain(s), `"ignore"`)(s, value)
}

// urlText is the conversion of a URL to itself. All users of the machine may read the configuration file, so urlText refuses a URL with a user
// or password.
func urlText(_ settings, value string) (string, error) {
	if strings.Contains(value, "@") {
		return "", errors.New("a URL without a password")
	}
	return quote(value), nil
}

// metadataURL is the conversion of the metadata service's URL. EC2's own address sets nothing, as it is nth's default.
func metadataURL(s settings, value string) (string, error) {
	if strings.HasPrefix(value, "http://169.254.169.254") {
		return "", nil
	}
	return urlText(s, value)
}

// number is the conversion of a whole number to itself.
func number(_ settings, value string) (string, error) {
	n, err := strconv.Atoi(value)
	if err != nil {
		return "", errors.New("a whole number")
	}
	return strconv.Itoa(n), nil
}

// podGrace is the conversion of the grace period of pods, in seconds. A negative value sets nothing: it means each pod's own grace period, which
// is nth's default. Zero becomes a second, which is the shortest that a kubelet gives.
func podGrace(s settings, value string) (string, error) {
	seconds, err := number(s, value)
	if err != nil || strings.HasPrefix(seconds, "-") {
		return "", err
	}
	if seconds == "0" {
		seconds = "1"
	}
	return quote(seconds + "s"), nil
}

// logLevel is the conversion of the log level, whose names are the same in lower case.
func logLevel(_ settings, value string) (string, error) {
	level := strings.ToLower(value)
	if !slices.Contains([]string{"debug", "info", "error"}, level) {
		return "", errors.New("debug, info or error")
	}
	return quote(level), nil
}

// headers is the conversion of the webhook's headers to the name of a file, as they may be secret. The handler's default sets nothing: nth sends
// that header by default, too.
func headers(_ settings, value string) (string, error) {
	if value == `{"Content-type":"application/json"}` {
		return "", nil
	}
	return `"/etc/nth/webhook-headers"`, nil
}

// managedTag returns, in TOML, the tag of the instances that the handler handles. It returns "" if the manifest sets the tag to a value
// that is elsewhere: the handler's default would be another tag.
func managedTag(s settings) string {
	if s["MANAGED_TAG"].elsewhere || s["MANAGED_ASG_TAG"].elsewhere {
		return ""
	}
	return quote(cmp.Or(s.text("MANAGED_TAG"), s.text("MANAGED_ASG_TAG"), "aws-node-termination-handler/managed"))
}

// quote writes a string as TOML, in single quotes if that saves escapes, as it does for a template of JSON. Else it writes JSON, whose escapes are
// valid in TOML.
func quote(text string) string {
	// In single quotes, nothing can be escaped.
	needsEscapes := strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\'' })
	if strings.ContainsAny(text, `"\`) && !needsEscapes {
		return "'" + text + "'"
	}
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(text) // Neither encoding a string nor writing to a Builder can fail.
	// JSON allows a DEL character without an escape, and TOML does not.
	return strings.ReplaceAll(strings.TrimSpace(b.String()), "\x7f", `\u007f`)
}
