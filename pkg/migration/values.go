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

// The ways in which a value becomes one of nth's. Each returns what is wrong with the value, in words that go behind
// the setting's name and, if that may be shown, its value.

func truth(value string) (bool, error) {
	b, err := strconv.ParseBool(value)
	if err != nil {
		return false, errors.New("must be true or false")
	}
	return b, nil
}

func number(value string) (int, error) {
	// The chart's numbers may have come through a float.
	f, err := strconv.ParseFloat(value, 64)
	if err != nil || f != float64(int(f)) {
		return 0, errors.New("must be a whole number")
	}
	return int(f), nil
}

// seconds is a time, in whole seconds. One that a Duration cannot hold would come out as any other one.
func seconds(value string) (time.Duration, error) {
	n, err := number(value)
	if longest := int(math.MaxInt64 / time.Second); err == nil && (n > longest || n < -longest) {
		err = fmt.Errorf("must be no more than %d seconds", longest)
	}
	return time.Duration(n) * time.Second, err
}

func boolean(table, key string) func(Settings, string) ([]line, error) {
	return func(_ Settings, value string) ([]line, error) {
		b, err := truth(value)
		return []line{{table: table, key: key, value: strconv.FormatBool(b)}}, err
	}
}

func inverted(table, key string) func(Settings, string) ([]line, error) {
	return func(_ Settings, value string) ([]line, error) {
		b, err := truth(value)
		return []line{{table: table, key: key, value: strconv.FormatBool(!b)}}, err
	}
}

func quoted(table, key string) func(Settings, string) ([]line, error) {
	return func(_ Settings, value string) ([]line, error) {
		return []line{{table: table, key: key, value: quote(value)}}, nil
	}
}

// acts is for a setting that switches a kind of event on or off.
func acts(table string) func(Settings, string) ([]line, error) {
	return func(s Settings, value string) ([]line, error) {
		on, err := truth(value)
		action := "ignore"
		if on {
			action = s.strongest("drain")
		}
		return []line{{table: table, key: "action", value: quote(action)}}, err
	}
}

// rebalances is for the two settings that say together what a rebalance recommendation leads to.
func rebalances(action string) func(Settings, string) ([]line, error) {
	return func(s Settings, value string) ([]line, error) {
		on, err := truth(value)
		if !on || err != nil || action == "cordon" && s.is("ENABLE_REBALANCE_DRAINING") {
			return nil, err
		}
		return []line{{table: rebalance, key: "action", value: quote(s.strongest(action))}}, nil
	}
}

// cordonsOnly keeps nth from draining for anything, also for what the handler knows nothing of.
func cordonsOnly(s Settings, value string) ([]line, error) {
	on, err := truth(value)
	if !on || err != nil {
		return nil, err
	}
	var lines []line
	for table, env := range map[string]string{
		spot: "ENABLE_SPOT_INTERRUPTION_DRAINING", maintenance: "ENABLE_SCHEDULED_EVENT_DRAINING", asg: "ENABLE_ASG_LIFECYCLE_DRAINING",
		shutdown: "", hibernation: "", reservation: "",
	} {
		if s.value(env) == "" || s.is(env) {
			lines = append(lines, line{table: table, key: "action", value: quote("cordon")})
		}
	}
	return lines, nil
}

// strongest is the action, unless the handler was told to cordon only.
func (s Settings) strongest(action string) string {
	if s.is("CORDON_ONLY") {
		return "cordon"
	}
	return action
}

func (s Settings) is(env string) bool {
	on, err := truth(s.value(env))
	return on && err == nil
}

// awsEndpoint is the metadata service's own address, which nth knows.
const awsEndpoint = "http://169.254.169.254"

func endpoint(s Settings, value string) ([]line, error) {
	if strings.TrimRight(value, "/") == awsEndpoint {
		return nil, nil
	}
	return address("imds", "endpoint")(s, value)
}

// address is for a URL, which stands in the settings as it is.
func address(table, key string) func(Settings, string) ([]line, error) {
	return func(s Settings, value string) ([]line, error) {
		if holdsPassword(value) {
			return nil, errors.New("must be a URL without a password")
		}
		return quoted(table, key)(s, value)
	}
}

