package config

import (
	"fmt"
	"strings"
)

// Limits of a file. The decoder's memory grows with the square of the depth: 20,000 levels took 12 GB.
const (
	maxSize  = 1 << 20 // bytes
	maxDepth = 50      // nested lists and tables, or parts of the keys on one line
)

// checkLimits refuses a file that the decoder must not see. It knows of TOML only strings, comments and brackets.
func checkLimits(text string) error {
	if len(text) > maxSize {
		return fmt.Errorf("the file must have at most %d MiB", maxSize>>20)
	}
	line, depth, dots := 1, 0, 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\n':
			line, dots = line+1, 0
		case '#':
			if end := strings.IndexByte(text[i:], '\n'); end >= 0 {
				i += end - 1
			} else {
				return nil
			}
		case '"', '\'':
			end := endOfString(text, i)
			line += strings.Count(text[i:end], "\n")
			i = end - 1
		case '[', '{':
			depth++
		case ']', '}':
			depth--
		case '.':
			dots++
		}
		if max(depth, dots) > maxDepth {
			return fmt.Errorf("line %d: lists, tables or keys are nested more than %d deep", line, maxDepth)
		}
	}
	return nil
}

// endOfString returns where the string ends that begins at start. One that is not closed ends with its line, or with the file.
func endOfString(text string, start int) int {
	quote := text[start : start+1]
	if triple := strings.Repeat(quote, 3); strings.HasPrefix(text[start:], triple) {
		quote = triple
	}
	for i := start + len(quote); i < len(text); i++ {
		switch {
		case text[i] == '\\' && quote[0] == '"':
			i++
		case strings.HasPrefix(text[i:], quote):
			return i + len(quote)
		case text[i] == '\n' && len(quote) == 1:
			return i
		}
	}
	return len(text)
}
