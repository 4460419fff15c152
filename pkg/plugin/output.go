package plugin

import (
	"errors"
	"regexp"
	"strings"
	"unicode"
)

const (
	// complaintSize is the most that is told of what a plugin wrote to its standard error: the end, where programs say why.
	complaintSize = 500
	// wordSize is the longest word in that. What is longer is told by its beginning alone.
	wordSize, wordStart = 80, 16
	// secretStart is how much is told of what looks like a secret: enough to see of what sort it is.
	secretStart = 4
)

// What may not get into a journal. Keys and certificates are in armour, of which the beginning may be cut off; the rest is in
// lines of letters and digits that nobody has made up, as base64 is, be it of a token, of a key, or of one line of either.
var (
	armour    = regexp.MustCompile(`(?s)-----BEGIN .*?(-----END [A-Z0-9 ]*-----|\z)`)
	armourEnd = regexp.MustCompile(`(?s)\A.*-----END [A-Z0-9 ]*-----`)
	encoded   = regexp.MustCompile(`[A-Za-z0-9+/_%-]{20,}`)
	user      = regexp.MustCompile(`://\S*@`) // in an address, with a password
)

var errFull = errors.New("too much output")

// head keeps what is written, up to a limit. More is an error, so that whoever writes is told to stop.
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
	cut   bool // its first word may be a part of one
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	kept := 4 * t.limit // more than is told, so that a long word is known for one
	t.cut = t.cut || len(t.text)+len(p) > kept
	t.text = append(t.text, p[max(0, len(p)-kept):]...)
	t.text = t.text[max(0, len(t.text)-kept):]
	return len(p), nil
}

// String is one line for the end of a sentence, or nothing. It has no secrets, as far as they can be told from words.
func (t *tail) String() string {
	text := armour.ReplaceAllString(strings.ToValidUTF8(string(t.text), ""), "…")
	if t.cut {
		text = armourEnd.ReplaceAllString(text, "…")
	}
	words := strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) })
	if t.cut {
		words = words[min(1, len(words)):]
	}
	for i, word := range words {
		word = encoded.ReplaceAllStringFunc(user.ReplaceAllString(word, "://…@"), withoutSecret)
		if len(word) > wordSize {
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

// withoutSecret returns the beginning of what looks like a secret, and all else as it is. In a secret, capitals, small letters
// and digits follow each other as by lot, so that three in five letters are of another sort than the one before; in paths,
// names and ARNs, hardly one in three is.
func withoutSecret(word string) string {
	letters, turns, digits, before := 0, 0, 0, rune(0)
	for _, r := range word {
		var sort rune
		switch {
		case r >= '0' && r <= '9':
			sort, digits = '0', digits+1
		case r >= 'a' && r <= 'z':
			sort = 'a'
		case r >= 'A' && r <= 'Z':
			sort = 'A'
		default:
			continue // it may be part of either
		}
		if letters++; before != 0 && sort != before {
			turns++
		}
		before = sort
	}
	if digits == 0 || 3*turns < letters {
		return word
	}
	return word[:secretStart] + "…"
}
