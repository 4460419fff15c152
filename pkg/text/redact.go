package text

import (
	"net/url"
	"regexp"
	"strings"
)

// hidden stands for what was taken out.
const hidden = "…"

// secretive is what names of secrets contain, and value what follows such a name: a text in quotation marks, which may be escaped, or one
// without blanks.
const (
	secretive = `(?:pass(?:word|wd|phrase)|pwd|secret|token|api[-_]?key|key-data)`
	value     = `(?:(")(?:\\.|[^"\\])*|(\\+["'])(?:[^"'\\]|\\\\+.|\\[^"'\\])*|(')[^']*|[^\s"',;&\\]+)`
)

// What is taken out, whatever it looks like: PEM blocks, whose beginning or end may be cut off; the user and password of a URL, with a
// scheme or without; what has the name of a secret, or follows a flag of that name; the path of a webhook's URL; and what begins as tokens
// of AWS, EKS, GitHub, GitLab and Slack, and JSON Web Tokens, do.
var (
	pemBlock   = regexp.MustCompile(`(?s)-----BEGIN .*?(-----END [A-Z0-9 ]*-----|\z)`)
	pemEnd     = regexp.MustCompile(`(?s)\A.*-----END [A-Z0-9 ]*-----`)
	userinfo   = regexp.MustCompile(`(://)(?:[^\s"']*|[^\s"'/@:]*:[^"'@]*)@`)
	schemeless = regexp.MustCompile(`(^|[\s"'(=])[^\s"'/@:]+:[^\s/@][^\s@]*@`)
	named      = regexp.MustCompile(`(?i)((?:(?:^|[^\w/-])[\w-]*` + secretive + `[\w-]*\\*["']?\s*:|` + secretive + `[\w-]*\\*["']?\s*=>?)\s*(?:[|>]-?\s+)?)` + value)
	flag       = regexp.MustCompile(`(?i)((?:^|[\s"'(\[,])--?[\w-]*` + secretive + `[\w-]*(?:["',]*\s+|["'],))` + value)
	webhook    = regexp.MustCompile(`(?i)(\b(?:hooks?|webhook)\.[\w.-]+/|/api/webhooks/)[^\s"']+`)
	header     = regexp.MustCompile(`(?i)(\b(?:authorization|cookie|x-[a-z-]+)\\*["']?:\s*(?:\\*b?["'\[])*)(?:[\w-]+\s+|(?:\S+;\s+)*)[^\s"'\]\\]+`)
	scheme     = regexp.MustCompile(`(?i)\b(bearer\s+)\S+`)
	beginning  = regexp.MustCompile(`\b(?:xox[a-z]-|gh[pousr]_|glpat-|AKIA|ASIA|eyJ|k8s-aws-v1\.)[\w.+/=%-]*`)
)

// candidate is a name of a host, which is never a secret, or what may be one.
var (
	candidate = regexp.MustCompile(`[A-Za-z0-9-]+(?:\.[a-z0-9-]+)+\.[a-z]{2,}\b|[A-Za-z0-9+_%-][A-Za-z0-9+/_%-]{15,}={0,2}`)
	host      = regexp.MustCompile(`^[A-Za-z0-9-]+(\.[a-z0-9-]+)+\.[a-z]{2,}$`)
	awsID     = regexp.MustCompile(`^(i|ami|eni|sg|subnet|vol|vpc)-[0-9a-f]{8,17}$`)
)

// Redact returns s without line breaks, with "…" for what is, or looks like, a secret. It is for what libraries and programs say of documents
// that have secrets in them, such as a kubeconfig, the URL of a proxy or the output of an exec plugin.
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

// redactWord takes a word out if it looks random, or those parts of a path that do.
func redactWord(word string) string {
	if host.MatchString(word) {
		return word
	}
	shortest := 16
	if looksRandom(word) { // The slashes may be part of it.
		shortest = 2
	}
	parts := strings.Split(word, "/")
	for i, part := range parts {
		if len(part) >= shortest && !awsID.MatchString(part) && looksRandom(part) {
			parts[i] = hidden
		}
	}
	return strings.Join(parts, "/")
}

// looksRandom reports whether a word may be encoded in base64. There, about three in five characters are of another class (capital, small
// letter, digit) than the one before, and digits are all over it. In paths, names and ARNs, fewer than one in three are; in CamelCase
// with a number, fewer than two in five.
func looksRandom(word string) bool {
	characters, changes, digits, last := 0, 0, 0, rune(0)
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
			continue // Punctuation is in both.
		}
		if characters++; class != last {
			if last != 0 {
				changes++
			}
			if class == '0' {
				digits++
			}
		}
		last = class
	}
	if digits < 2 {
		return 5*changes >= 2*characters
	}
	return 3*changes >= characters
}

// HidesUser reports whether the host of a URL is a part of its user or password, as it is if one of those has a slash, a question mark or a
// number sign. Hosts are shown, and looked up.
func HidesUser(u *url.URL) bool { return strings.Contains(u.Path+u.RawQuery+u.Fragment, "@") }

// Redacted returns an error with the same causes and a redacted text; nil for nil.
func Redacted(err error) error {
	if err == nil {
		return nil
	}
	return redacted{err}
}

type redacted struct{ error }

// Error implements error.
func (e redacted) Error() string { return Redact(e.error.Error()) }

// Unwrap returns the error whose text is redacted.
func (e redacted) Unwrap() error { return e.error }
