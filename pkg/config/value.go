package config

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
)

// value is one typed field of the settings. It knows which values are allowed, reads one from a decoded file, and shows it.
type value interface {
	// allowed completes the sentence "must be ...".
	allowed() string
	// set stores got, which the TOML decoder has found. It calls fault for each thing that is wrong, and does not store that.
	set(got any, fault faultFunc)
	// show writes the stored value in TOML, on one line.
	show() string
}

// faultFunc reports that got is wrong. want completes "must be ..."; "" says that there is no such key. sub is a key below the setting's own, or
// "" for the setting itself.
type faultFunc func(sub string, got any, want string)

// single is a value that a file replaces as a whole.
type single[T any] struct {
	at   *T
	want string                  // completes "must be ..."
	read func(got any) (T, bool) // converts what the decoder has found; false if it is not allowed
	toml func(T) string
}

func (v single[T]) allowed() string { return v.want }
func (v single[T]) show() string    { return v.toml(*v.at) }

// set implements value.
func (v single[T]) set(got any, fault faultFunc) {
	read, ok := v.read(got)
	if !ok {
		fault("", got, v.want)
		return
	}
	*v.at = read
}

// boolean is true or false.
func boolean(at *bool) value {
	read := func(got any) (bool, bool) { b, ok := got.(bool); return b, ok }
	return single[bool]{at, "true or false", read, strconv.FormatBool}
}

// number is an integer from low to high.
func number(at *int, low, high int) value {
	read := func(got any) (int, bool) {
		n, ok := got.(int64)
		return int(n), ok && n >= int64(low) && n <= int64(high)
	}
	return single[int]{at, "a whole number from " + strconv.Itoa(low) + " to " + strconv.Itoa(high), read, strconv.Itoa}
}

// text is a string that good accepts and want describes.
func text(at *string, good func(string) bool, want string) value {
	read := func(got any) (string, bool) {
		s, ok := got.(string)
		return s, ok && good(s)
	}
	return single[string]{at, want, read, quote}
}

// optionalText is a text, or empty.
func optionalText(at *string, good func(string) bool, want string) value {
	return text(at, func(s string) bool { return s == "" || good(s) }, want+`, or ""`)
}

// anyText is a text that is validated elsewhere.
func anyText(at *string) value {
	return text(at, func(string) bool { return true }, "a text")
}

// optionalFile is the absolute path of a file, or empty.
func optionalFile(at *string) value {
	return optionalText(at, filepath.IsAbs, "an absolute path")
}

// optionalEndpoint is the address of a service, or empty.
func optionalEndpoint(at *string) value {
	return optionalText(at, isPlainEndpoint, `a URL of a host alone, such as "http://169.254.169.254"`)
}

// choice is one of some texts.
func choice(at *string, of ...string) value {
	return text(at, func(s string) bool { return slices.Contains(of, s) }, "one of "+quoteAll(of))
}

// list is a list of strings of which good accepts each; the empty list is nil.
func list(at *[]string, good func(string) bool, want string) single[[]string] {
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
	return single[[]string]{at, want, read, func(all []string) string { return "[" + quoteAll(all) + "]" }}
}

// duration is a time.Duration from low to high, in Go's notation.
func duration(at *time.Duration, low, high time.Duration) value {
	return durations[time.Duration]{single[time.Duration]{at, durationWords(low, high), readDuration(low, high), quoteDuration}}
}

// optionalDuration is a duration, or empty, which is nil.
func optionalDuration(at **time.Duration, low, high time.Duration) value {
	read := func(got any) (*time.Duration, bool) {
		if got == "" {
			return nil, true
		}
		d, ok := readDuration(low, high)(got)
		return &d, ok
	}
	show := func(d *time.Duration) string {
		if d == nil {
			return `""`
		}
		return quoteDuration(*d)
	}
	return durations[*time.Duration]{single[*time.Duration]{at, durationWords(low, high) + `, or ""`, read, show}}
}

// durations is the value of a duration, or of an optional one. Go's notation has no days, so a fault about "2d" also says "48h".
type durations[T any] struct{ single[T] }

// set implements value.
func (v durations[T]) set(got any, fault faultFunc) {
	v.single.set(got, func(sub string, got any, want string) {
		text, _ := got.(string)
		number, isDays := strings.CutSuffix(text, "d")
		if days, err := strconv.ParseUint(number, 10, 16); isDays && err == nil {
			want += fmt.Sprintf(" (use \"%dh\")", 24*days)
		}
		fault(sub, got, want)
	})
}

// durationWords completes "must be ..." for a duration.
func durationWords(low, high time.Duration) string {
	return "a duration from " + quoteDuration(low) + " to " + quoteDuration(high)
}

// readDuration returns the read function of a duration: it reports false for what is no duration from low to high.
func readDuration(low, high time.Duration) func(got any) (time.Duration, bool) {
	return func(got any) (time.Duration, bool) {
		s, ok := got.(string)
		d, err := time.ParseDuration(s)
		return d, ok && err == nil && d >= low && d <= high
	}
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
	line, err := toml.Marshal(map[string]string{"v": s})
	if err != nil {
		return strconv.Quote(s) // A map of strings can always be encoded.
	}
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

// texts is a table of strings. A file sets only the names that it holds; the empty table is nil.
type texts struct {
	at   *map[string]string
	want string
	// allows reports whether a name may have this value. want is that of a faultFunc, for when it may not.
	allows func(name string, got any) (want string, ok bool)
	// emptyRemoves has an empty string remove its name.
	emptyRemoves bool
}

func (v texts) allowed() string { return v.want }
func (v texts) show() string    { return v.showPairs(sorted(*v.at), quote) }

// showPairs returns an inline table of TOML with these names; key writes a name.
func (v texts) showPairs(names []string, key func(string) string) string {
	if len(names) == 0 {
		return "{}"
	}
	pairs := make([]string, len(names))
	for i, name := range names {
		pairs[i] = key(name) + " = " + quote((*v.at)[name])
	}
	return "{ " + strings.Join(pairs, ", ") + " }"
}

// set implements value. The names that got lacks keep their texts.
func (v texts) set(got any, fault faultFunc) {
	table, ok := got.(map[string]any)
	if !ok {
		fault("", got, v.want)
		return
	}
	all := map[string]string{}
	maps.Copy(all, *v.at) // It may be shared with other settings, such as the defaults.
	for _, name := range sorted(table) {
		if want, ok := v.allows(name, table[name]); !ok {
			fault(name, table[name], want)
			continue
		}
		all[name], _ = table[name].(string) // allows accepts only strings.
		if all[name] == "" && v.emptyRemoves {
			delete(all, name)
		}
	}
	if len(all) == 0 {
		all = nil
	}
	*v.at = all
}

// choiceOfEach is a table with certain names, each of which has one of some words.
type choiceOfEach struct {
	texts
	names []string
}

// newChoiceOfEach returns a table with these names, each of which has one of the words.
func newChoiceOfEach(at *map[string]string, names, words []string) choiceOfEach {
	want := "one of " + quoteAll(words)
	allows := func(name string, got any) (string, bool) {
		if !slices.Contains(names, name) {
			return "", false // There is no such key: see faultFunc.
		}
		word, ok := got.(string)
		return want, ok && slices.Contains(words, word)
	}
	return choiceOfEach{texts{at: at, want: "a table of " + quoteAll(names) + ", each " + want, allows: allows}, names}
}

// show implements value. It shows all names, in the sequence of the documentation.
func (v choiceOfEach) show() string {
	return v.showPairs(v.names, func(name string) string { return name })
}
