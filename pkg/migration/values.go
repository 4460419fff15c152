package migration

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The ways in which a value becomes one of nth's. Each returns what is wrong with the value, in words that go behind
// the setting's name.

func truth(value string) (bool, error) {
	b, err := strconv.ParseBool(value)
	if err != nil {
		return false, fmt.Errorf("%q: must be true or false", value)
	}
	return b, nil
}

func number(value string) (int, error) {
	// The chart's numbers may have come through a float.
	f, err := strconv.ParseFloat(value, 64)
	if err != nil || f != float64(int(f)) {
		return 0, fmt.Errorf("%q: must be a whole number", value)
	}
	return int(f), nil
}

func boolean(table, key string) func(Settings, string) ([]line, error) {
	return func(_ Settings, value string) ([]line, error) {
		b, err := truth(value)
		return []line{{table, key, strconv.FormatBool(b)}}, err
	}
}

func inverted(table, key string) func(Settings, string) ([]line, error) {
	return func(_ Settings, value string) ([]line, error) {
		b, err := truth(value)
		return []line{{table, key, strconv.FormatBool(!b)}}, err
	}
}

func quoted(table, key string) func(Settings, string) ([]line, error) {
	return func(_ Settings, value string) ([]line, error) { return []line{{table, key, quote(value)}}, nil }
}

// acts is for a setting that switches a kind of event on or off.
func acts(table string) func(Settings, string) ([]line, error) {
	return func(s Settings, value string) ([]line, error) {
		on, err := truth(value)
		action := "ignore"
		if on {
			action = s.strongest("drain")
		}
		return []line{{table, "action", quote(action)}}, err
	}
}

// rebalances is for the two settings that say together what a rebalance recommendation leads to.
func rebalances(action string) func(Settings, string) ([]line, error) {
	return func(s Settings, value string) ([]line, error) {
		on, err := truth(value)
		if !on || err != nil || action == "cordon" && s.is("ENABLE_REBALANCE_DRAINING") {
			return nil, err
		}
		return []line{{rebalance, "action", quote(s.strongest(action))}}, nil
	}
}

// cordonsOnly keeps nth from draining for anything, of which a shutdown is new.
func cordonsOnly(s Settings, value string) ([]line, error) {
	on, err := truth(value)
	if !on || err != nil {
		return nil, err
	}
	var lines []line
	for table, env := range map[string]string{
		spot: "ENABLE_SPOT_INTERRUPTION_DRAINING", maintenance: "ENABLE_SCHEDULED_EVENT_DRAINING", asg: "ENABLE_ASG_LIFECYCLE_DRAINING", shutdown: "",
	} {
		if s.values[env] == "" || s.is(env) {
			lines = append(lines, line{table, "action", quote("cordon")})
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
	on, err := truth(s.values[env])
	return on && err == nil
}

// awsEndpoint is the metadata service's own address, which nth knows.
const awsEndpoint = "http://169.254.169.254"

func endpoint(_ Settings, value string) ([]line, error) {
	if strings.TrimRight(value, "/") == awsEndpoint {
		return nil, nil
	}
	return []line{{"imds", "endpoint", quote(value)}}, nil
}

func grace(_ Settings, value string) ([]line, error) {
	seconds, err := number(value)
	if err != nil || seconds < 0 { // each pod's own
		return nil, err
	}
	return []line{{"drain", "pod_grace_period", quote((time.Duration(seconds) * time.Second).String())}}, nil
}

func jsonLog(_ Settings, value string) ([]line, error) {
	on, err := truth(value)
	if !on || err != nil {
		return nil, err
	}
	return []line{{"log", "format", quote("json")}}, nil
}

func logLevel(_ Settings, value string) ([]line, error) {
	level := strings.ToLower(value)
	if !slices.Contains([]string{"debug", "info", "error"}, level) {
		return nil, fmt.Errorf("%q: must be debug, info or error", value)
	}
	return []line{{"log", "level", quote(level)}}, nil
}

func annotations(_ Settings, value string) ([]line, error) {
	pairs := map[string]string{}
	for pair := range strings.SplitSeq(value, ",") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || strings.Contains(value, "=") {
			return nil, fmt.Errorf("%q: must be key=value pairs, with commas between them", pair)
		}
		pairs[key] = value
	}
	return []line{{"kubernetes", "event_annotations", inline(pairs)}}, nil
}

func headers(_ Settings, value string) ([]line, error) {
	var pairs map[string]string
	if err := json.Unmarshal([]byte(value), &pairs); err != nil {
		return nil, fmt.Errorf("%q: must be a JSON object of strings", value)
	}
	return []line{{"webhook", "headers", inline(pairs)}}, nil
}

// listens puts the handler's port on all addresses, where it was.
func listens(s Settings, value string) ([]line, error) {
	on, err := truth(value)
	if !on || err != nil {
		return nil, err
	}
	port, err := number(s.values["PROMETHEUS_SERVER_PORT"])
	if err != nil {
		port = handlerPort // said at its own rule, if one is set
	}
	return []line{listener(port), {"metrics", "compatible", "true"}}, nil
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
	return line{"metrics", "listen", quote(fmt.Sprintf("0.0.0.0:%d", port))}
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
	for _, key := range slices.Sorted(maps.Keys(pairs)) {
		written = append(written, quote(key)+" = "+quote(pairs[key]))
	}
	return "{ " + strings.Join(written, ", ") + " }"
}
