package config

import (
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"golang.org/x/net/http/httpguts"
)

// hidden is a value that is not printed, whatever it holds. Its show is for comparing.
type hidden interface {
	value
	// isSet tells whether there is something to hide.
	isSet() bool
}

// notShown stands for a wrong value of a secret.
const notShown = "(not shown)"

// secretive tells whether a key, or what stands below it, may hold a secret, also where it should not.
func secretive(key string) bool {
	table, _, _ := strings.Cut(key, ".")
	return table == "webhook"
}

// name is what a key looks like of which it is certain that it is no secret.
var name = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_-]{1,40}$`) })

// shownBelow is a part of a key as it can be told; key is all of it, or what stands before.
func shownBelow(key, part string) string {
	if part != "" && secretive(key) && !name().MatchString(part) {
		return notShown
	}
	return part
}

// secret is a text that is never printed; empty is none.
type secret struct{ text }

func (v secret) isSet() bool { return *v.at != "" }

func (v secret) set(got any, fault func(string, any, string)) {
	empty := func(s string) bool { return s == "" || v.good(s) }
	text{v.at, empty, v.want}.set(got, func(sub string, _ any, want string) { fault(sub, notShown, want) })
}

// secrets is a table of the values of headers, by name, that are never printed. A file sets only the names it holds; "" takes one away.
type secrets struct{ at *map[string]string }

func (v secrets) allowed() string { return "a table of names and texts" }
func (v secrets) isSet() bool     { return len(*v.at) > 0 }
func (v secrets) show() string    { return texts{at: v.at}.show() }

func (v secrets) set(got any, fault func(string, any, string)) {
	table, ok := got.(map[string]any)
	if !ok {
		fault("", notShown, v.allowed())
		return
	}
	texts := map[string]string{}
	maps.Copy(texts, *v.at)
	for _, name := range sorted(table) {
		if !httpguts.ValidHeaderFieldName(name) {
			fault(name, notShown, "under the name of a header, such as Authorization")
			continue
		}
		text, ok := table[name].(string)
		if !ok || name == "" || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
			fault(name, notShown, "a text on one line")
			continue
		}
		if texts[name] = text; text == "" {
			delete(texts, name)
		}
	}
	if len(texts) == 0 {
		texts = nil
	}
	*v.at = texts
}

// anyText is a text that others judge.
func anyText(at *string) value {
	return text{at, func(string) bool { return true }, "a text"}
}

func isEndpoint(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != ""
}

func isProxy(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.Hostname() != "" && slices.Contains([]string{"http", "https", "socks5", "tcp"}, u.Scheme)
}

// printed writes one setting as a line of TOML, or, of a secret, that it is there.
func printed(s setting) string {
	if h, ok := s.value.(hidden); ok && h.isSet() {
		return fmt.Sprintf("# %s is set, and not shown.", s.name)
	}
	return s.name + " = " + s.value.show()
}
