package config

import (
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
)

// value reads and writes one field of the settings. The functions below return a value for the field that at points to.
type value struct {
	allowed string             // which values are allowed; completes "must be ..."
	set     func(got any) bool // stores what the TOML decoder has found in the field; returns false, and stores nothing, if it is not allowed
	show    func() string      // returns the field in TOML, on one line
	secret  bool               // The field is never printed.
	initial any                // the default, as the TOML decoder would find it; nil is the zero value of the field
}

// field returns a value. read converts what the TOML decoder has found, and returns false if that is not allowed. write returns the field in TOML.
func field[T any](at *T, allowed string, read func(got any) (T, bool), write func(T) string) value {
	set := func(got any) bool {
		v, ok := read(got)
		if ok {
			*at = v
		}
		return ok
	}
	return value{allowed: allowed, set: set, show: func() string { return write(*at) }}
}

// initially gives a value a default, as the TOML decoder would find it.
func (v value) initially(got any) value {
	v.initial = got
	return v
}

// hidden makes a value a secret.
func hidden(v value) value {
	v.secret = true
	return v
}

// boolean is true or false.
func boolean(at *bool) value {
	read := func(got any) (bool, bool) { b, ok := got.(bool); return b, ok }
	return field(at, "true or false", read, strconv.FormatBool)
}

// number is an integer from low to high.
func number(at *int, low, high int) value {
	read := func(got any) (int, bool) {
		n, ok := got.(int64)
		return int(n), ok && n >= int64(low) && n <= int64(high)
	}
	return field(at, fmt.Sprintf("a whole number from %d to %d", low, high), read, strconv.Itoa)
}

// textOf is a string for which good returns true. want says which strings those are; it completes "must be ...".
func textOf(at *string, good func(string) bool, want string) value {
	read := func(got any) (string, bool) {
		s, ok := got.(string)
		return s, ok && good(s)
	}
	return field(at, want, read, quote)
}

// optionalText is textOf, or the empty string.
func optionalText(at *string, good func(string) bool, want string) value {
	return textOf(at, func(s string) bool { return s == "" || good(s) }, want+`, or ""`)
}

// anyText is any string. The package that uses it validates it.
func anyText(at *string) value {
	return textOf(at, func(string) bool { return true }, "a text")
}

// optionalFile is the absolute path of a file, or empty.
func optionalFile(at *string) value {
	return optionalText(at, filepath.IsAbs, "an absolute path")
}

// optionalEndpoint is the URL of a service of AWS, or empty.
func optionalEndpoint(at *string) value {
	return optionalText(at, isPlainEndpoint, `a URL of a host alone, such as "http://169.254.169.254"`)
}

// choice is one of a few texts.
func choice(at *string, of ...string) value {
	return textOf(at, func(s string) bool { return slices.Contains(of, s) }, "one of "+quoteAll(of))
}

// list is a list of strings, for each of which good returns true. An empty list is stored as nil.
func list(at *[]string, good func(string) bool, want string) value {
	read := func(got any) ([]string, bool) {
		items, ok := got.([]any)
		var found []string
		for _, item := range items {
			s, isText := item.(string)
			ok = ok && isText && good(s)
			found = append(found, s)
		}
		return found, ok
	}
	return field(at, want, read, func(all []string) string { return "[" + quoteAll(all) + "]" })
}

// pairs is a table of names and texts, for each of which good returns true. Names that a file lacks keep their texts.
func pairs(at *map[string]string, good func(name, text string) bool, want string) value {
	read := func(got any) (map[string]string, bool) {
		table, ok := got.(map[string]any)
		all := maps.Clone(*at) // The defaults may share the map, and must not change.
		if all == nil && len(table) > 0 {
			all = map[string]string{}
		}
		for name, entry := range table {
			s, isText := entry.(string)
			ok = ok && isText && good(name, s)
			all[name] = s
		}
		return all, ok
	}
	show := func(all map[string]string) string {
		var shown []string
		for _, name := range slices.Sorted(maps.Keys(all)) {
			shown = append(shown, toml.Key{name}.String()+" = "+quote(all[name]))
		}
		if shown == nil {
			return "{}"
		}
		return "{ " + strings.Join(shown, ", ") + " }"
	}
	return field(at, want, read, show)
}

// duration is a time.Duration from low to high, in Go's notation.
func duration(at *time.Duration, low, high time.Duration) value {
	read := func(got any) (time.Duration, bool) {
		s, ok := got.(string)
		d, err := time.ParseDuration(s)
		return d, ok && err == nil && d >= low && d <= high
	}
	return field(at, "a duration from "+quoteDuration(low)+" to "+quoteDuration(high), read, quoteDuration)
}

// quoteDuration writes a duration without the units that are zero: "10m", not "10m0s".
func quoteDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return quote(s)
}

// quote writes a string in TOML, whose escapes differ from Go's.
func quote(s string) string {
	line, _ := toml.Marshal(map[string]string{"v": s}) // A map of strings can always be encoded.
	return strings.TrimSpace(strings.TrimPrefix(string(line), "v = "))
}

// quoteAll writes strings in TOML, with commas between them.
func quoteAll(words []string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = quote(word)
	}
	return strings.Join(quoted, ", ")
}

// isEndpoint reports whether s is a URL of HTTP or HTTPS with a host.
func isEndpoint(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != ""
}

// isPlainEndpoint reports whether s is an endpoint that may be printed, and to which AWS's SDK can add a path. Such a URL has no user and
// password, and ends after the port.
func isPlainEndpoint(s string) bool {
	u, err := url.Parse(s)
	if err != nil || !isEndpoint(s) {
		return false
	}
	afterPort := strings.TrimPrefix(u.Path, "/") + u.RawQuery + u.Fragment
	return u.User == nil && afterPort == ""
}
