// Package text makes text from outside fit to read.
//
// What a pod's author, the sender of a message, a server or a library has written ends up in terminals, logs, chat rooms and
// Kubernetes Events. Visible shows such text as it is where it can be seen, and escaped where it cannot, so that nobody forges a line of
// ours, moves a cursor or hides half a name. Each sink calls it, once; text of our own needs it as little as it minds it.
package text

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The lengths to which text is shown, in bytes.
const (
	// Name is enough for any name that Kubernetes or EC2 gives: "namespace/name" has at most 317 bytes.
	Name = 320
	// Line is enough for a sentence with several names in it.
	Line = 1024
	// Page is the most that a log line or a notice shows of one text.
	Page = 16 << 10
)

// ellipsis stands for what was cut off.
const ellipsis = "…"

// Pods is a number of pods in words: "1 pod", "3 pods".
func Pods(n int) string { return Count(n, "pod") }

// Count is a number of things in words. The noun is in the singular, and takes an "s" in the plural.
func Count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return strconv.Itoa(n) + " " + noun
}

// Visible returns s as one line of at most limit bytes. Runes without a shape of their own (control characters, line and paragraph
// separators, marks that turn the direction of writing, unassigned ones) and bytes that are not UTF-8 are shown as Go escapes, such as
// \n, \x1b or \u202e. A longer text ends with "…". The result of Visible is not changed by Visible.
func Visible(s string, limit int) string {
	if len(s) <= limit && !strings.ContainsFunc(s, invisible) {
		return s
	}
	var shown strings.Builder
	uncut := 0 // how much of it leaves room for the ellipsis
	for rest := s; rest != ""; {
		r, size := utf8.DecodeRuneInString(rest)
		if invisible(r) {
			shown.WriteString(escape(rest[:size]))
		} else {
			shown.WriteString(rest[:size])
		}
		if shown.Len() > limit {
			return shown.String()[:uncut] + ellipsis
		}
		if shown.Len()+len(ellipsis) <= limit {
			uncut = shown.Len()
		}
		rest = rest[size:]
	}
	return shown.String()
}

// invisible also reports U+FFFD, which stands for a byte that is not UTF-8, and letters without a shape, such as U+3164.
func invisible(r rune) bool {
	return r == utf8.RuneError || r != ' ' && (!unicode.IsPrint(r) || unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r))
}

// escape returns one rune, or one byte, as a Go escape.
func escape(s string) string {
	if s == string(utf8.RuneError) { // It was in the text, and does not stand for a byte that is not UTF-8.
		return s
	}
	quoted := strconv.QuoteToASCII(s)
	return quoted[1 : len(quoted)-1]
}
