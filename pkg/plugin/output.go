package plugin

import (
	"errors"
	"strings"
	"unicode"
)

const (
	// complaintSize is the most that is told of what a plugin wrote to its standard error: the end, where programs say why.
	complaintSize = 500
	// wordSize is the longest word in that. What is longer may be a token, and is told by its beginning alone.
	wordSize, wordStart = 80, 16
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

// String is one line for the end of a sentence, or nothing.
func (t *tail) String() string {
	words := strings.FieldsFunc(strings.ToValidUTF8(string(t.text), ""), func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) })
	if t.cut {
		words = words[min(1, len(words)):]
	}
	for i, word := range words {
		if len(word) > wordSize {
			words[i] = strings.ToValidUTF8(word[:wordStart], "") + "…"
		}
	}
	line := strings.Join(words, " ")
	if len(line) > t.limit {
		line = "…" + strings.ToValidUTF8(line[len(line)-t.limit:], "")
	}
	return clipped(line, len(line))
}
