package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	redact "github.com/nth-project/nth/pkg/text"
)

// maxShown is how many characters of a wrong value an error repeats.
const maxShown = 60

// syntaxFault returns an error that says where a file is not valid TOML. It leaves out the parser's text, which repeats what it finds and so may
// contain a secret. It names the nearest key only if that is a setting.
func (d *decoder) syntaxFault(err error) error {
	parse, ok := errors.AsType[toml.ParseError](err)
	if !ok {
		return fmt.Errorf("%s: not valid TOML", d.file)
	}
	near := ""
	if _, known := d.settings[parse.LastKey]; known {
		near = " near " + parse.LastKey
	}
	return fmt.Errorf("%s: line %d: not valid TOML%s; a text needs quotes, and a key or table stands once", d.file, parse.Position.Line, near)
}

// unknown returns the fault that there is no such key. It names the key that may have been meant, or else all keys of the same table.
func (d *decoder) unknown(key string) string {
	known := append(sorted(d.settings), sorted(d.tables)...)
	for name, v := range d.settings {
		if each, ok := v.(choiceOfEach); ok {
			for _, sub := range each.names {
				known = append(known, join(name, sub))
			}
		}
	}
	if near := nearest(key, known); near != "" {
		return fmt.Sprintf("%s: unknown key, did you mean %s?", key, near)
	}
	prefix, where := "", "the top of the file"
	if i := strings.LastIndexByte(key, '.'); i >= 0 {
		prefix, where = key[:i+1], "["+key[:i]+"]"
	}
	var siblings []string
	for _, name := range known {
		if rest, ok := strings.CutPrefix(name, prefix); ok && rest != "" && !strings.Contains(rest, ".") {
			siblings = append(siblings, rest)
		}
	}
	slices.Sort(siblings)
	return fmt.Sprintf("%s: unknown key, %s has %s", key, where, strings.Join(siblings, ", "))
}

// nearest returns the known key that was most likely meant; "" if none is likely. Likely is a key that differs in a few letters, that begins with
// key, or whose last part begins with key's, so that it may be in another table.
func nearest(key string, known []string) string {
	best, bestDistance := "", 0
	slices.Sort(known)
	for _, candidate := range known {
		distance := editDistance(strings.ToLower(key), candidate)
		likely := distance <= min(2, len(key)/4) || strings.HasPrefix(candidate, key) || strings.HasPrefix(lastPart(candidate), lastPart(key))
		if candidate != "" && likely && (best == "" || distance < bestDistance) {
			best, bestDistance = candidate, distance
		}
	}
	return best
}

// lastPart returns a key without the table.
func lastPart(key string) string { return key[strings.LastIndexByte(key, '.')+1:] }

// editDistance is the Levenshtein distance: how many bytes to insert, delete or replace to turn a into b.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal // what it takes for the bytes before these two
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// render returns a wrong value for an error: much as the file has it, but on one line, shortened, and without secrets that Redact recognizes.
func render(v any) string {
	switch v := v.(type) {
	case string:
		return strconv.Quote(cut(redact.Redact(v)))
	case time.Time:
		return v.Format(time.RFC3339)
	case []any:
		items := make([]string, len(v))
		for i, item := range v {
			items[i] = render(item)
		}
		return "[" + cut(strings.Join(items, ", ")) + "]"
	case map[string]any:
		return "{" + cut(strings.Join(sorted(v), ", ")) + "}"
	case []map[string]any: // a list of tables
		return "[[...]]"
	default:
		return cut(fmt.Sprint(v))
	}
}

// cut shortens a text to maxShown characters.
func cut(s string) string {
	if runes := []rune(s); len(runes) > maxShown {
		return string(runes[:maxShown]) + "..."
	}
	return s
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
