package text

import (
	"net/url"
	"regexp"
	"strings"
)

// hidden stands for a secret that was taken out.
const hidden = "…"

const (
	// secretive matches what the names of secrets contain.
	secretive = `(?:pass(?:word|wd|phrase)|pwd|secret|token|api[-_]?key|key-data)`
	// value matches what follows such a name: a text in quotation marks, which may be escaped, or a text without blanks. A match ends before
	// the closing quotation mark. The groups have the opening one: "${2}${3}${4}" in a replacement keeps it.
	value = `(?:(")(?:\\.|[^"\\])*|(\\+["'])(?:[^"'\\]|\\\\+.|\\[^"'\\])*|(')[^']*|[^\s"',;&\\]+)`
)

// What is taken out because of its place or its beginning, whether it looks random or not. Group 1, where Redact keeps it, is the text
// before the secret.
var (
	// A PEM block, whose end or beginning may be cut off.
	pemBlock = regexp.MustCompile(`(?s)-----BEGIN .*?(-----END [A-Z0-9 ]*-----|\z)`)
	pemEnd   = regexp.MustCompile(`(?s)\A.*-----END [A-Z0-9 ]*-----`)
	// The user and password of a URL, with a scheme or without.
	userinfo   = regexp.MustCompile(`(://)(?:[^\s"']*|[^\s"'/@:]*:[^"'@]*)@`)
	schemeless = regexp.MustCompile(`(^|[\s"'(=])[^\s"'/@:]+:[^\s/@][^\s@]*@`)
	// The value of something with the name of a secret, or after a flag with such a name.
	named = regexp.MustCompile(`(?i)((?:(?:^|[^\w/-])[\w-]*` + secretive + `[\w-]*\\*["']?\s*:|` + secretive + `[\w-]*\\*["']?\s*=>?)\s*(?:[|>]-?\s+)?)` + value)
	flag  = regexp.MustCompile(`(?i)((?:^|[\s"'(\[,])--?[\w-]*` + secretive + `[\w-]*(?:["',]*\s+|["'],))` + value)
	// The path of a webhook's URL.
	webhook = regexp.MustCompile(`(?i)(\b(?:hooks?|webhook)\.[\w.-]+/|/api/webhooks/)[^\s"']+`)
	// Credentials in HTTP headers: after the header's name, or after "Bearer" anywhere.
	header = regexp.MustCompile(`(?i)(\b(?:authorization|cookie|x-[a-z-]+)\\*["']?:\s*(?:\\*b?["'\[])*)(?:[\w-]+\s+|(?:\S+;\s+)*)[^\s"'\]\\]+`)
	scheme = regexp.MustCompile(`(?i)\b(bearer\s+)\S+`)
	// Tokens of Slack, GitHub, GitLab, AWS and EKS, and JSON Web Tokens, by their beginnings.
	beginning = regexp.MustCompile(`\b(?:xox[a-z]-|gh[pousr]_|glpat-|AKIA|ASIA|eyJ|k8s-aws-v1\.)[\w.+/=%-]*`)
)

var (
	// candidate matches the name of a host, which is never a secret, or a word that is long enough to be a secret.
	candidate = regexp.MustCompile(`[A-Za-z0-9-]+(?:\.[a-z0-9-]+)+\.[a-z]{2,}\b|[A-Za-z0-9+_%-][A-Za-z0-9+/_%-]{15,}={0,2}`)
	// host matches a name of a host, and awsID an ID of EC2, which looks random and is no secret.
	host  = regexp.MustCompile(`^[A-Za-z0-9-]+(\.[a-z0-9-]+)+\.[a-z]{2,}$`)
	awsID = regexp.MustCompile(`^(i|ami|eni|sg|subnet|vol|vpc)-[0-9a-f]{8,17}$`)
)

// Redact returns s in one line, with "…" for whatever is, or looks like, a secret. It is for errors of libraries and programs about documents
// with secrets, such as a kubeconfig, the URL of a proxy or the output of an exec plugin.
func Redact(s string) string {
	s = pemBlock.ReplaceAllString(strings.ToValidUTF8(s, ""), hidden)
	s = pemEnd.ReplaceAllString(s, hidden)
	s = strings.Join(strings.Fields(s), " ")
	s = userinfo.ReplaceAllString(s, "${1}"+hidden+"@")
	s = schemeless.ReplaceAllString(s, "${1}"+hidden+"@")
	s = header.ReplaceAllString(s, "${1}"+hidden)
	s = named.ReplaceAllString(s, "${1}${2}${3}${4}"+hidden)
	s = flag.ReplaceAllString(s, "${1}${2}${3}${4}"+hidden)
	s = webhook.ReplaceAllString(s, "${1}"+hidden)
	s = scheme.ReplaceAllString(s, "${1}"+hidden)
	s = beginning.ReplaceAllString(s, hidden)
	return candidate.ReplaceAllStringFunc(s, redactWord)
}

// redactWord returns a match of candidate with "…" for each part between slashes that looks random.
func redactWord(word string) string {
	if host.MatchString(word) {
		return word
	}
	shortest := 16 // characters: shorter parts of an ordinary path are no secrets
	if looksRandom(word) {
		shortest = 2 // The whole word may be one secret in base64, whose characters include the slash.
	}
	parts := strings.Split(word, "/")
	for i, part := range parts {
		if len(part) >= shortest && !awsID.MatchString(part) && looksRandom(part) {
			parts[i] = hidden
		}
	}
	return strings.Join(parts, "/")
}

// looksRandom reports whether a word may be encoded in base64. It counts how often the class of the characters changes: capital, small
// letter or digit. In base64, about three in five characters are of another class than the one before, and digits are all over the word. In
// paths, names and ARNs, fewer than one in three are. In CamelCase with a number, fewer than two in five are.
func looksRandom(word string) bool {
	characters, changes, digitGroups, last := 0, 0, 0, rune(0)
	for _, r := range word {
		var class rune
		switch {
		case r >= '0' && r <= '9':
			class = '0'
		case r >= 'a' && r <= 'z':
			class = 'a'
		case r >= 'A' && r <= 'Z':
			class = 'A'
		default:
			continue // Punctuation is in random words and in others.
		}
		if characters++; class != last {
			if last != 0 {
				changes++
			}
			if class == '0' {
				digitGroups++
			}
		}
		last = class
	}
	if digitGroups < 2 { // It may be CamelCase with a number: only two changes in five characters are suspicious.
		return 5*changes >= 2*characters
	}
	return 3*changes >= characters // Otherwise, one in three is.
}

// HidesUser reports whether what url.Parse took for the host is a part of the URL's user or password. That happens if one of those has a
// slash, a question mark or a number sign. Such a URL must be refused: nth would show the host in messages, and send it to DNS.
func HidesUser(u *url.URL) bool { return strings.Contains(u.Path+u.RawQuery+u.Fragment, "@") }

// Redacted returns an error with the same causes and a redacted text; nil for nil.
func Redacted(err error) error {
	if err == nil {
		return nil
	}
	return redacted{err}
}

// redacted is an error whose text is redacted.
type redacted struct{ error }

// Error implements error.
func (e redacted) Error() string { return Redact(e.error.Error()) }

// Unwrap returns the error with its full text.
func (e redacted) Unwrap() error { return e.error }
