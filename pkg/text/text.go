// Package text makes text from outside fit to read.
//
// Pods, messages, servers and libraries write text that ends up in terminals, logs, chat rooms and Kubernetes Events. Visible escapes what
// cannot be seen in such text. So nobody forges a log line of nth, moves a cursor or hides half a name. Code that writes to one of these
// places calls Visible once for the whole text: nth's own part of it stays as it is. Redact takes out secrets. ReadFile reads a file of somebody else.
// Start with Visible.
package text

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
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

// File is the most that settings, a kubeconfig or certificates may have, in bytes: usual ones have less than a tenth.
const File = 4 << 20

// ReadFile reads a file of at most limit bytes that others write. It refuses a pipe or device, which may have no end; /dev/null is empty. Its error
// names the file as a *fs.PathError does, and shows nothing of its content.
func ReadFile(path string, limit int64) ([]byte, error) {
	refuse := func(why error) ([]byte, error) { return nil, &fs.PathError{Op: "reading", Path: path, Err: why} }
	switch found, err := os.Stat(path); {
	case err != nil:
		return nil, err
	case !found.Mode().IsRegular() && path != os.DevNull:
		return refuse(errors.New("not a regular file"))
	case found.Size() > limit:
		return refuse(fmt.Errorf("longer than %d bytes", limit))
	}
	return os.ReadFile(path)
}

// ellipsis stands for what was cut off.
const ellipsis = "…"

// Pods returns a number of pods with the noun: "1 pod", "3 pods".
func Pods(n int) string { return Count(n, "pod") }

// Count returns a number with a noun, which is given in the singular and takes an "s" in the plural: "1 attempt", "3 attempts".
func Count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return strconv.Itoa(n) + " " + noun
}

// Visible returns s as one line of at most limit bytes. A longer text ends with "…". Visible does not change its own results.
//
// It shows invisible runes, and bytes that are not UTF-8, as Go escapes, such as \n, \x1b or \u202e. Invisible runes are control characters, line
// and paragraph separators, marks that turn the direction of writing, and unassigned ones.
func Visible(s string, limit int) string {
	if len(s) <= limit && !strings.ContainsFunc(s, invisible) {
		return s
	}
	var shown strings.Builder
	uncut := 0 // how many bytes of shown are kept if the text is too long: limit, less room for the ellipsis, at the end of a rune
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

// invisible reports whether a rune cannot be seen, or may stand for a byte that is not UTF-8: the decoder returns U+FFFD for such a byte.
func invisible(r rune) bool {
	shapeless := unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r) // such as U+3164, which counts as a letter
	return r == utf8.RuneError || !unicode.IsPrint(r) || shapeless
}

// escape returns one invisible rune, or one byte that is not UTF-8, as a Go escape.
func escape(s string) string {
	if s == string(utf8.RuneError) { // The text itself contains U+FFFD, which can be seen: no byte had to be replaced.
		return s
	}
	quoted := strconv.QuoteToASCII(s)
	return quoted[1 : len(quoted)-1] // without the quotation marks
}
