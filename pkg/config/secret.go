package config

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"golang.org/x/net/http/httpguts"

	redact "github.com/nth-project/nth/pkg/text"
)

// secret is a value that is never printed. Its method show is only for comparing two values.
type secret struct{ value }

// notShown stands for a wrong value of a secret.
const notShown = "(not shown)"

// secretive reports whether a key, or a key below it, may hold a secret, even one that does not belong there.
func secretive(key string) bool {
	table, _, _ := strings.Cut(key, ".")
	return table == "webhook"
}

// plainName matches keys that are certainly no secret.
var plainName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_-]{1,40}$`) })

// shownBelow returns part, the end of a key, as it may be printed. In [webhook] even a key may be a misplaced secret, so only a plain name is
// shown. key is the whole key, or the key that part is below.
func shownBelow(key, part string) string {
	if part != "" && secretive(key) && !plainName().MatchString(part) {
		return notShown
	}
	return part
}

// headers is a table of the values of HTTP headers; "" removes one.
func headers(at *map[string]string) value {
	allows := func(name string, got any) (string, bool) {
		if !httpguts.ValidHeaderFieldName(name) {
			return "under the name of a header, such as Authorization", false
		}
		s, ok := got.(string)
		return "a text on one line", ok && httpguts.ValidHeaderFieldValue(s)
	}
	return texts{at: at, want: "a table of names and texts", allows: allows, emptyRemoves: true}
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
	return err == nil && isEndpoint(s) && u.User == nil && strings.TrimPrefix(u.Path, "/")+u.RawQuery+u.Fragment == ""
}

// isProxy reports whether s is the URL of a proxy for the webhook, in which a user and password can be recognized.
func isProxy(s string) bool {
	u, err := url.Parse(s)
	return err == nil && !redact.HidesUser(u) && u.Hostname() != "" && slices.Contains([]string{"http", "https", "socks5", "tcp"}, u.Scheme)
}