// holdsPassword tells whether a URL names somebody, or may do so.
func holdsPassword(value string) bool {
	u, err := url.Parse(value)
	return err == nil && u.User != nil || err != nil && strings.Contains(value, "@")
}

// oldGrace is for the older of the two settings, which is not looked at where there is the newer one.
func oldGrace(s Settings, value string) ([]line, error) {
	if s.given["POD_TERMINATION_GRACE_PERIOD"] != (known{}) {
		return nil, nil
	}
	return grace(s, value)
}

func grace(_ Settings, value string) ([]line, error) {
	grace, err := seconds(value)
	if err != nil || grace < 0 { // each pod's own
		return nil, err
	}
	return []line{{table: "drain", key: "pod_grace_period", value: quote(grace.String())}}, nil
}

func jsonLog(_ Settings, value string) ([]line, error) {
	on, err := truth(value)
	if !on || err != nil {
		return nil, err
	}
	return []line{{table: "log", key: "format", value: quote("json")}}, nil
}

func logLevel(_ Settings, value string) ([]line, error) {
	level := strings.ToLower(value)
	if !slices.Contains([]string{"debug", "info", "error"}, level) {
		return nil, errors.New("must be debug, info or error")
	}
	return []line{{table: "log", key: "level", value: quote(level)}}, nil
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
	return []line{{table: "kubernetes", key: "event_annotations", value: inline(pairs)}}, nil
}

// headers takes over all but the one that nth sends by itself. Their values are secrets.
func headers(s Settings, value string) ([]line, error) {
	var pairs map[string]string
	if err := json.Unmarshal([]byte(value), &pairs); err != nil {
		return nil, errors.New("must be a JSON object of strings")
	}
	open := true
	for _, name := range sorted(pairs) {
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
		open = open && strings.EqualFold(name, "Content-Type")
	}
	switch {
	case len(pairs) == 0:
		return nil, nil
	case open:
		return []line{{table: "webhook", key: "headers", value: inline(pairs)}}, nil
	}
	content, err := json.Marshal(pairs)
	return []line{s.secretly("headers_file", headersFile, string(content))}, err
}

// headerName is what HTTP calls a token.
var headerName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

// The files of secrets, below the directory for them.
const urlFile, headersFile, templateFile = "webhook-url", "webhook-headers", "webhook-template"

// secretly is a setting whose value stands in a file.
func (s Settings) secretly(key, file, content string) line {
	file = path.Join(s.secrets, file)
	return line{table: "webhook", key: key, value: quote(file), file: file, secret: content}
}

func webhookURL(s Settings, value string) ([]line, error) {
	if u, err := url.Parse(value); err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("must be a URL that begins with https:// or http://")
	}
	return append([]line{s.secretly("url_file", urlFile, value)}, once...), nil
}

// template is what is posted, unless a file says that. One from a Secret may hold a key.
func template(s Settings, value string) ([]line, error) {
	switch {
	case s.given["WEBHOOK_TEMPLATE_FILE"] != (known{}):
		return nil, nil
	case s.given["WEBHOOK_TEMPLATE"].secret:
		return []line{s.secretly("template_file", templateFile, value)}, nil
	}
	return []line{{table: "webhook", key: "template", value: quote(value)}}, nil
}

// once has the webhook post as the handler does: once for each event, after the work.
var once = []line{{table: "webhook", key: "at_detection", value: "false"}, {table: "webhook", key: "at_close", value: "false"}}

func webhookProxy(_ Settings, value string) ([]line, error) {
	u, err := url.Parse(value)
	if err != nil || u.Hostname() == "" {
		return nil, errors.New("must be a URL such as tcp://proxy:3128")
	}
	if u.User != nil {
		return nil, nil
	}
	return []line{{table: "webhook", key: "proxy", value: quote(value)}}, nil
}

// queuedRebalances is for the queue mode, where no setting keeps the handler from a drain.
func queuedRebalances(s Settings, value string) ([]line, error) {
	if value != "" {
		if _, err := truth(value); err != nil {
			return nil, err
		}
	}
	return []line{{table: rebalance, key: "action", value: quote(s.strongest("drain"))}}, nil
}

