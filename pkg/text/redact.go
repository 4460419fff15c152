package text

import (
	"net/url"
	"regexp"
	"strings"
	"sync"
)

// hidden replaces a secret.
const hidden = "…"

const (
	// secretive matches what the names of secrets contain.
	secretive = `(?:pass(?:word|wd|phrase)|pwd|secret|token|api[-_]?key|key-data)`
	// value matches what follows such a name: a text in quotation marks, which may be escaped, or a text without blanks. A match ends before
	// the closing quotation mark. Its three groups match the opening quotation mark: "${2}${3}${4}" in a replacement keeps that mark.
	value = `(?:(")(?:\\.|[^"\\])*|(\\+["'])(?:[^"'\\]|\\\\+.|\\[^"'\\])*|(')[^']*|[^\s"',;&\\]+)`
)

// lazily returns a function that compiles a pattern when it is first called. Most processes redact nothing, and all patterns would take 150 kB
// at each start.
func lazily(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}

// These match secrets by what stands before them or by how they begin, whether they look random or not. Group 1, if there is one, is the
// text before the secret, which Redact keeps.
var (
	// A PEM block, whose end or beginning may be cut off.
	pemBlock = lazily(`(?s)-----BEGIN .*?(-----END [A-Z0-9 ]*-----|\z)`)
	pemEnd   = lazily(`(?s)\A.*-----END [A-Z0-9 ]*-----`)
	// The user and password of a URL: userinfo with a scheme before them, schemeless without one. The second half of userinfo is for a
	// password with blanks.
	userinfo   = lazily(`(://)(?:[^\s"']*|[^\s"'/@:]*:[^"'@]*)@`)
	schemeless = lazily(`(^|[\s"'(=])[^\s"'/@:]+:[^\s/@][^\s@]*@`)
	// The value of something with the name of a secret, or after a flag with such a name. Before ":", the name is not in a path; before "=",
	// it may be the end of anything. "|" and ">" begin a text of several lines in YAML.
	named = lazily(`(?i)((?:(?:^|[^\w/-])[\w-]*` + secretive + `[\w-]*\\*["']?\s*:|` + secretive + `[\w-]*\\*["']?\s*=>?)\s*(?:[|>]-?\s+)?)` + value)
	flag  = lazily(`(?i)((?:^|[\s"'(\[,])--?[\w-]*` + secretive + `[\w-]*(?:["',]*\s+|["'],))` + value)
	// The path of a webhook's URL.
	webhook = lazily(`(?i)(\b(?:hooks?|webhook)\.[\w.-]+/|/api/webhooks/)[^\s"']+`)
	// Credentials in HTTP headers: after the header's name, or after "Bearer" anywhere.
	header = lazily(`(?i)(\b(?:authorization|cookie|x-[a-z-]+)\\*["']?:\s*(?:\\*b?["'\[])*)(?:[\w-]+\s+|(?:\S+;\s+)*)[^\s"'\]\\]+`)
	scheme = lazily(`(?i)\b(bearer\s+)\S+`)
	// Tokens of Slack, GitHub, GitLab, AWS and EKS, and JSON Web Tokens, by their beginnings.
	beginning = lazily(`\b(?:xox[a-z]-|gh[pousr]_|glpat-|AKIA|ASIA|eyJ|k8s-aws-v1\.)[\w.+/=%-]*`)
)

var (
	// candidate matches the name of a host, which is never a secret, or a word that is long enough to be a secret.
	candidate = lazily(`[A-Za-z0-9-]+(?:\.[a-z0-9-]+)+\.[a-z]{2,}\b|[A-Za-z0-9+_%-][A-Za-z0-9+/_%-]{15,}={0,2}`)
	// host matches a name of a host, and awsID an ID of EC2, which looks random and is no secret.
	host  = lazily(`^[A-Za-z0-9-]+(\.[a-z0-9-]+)+\.[a-z]{2,}$`)
	awsID = lazily(`^(i|ami|eni|sg|subnet|vol|vpc)-[0-9a-f]{8,17}$`)
)

// Redact returns s in one line, with "…" for each part that is, or looks like, a secret. It is for errors of libraries and programs about
// texts with secrets, such as a kubeconfig, a proxy's URL or the output of an exec plugin.
func Redact(s string) string {
	s = pemBlock().ReplaceAllString(strings.ToValidUTF8(s, ""), hidden)
	s = pemEnd().ReplaceAllString(s, hidden)
	s = strings.Join(strings.Fields(s), " ") // one line: the patterns below do not match across lines
	s = userinfo().ReplaceAllString(s, "${1}"+hidden+"@")
	s = schemeless().ReplaceAllString(s, "${1}"+hidden+"@")
	s = header().ReplaceAllString(s, "${1}"+hidden)
	s = named().ReplaceAllString(s, "${1}${2}${3}${4}"+hidden)
	s = flag().ReplaceAllString(s, "${1}${2}${3}${4}"+hidden)
	s = webhook().ReplaceAllString(s, "${1}"+hidden)
	s = scheme().ReplaceAllString(s, "${1}"+hidden)
	s = beginning().ReplaceAllString(s, hidden)
	return candidate().ReplaceAllStringFunc(s, redactWord)
}

// redactWord returns a word that candidate has matched, with "…" for each part between slashes that looks random.
func redactWord(word string) string {
	if host().MatchString(word) {
		return word
	}
	shortest := 16 // how many characters a part must have to be hidden: shorter parts of a path are no secrets
	if looksRandom(word) {
		shortest = 2 // The whole word may be one secret in base64, which may have slashes anywhere.
	}
	parts := strings.Split(word, "/")
	for i, part := range parts {
		if len(part) >= shortest && !awsID().MatchString(part) && looksRandom(part) {
			parts[i] = hidden
		}
	}
	return strings.Join(parts, "/")
}

// looksRandom reports whether a word may be encoded in base64. There are three classes of characters: capitals, small letters and digits.
// looksRandom counts the changes: characters whose class differs from that of the character before.
//
// In base64, about three in five characters are changes, and digits are all over the word. In paths, names and ARNs, fewer than one in three
// are changes. In CamelCase with a number, fewer than two in five are.
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
			continue // Punctuation says nothing: random words have it, and others.
		}
		characters++
		if class != last && last != 0 { // 0: this is the first character.
			changes++
		}
		if class == '0' && last != '0' {
			digitGroups++
		}
		last = class
	}
	if digitGroups < 2 { // The word may be CamelCase with a number: at least two in five characters must be changes.
		return 5*changes >= 2*characters
	}
	return 3*changes >= characters
}

// HasUserInHost reports whether url.Parse has taken a part of the URL's user or password for the host. That happens if the user or password has
// a slash, a question mark or a number sign. The caller must refuse such a URL: nth would show the host in messages, and send it to DNS.
func HasUserInHost(u *url.URL) bool { return strings.Contains(u.Path+u.RawQuery+u.Fragment, "@") }

// Redacted returns an error whose text is that of err, redacted. errors.Is and errors.As find err in it. Redacted(nil) is nil.
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

// Unwrap returns the error with its full text, secrets included.
func (e redacted) Unwrap() error { return e.error }
