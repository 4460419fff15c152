package config

import (
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
)

// value is one typed place in a Config: it says what may stand there, takes it from a decoded file and shows it.
type value interface {
	// allowed completes the sentence "must be ...".
	allowed() string
	// set stores what a file holds, or leaves the place alone and calls fault once for each thing that is wrong. sub
	// names a key below the setting's own, "" the setting itself.
	set(got any, fault func(sub string, got any, want string))
	// show writes what is stored, in TOML and on one line.
	show() string
}

type boolean struct{ at *bool }

func (v boolean) allowed() string { return "true or false" }
func (v boolean) show() string    { return strconv.FormatBool(*v.at) }

func (v boolean) set(got any, fault func(string, any, string)) {
	b, ok := got.(bool)
	if !ok {
		fault("", got, v.allowed())
		return
	}
	*v.at = b
}

// text is a string that good accepts and want describes.
type text struct {
	at   *string
	good func(string) bool
	want string
}

func (v text) allowed() string { return v.want }
func (v text) show() string    { return quote(*v.at) }

func (v text) set(got any, fault func(string, any, string)) {
	s, ok := got.(string)
	if !ok || !v.good(s) {
		fault("", got, v.want)
		return
	}
	*v.at = s
}

// directory is an absolute path.
func directory(at *string) value {
	return text{at, filepath.IsAbs, "an absolute path"}
}

// optionalFile is an absolute path, or empty.
func optionalFile(at *string) value {
	good := func(s string) bool { return s == "" || filepath.IsAbs(s) }
	return text{at, good, `an absolute path, or ""`}
}

// optionalEndpoint is the address of a service, or empty.
func optionalEndpoint(at *string) value {
	return text{at, func(s string) bool { return s == "" || isEndpoint(s) }, `a URL such as "http://169.254.169.254", or ""`}
}

// choice is one of a few words.
func choice(at *string, of []string) text {
	return text{at, func(s string) bool { return slices.Contains(of, s) }, "one of " + quoteAll(of)}
}

// choices is a list of some of a few words; the empty list is nil.
func choices(at *[]string, of []string) names {
	return names{at, func(s string) bool { return slices.Contains(of, s) }, "a list of any of " + quoteAll(of)}
}

// choiceOfEach is a table that gives each of a few names one of a few words. A file sets only the names it holds.
type choiceOfEach struct {
	at    *map[string]string
	names []string
	of    []string
}

func (v choiceOfEach) allowed() string {
	return "a table of " + quoteAll(v.names) + ", each one of " + quoteAll(v.of)
}

func (v choiceOfEach) show() string {
	var b strings.Builder
	for i, name := range v.names {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(name + " = " + quote((*v.at)[name]))
	}
	return "{ " + b.String() + " }"
}

func (v choiceOfEach) set(got any, fault func(string, any, string)) {
	table, ok := got.(map[string]any)
	if !ok {
		fault("", got, v.allowed())
		return
	}
	words := map[string]string{}
	maps.Copy(words, *v.at)
	for _, name := range sorted(table) {
		if !slices.Contains(v.names, name) {
			fault(name, nil, "")
			continue
		}
		var word string
		choice(&word, v.of).set(table[name], func(_ string, got any, want string) { fault(name, got, want) })
		if word != "" {
			words[name] = word
		}
	}
	*v.at = words
}

// duration is a span of time within bounds, written as Go writes it.
type duration struct {
	at       *time.Duration
	min, max time.Duration
}

func (v duration) allowed() string {
	return "a duration from " + quote(short(v.min)) + " to " + quote(short(v.max))
}

func (v duration) show() string { return quote(short(*v.at)) }

func (v duration) set(got any, fault func(string, any, string)) {
	s, ok := got.(string)
	d, err := time.ParseDuration(s)
	if !ok || err != nil || d < v.min || d > v.max {
		fault("", got, v.allowed())
		return
	}
	*v.at = d
}

// optionalDuration is a duration, or empty: nil.
type optionalDuration struct {
	at       **time.Duration
	min, max time.Duration
}

func (v optionalDuration) allowed() string {
	return duration{nil, v.min, v.max}.allowed() + `, or ""`
}

func (v optionalDuration) show() string {
	if *v.at == nil {
		return `""`
	}
	return quote(short(**v.at))
}

func (v optionalDuration) set(got any, fault func(string, any, string)) {
	if got == "" {
		*v.at = nil
		return
	}
	var d time.Duration
	good := true
	duration{&d, v.min, v.max}.set(got, func(string, any, string) { good = false })
	if !good {
		fault("", got, v.allowed())
		return
	}
	*v.at = &d
}

// short writes a duration without the empty units that time.Duration.String appends: "10m", not "10m0s".
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// quote writes a string as TOML does, which differs from Go in its escapes.
func quote(s string) string {
	line, err := toml.Marshal(map[string]string{"v": s})
	if err != nil {
		return strconv.Quote(s)
	}
	return strings.TrimSpace(strings.TrimPrefix(string(line), "v = "))
}

func quoteAll(words []string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = quote(word)
	}
	return strings.Join(quoted, ", ")
}

// names is a list of strings that good accepts; the empty list is nil.
type names struct {
	at   *[]string
	good func(string) bool
	want string
}

func (v names) allowed() string { return v.want }
func (v names) show() string    { return "[" + quoteAll(*v.at) + "]" }

func (v names) set(got any, fault func(string, any, string)) {
	list, ok := got.([]any)
	if !ok {
		fault("", got, v.want)
		return
	}
	var found []string
	for _, item := range list {
		name, ok := item.(string)
		if !ok || !v.good(name) {
			fault("", got, v.want)
			return
		}
		found = append(found, name)
	}
	*v.at = found
}

// hookName tells whether a lifecycle hook can have that name.
func hookName(s string) bool {
	return s != "" && len(s) <= 255 && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_/") == ""
}

// texts is a table of strings under names that people choose. A file sets only the names it holds; the empty table is
// nil.
type texts struct {
	at   *map[string]string
	good func(name, text string) bool
	want string // what the table is, and each name and text in it
}

func (v texts) allowed() string { return v.want }

func (v texts) show() string {
	if len(*v.at) == 0 {
		return "{}"
	}
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(*v.at)) {
		pairs = append(pairs, quote(name)+" = "+quote((*v.at)[name]))
	}
	return "{ " + strings.Join(pairs, ", ") + " }"
}

func (v texts) set(got any, fault func(string, any, string)) {
	table, ok := got.(map[string]any)
	if !ok {
		fault("", got, v.allowed())
		return
	}
	all := maps.Clone(*v.at)
	for _, name := range sorted(table) {
		text, ok := table[name].(string)
		if !ok || !v.good(name, text) {
			fault(name, table[name], v.allowed())
			continue
		}
		if all == nil {
			all = map[string]string{}
		}
		all[name] = text
	}
	*v.at = all
}