func queuedCordonsOnly(_ Settings, value string) ([]line, error) {
	on, err := truth(value)
	if !on || err != nil {
		return nil, err
	}
	var lines []line
	for _, table := range []string{spot, rebalance, maintenance, asg, reservation, stateChange} {
		lines = append(lines, line{table: table, key: "action", value: quote("cordon")})
	}
	return lines, nil
}

// workers is for how many nodes are drained at once. Without any, the handler drains none, and here that is no limit.
func workers(_ Settings, value string) ([]line, error) {
	n, err := number(value)
	if err != nil || n < 1 {
		return nil, errors.New("must be a whole number, and not zero")
	}
	return []line{{table: "fleet", key: "max_draining", value: strconv.Itoa(n)}}, nil
}

// checksTag is for the two settings that say whether only instances with a tag are drained for.
func checksTag(s Settings, value string) ([]line, error) {
	if _, err := truth(value); err != nil {
		return nil, err
	}
	return managedTag(s, value)
}

// managedTag is for the four settings that say together which instances are drained for. There, only those with a tag are, unless
// one of them says otherwise: the newer of two goes before the older.
func managedTag(s Settings, _ string) ([]line, error) {
	for _, env := range []string{"CHECK_TAG_BEFORE_DRAINING", "CHECK_ASG_TAG_BEFORE_DRAINING"} {
		if s.given[env] == (known{}) {
			continue
		}
		if check, err := truth(s.value(env)); err == nil && !check {
			return nil, nil
		}
		break
	}
	tag := cmp.Or(s.value("MANAGED_TAG"), s.value("MANAGED_ASG_TAG"), handlerTag)
	return []line{{table: "fleet", key: "managed_tag", value: quote(tag)}}, nil
}

// handlerTag is the handler's default.
const handlerTag = "aws-node-termination-handler/managed"

func unknownNode(_ Settings, value string) ([]line, error) {
	deleted, err := truth(value)
	unknown := "leave"
	if deleted {
		unknown = "delete"
	}
	return []line{{table: "fleet", key: "unknown", value: quote(unknown)}}, err
}

// visibility is no less than what nth-queue takes.
func visibility(_ Settings, value string) ([]line, error) {
	visibility, err := seconds(value)
	if err != nil {
		return nil, err
	}
	return []line{{table: "queue", key: "visibility", value: quote(max(visibility, 10*time.Second).String())}}, nil
}

// listens puts the handler's port on all addresses, where it was.
func listens(s Settings, value string) ([]line, error) {
	on, err := truth(value)
	if !on || err != nil {
		return nil, err
	}
	port, err := number(s.value("PROMETHEUS_SERVER_PORT"))
	if err != nil {
		port = handlerPort // said at its own rule, if one is set
	}
	return []line{listener(port), {table: "metrics", key: "compatible", value: "true"}}, nil
}

// listensAt is for the port alone.
func listensAt(s Settings, value string) ([]line, error) {
	port, err := number(value)
	if err != nil || !s.is("ENABLE_PROMETHEUS_SERVER") {
		return nil, err
	}
	return []line{listener(port)}, nil
}

// handlerPort is the handler's default.
const handlerPort = 9092

func listener(port int) line {
	return line{table: "metrics", key: "listen", value: quote(fmt.Sprintf("0.0.0.0:%d", port))}
}

// quote writes a string as TOML, in single quotes where that saves escapes. The escapes of JSON are among TOML's.
func quote(text string) string {
	control := func(r rune) bool { return r < ' ' || r == 0x7f || r == '\'' }
	if strings.ContainsAny(text, `"\`) && !strings.ContainsFunc(text, control) {
		return "'" + text + "'"
	}
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(text) // a string can be encoded, and a Builder takes everything
	return strings.ReplaceAll(strings.TrimSpace(b.String()), "\x7f", `\u007f`)
}

// inline writes a table in one line.
func inline(pairs map[string]string) string {
	var written []string
	for _, key := range sorted(pairs) {
		written = append(written, quote(key)+" = "+quote(pairs[key]))
	}
	return "{ " + strings.Join(written, ", ") + " }"
}
