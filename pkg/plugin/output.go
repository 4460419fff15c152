package plugin

import (
	"errors"
	"regexp"
	"strings"
	"unicode"
)

const (
	// stderrLimit is the most that errors quote of a plugin's standard error, in bytes: its end, where programs say why.
	stderrLimit = 500
	// wordLimit is the longest word that is quoted. Of a longer one, only the first wordStart bytes are.
	wordLimit, wordStart = 80, 16
	// secretStart is how many bytes are quoted of what looks like a secret: enough to see what it is.
	secretStart = 4
)

// Secrets that must not be logged: PEM blocks, whose beginning may be cut off, and long words that look random, as the base64
// of a token or of a line of a key does.
var (
	pemBlock = regexp.MustCompile(`(?s)-----BEGIN .*?(-----END [A-Z0-9 ]*-----|\z)`)
	pemEnd   = regexp.MustCompile(`(?s)\A.*-----END [A-Z0-9 ]*-----`)
	encoded  = regexp.MustCompile(`[A-Za-z0-9+/_%-]{20,}`)
	user     = regexp.MustCompile(`://\S*@`) // in a URL, with a password
)

var errFull = errors.New("too much output")

// head keeps what is written, up to a limit. To write more is an error.
type head struct {
	limit int
	text  []byte
	full  bool
}

// Write implements io.Writer.
func (h *head) Write(p []byte) (int, error) {
	if len(h.text)+len(p) > h.limit {
		h.full = true
		return 0, errFull
	}
	h.text = append(h.text, p...)
	return len(p), nil
}

// tail keeps the end of what is written.
type tail struct {
	limit int
	text  []byte
	cut   bool // the first word may be incomplete
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	kept := 4 * t.limit // more than is quoted, to recognize long words
	t.cut = t.cut || len(t.text)+len(p) > kept
	t.text = append(t.text, p[max(0, len(p)-kept):]...)
	t.text = t.text[max(0, len(t.text)-kept):]
	return len(p), nil
}

// String returns ": " and one line without what looks like a secret, for the end of an error; "" if nothing was written.
func (t *tail) String() string {
	text := pemBlock.ReplaceAllString(strings.ToValidUTF8(string(t.text), ""), "…")
	if t.cut {
		text = pemEnd.ReplaceAllString(text, "…")
	}
	words := strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) })
	if t.cut {
		words = words[min(1, len(words)):]
	}
	for i, word := range words {
		word = encoded.ReplaceAllStringFunc(user.ReplaceAllString(word, "://…@"), withoutSecret)
		if len(word) > wordLimit {
			word = strings.ToValidUTF8(word[:wordStart], "") + "…"
		}
		words[i] = word
	}
	line := strings.Join(words, " ")
	if len(line) > t.limit {
		line = "…" + strings.ToValidUTF8(line[len(line)-t.limit:], "")
	}
	return clipped(line, len(line))
}

// withoutSecret shortens a word that looks like a secret to its beginning. In base64, about three in five characters are of
// another class (capital, small letter, digit) than the one before; in paths, names and ARNs, fewer than one in three are.
func withoutSecret(word string) string {
	characters, changes, digits, last := 0, 0, 0, rune(0)
	for _, r := range word {
		var class rune
		switch {
		case r >= '0' && r <= '9':
			class, digits = '0', digits+1
		case r >= 'a' && r <= 'z':
			class = 'a'
		case r >= 'A' && r <= 'Z':
			class = 'A'
		default:
			continue // punctuation is in both
		}
		if characters++; last != 0 && class != last {
			changes++
		}
		last = class
	}
	if digits == 0 || 3*changes < characters {
		return word
	}
	return word[:secretStart] + "…"
}
