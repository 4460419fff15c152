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

// rule says what becomes of one setting of the handler.
type rule struct {
	env string     // the environment variable; the value of the Helm chart has the same name in camel case
	to  conversion // nil if another setting's conversion uses the value
	why string     // what else to know about the line; "" if nothing
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

// nthRules are the rules for nth alone, queueRules those for nth-queue alone, and rules those for both. A setting without a rule has no
// counterpart. Of two rules for one line, the first counts.
var (
	nthRules = []rule{
		{env: "ENABLE_SPOT_INTERRUPTION_DRAINING", to: eventAction(spot)},
		{env: "ENABLE_SCHEDULED_EVENT_DRAINING", to: eventAction(maintenance),
			why: "Stops and retirements are drained a day before their date, reboots ten to thirty minutes before: `codes`, `window` and `lead` say more."},
		{env: "ENABLE_ASG_LIFECYCLE_DRAINING", to: eventAction(asg)},
		{env: "ENABLE_REBALANCE_DRAINING", to: whenTrue(rebalanceDrain)},
		{env: "ENABLE_REBALANCE_MONITORING", to: whenTrue(rebalanceCordon), why: "The cordon ends after `cordon_for`."},
		{env: "CORDON_ONLY", to: whenTrue(cordonOnly(spot, maintenance, asg, shutdown, hibernation))},
		{env: "INSTANCE_METADATA_URL", to: metadataURL},
	}
	queueRules = []rule{
		{env: "ENABLE_REBALANCE_DRAINING", to: queueRebalance, why: "The handler's queue mode drains for every recommendation, whatever this says."},
		{env: "CORDON_ONLY", to: whenTrue(cordonOnly(spot, rebalance, maintenance, asg, reservation, stateChange))},
		{env: "TAINT_NODE", to: whenTrue(taints)},
		{env: "TAINT_EFFECT"}, // TAINT_NODE uses it.
		{env: "ENABLE_OUT_OF_SERVICE_TAINT", to: boolean("fleet", "out_of_service")},
		{env: "WORKERS", to: workers, why: "A spot interruption does not wait."},
		{env: "ENABLE_SQS_TERMINATION_DRAINING"},
		{env: "QUEUE_URL", to: urlText("queue", "url")},
		{env: "CHECK_TAG_BEFORE_DRAINING", to: managedTag, why: "The handler drains only instances with this tag, unless CHECK_TAG_BEFORE_DRAINING=false."},
		{env: "MANAGED_TAG"}, // CHECK_TAG_BEFORE_DRAINING uses these.
		{env: "CHECK_ASG_TAG_BEFORE_DRAINING"},
		{env: "MANAGED_ASG_TAG"},
	}
	rules = []rule{
		{env: "DRY_RUN", to: boolean("", "dry_run")},
		{env: "POD_TERMINATION_GRACE_PERIOD", to: podGrace},
		{env: "DELETE_LOCAL_DATA", to: either("drain", "protect_empty_dir", "false", "true")},
		{env: "EXCLUDE_FROM_LOAD_BALANCERS", to: whenTrue(always("drain", "load_balancer_wait", `"20s"`)), why: "Evictions wait so long for load balancers to follow."},
		{env: "JSON_LOGGING", to: whenTrue(always("log", "format", `"json"`)), why: "Under systemd the journal has all fields, and `auto` writes to it."},
		{env: "LOG_LEVEL", to: logLevel},
		{env: "EMIT_KUBERNETES_EVENTS", to: boolean("kubernetes", "events")},
		{env: webhookURL, to: webhook, why: "Put the URL into this file, which only root may read."},
		{env: "WEBHOOK_HEADERS", to: headers, why: "Put the headers into this file, which only root may read, as they are."},
		{env: "WEBHOOK_TEMPLATE", to: func(_ Settings, value string) ([]line, error) { return one("webhook", "template", quote(value)), nil }},
		{env: "WEBHOOK_PROXY", to: webhookProxy},
		{env: "ENABLE_PROMETHEUS_SERVER", to: whenTrue(metricsListen),
			why: "The metrics have other names; the port is open to the network, as it was."},
		{env: "PROMETHEUS_SERVER_PORT", to: metricsPort},
	}
)

// rulesFor returns the rules for nth-queue if queue is true, and else those for nth.
func rulesFor(queue bool) []rule {
	if queue {
		return slices.Concat(queueRules, rules)
	}
	return slices.Concat(nthRules, rules)
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

// always returns a function that returns a single line.
func always(table, key, value string) func(Settings) []line {
	return func(Settings) []line { return one(table, key, value) }
}

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
		return either(table, "action", s.drain(), quote("ignore"))(s, value)
	}
}

// drain is the action of a kind that the handler drains for: to cordon, if that is all that the handler does.
func (s Settings) drain() string {
	if s.is("CORDON_ONLY") {
		return quote("cordon")
	}
	return quote("drain")
}

// rebalanceDrain and rebalanceCordon together say what a rebalance recommendation leads to. The handler cordons if it only monitors.
func rebalanceDrain(s Settings) []line { return one(rebalance, "action", s.drain()) }

// rebalanceCordon: see rebalanceDrain, whose rule comes first.
func rebalanceCordon(Settings) []line { return one(rebalance, "action", quote("cordon")) }

// queueRebalance is for the queue mode, in which no setting keeps the handler from draining.
func queueRebalance(s Settings, _ string) ([]line, error) { return rebalanceDrain(s), nil }

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

// podGrace converts the grace period of pods, in seconds. A negative one means that of each pod, as nth has it without the setting.
func podGrace(_ Settings, value string) ([]line, error) {
	seconds, err := parseInt(value)
	if err != nil || seconds < 0 {
		return nil, err
	}
	return one("drain", "pod_grace_period", quote((time.Duration(seconds) * time.Second).String())), nil
}

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

// headers names a file for the headers, unless there is only the one that nth sends by itself.
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

// managedTag converts the four settings that together say which instances are handled. Only tagged ones are, unless CHECK_TAG_BEFORE_DRAINING is
// false, or its older name CHECK_ASG_TAG_BEFORE_DRAINING is, if only that is set.
func managedTag(s Settings, value string) ([]line, error) {
	on, err := parseBool(value)
	if err != nil || !on || s.given["MANAGED_TAG"].elsewhere != "" || s.given["MANAGED_ASG_TAG"].elsewhere != "" {
		return nil, err // A tag that is in a Secret or ConfigMap is set by hand: the default would be another one.
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
	return metricsListen(s), nil
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
