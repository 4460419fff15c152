package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/BurntSushi/toml"
)

// longest is how many characters of a wrong value are repeated in its error.
const longest = 60

// syntaxFault tells where a text stops being TOML. What stands there is repeated, unless it may be a secret.
func (d *decoder) syntaxFault(text string, err error) error {
	parse, ok := errors.AsType[toml.ParseError](err)
	switch {
	case !ok:
		return fmt.Errorf("%s: %s", d.file, oneLine(err.Error()))
	case secretive(d.tableAt(text, parse.Position.Line)):
		return fmt.Errorf("%s: line %d: no TOML, and not shown as it is about the webhook: a text needs quotes, such as url = \"...\"", d.file, parse.Position.Line)
	}
	return fmt.Errorf("%s: line %d: %s", d.file, parse.Position.Line, oneLine(parse.Message))
}

// header is a line of TOML that begins a table, and dotted the key of one within a table. They are compiled when a file is none: nearly
// never, while whatever is compiled at the start stays in memory.
var (
	header = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^\s*\[\[?\s*["']?([A-Za-z0-9_-]+)["']?\s*[].]`) })
	dotted = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^\s*["']?([A-Za-z0-9_-]+)["']?\s*[=.]`) })
)

// tableAt names the table at the top of the file that a line belongs to, in a text that is no TOML; empty if it is none of ours. What only
// looks like another table, in a text of several lines, ends none.
func (d *decoder) tableAt(text string, number int) string {
	table, inline, within := "", "", ""
	for line := range strings.Lines(text) {
		begins := header().FindStringSubmatch(line)
		sets := dotted().FindStringSubmatch(line)
		switch {
		case within != "":
		case begins != nil && d.tables[begins[1]]:
			table, inline = begins[1], ""
		case sets != nil && table == "":
			inline = sets[1]
		}
		for _, quotes := range []string{`"""`, "'''"} {
			if odd := strings.Count(line, quotes)%2 == 1; odd && within == "" {
				within = quotes
			} else if odd && within == quotes {
				within = ""
			}
		}
		if number--; number == 0 {
			break
		}
	}
	return cmp.Or(table, inline)
}

// unknown tells that a key means nothing, and which one may have been meant.
func (d *decoder) unknown(key string) error {
	known := append(sorted(d.settings), sorted(d.tables)...)
	for name, v := range d.settings {
		if each, ok := v.(choiceOfEach); ok {
			for _, sub := range each.names {
				known = append(known, join(name, sub))
			}
		}
	}
	if near := nearest(key, known); near != "" {
		return fmt.Errorf("%s: %s: unknown key, did you mean %s?", d.file, key, near)
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
	return fmt.Errorf("%s: %s: unknown key, %s has %s", d.file, key, where, strings.Join(siblings, ", "))
}

// nearest picks the known key that a wrong one most likely stands for: one a few letters away, the same name in
// another table, or one that was cut short. It returns "" if there is none.
func nearest(key string, known []string) string {
	best, bestDistance := "", 0
	slices.Sort(known)
	for _, candidate := range known {
		distance := editDistance(strings.ToLower(key), candidate)
		likely := distance <= max(2, len(key)/8) || lastPart(key) == lastPart(candidate) || strings.HasPrefix(candidate, key)
		if candidate != "" && likely && (best == "" || distance < bestDistance) {
			best, bestDistance = candidate, distance
		}
	}
	return best
}

func lastPart(key string) string { return key[strings.LastIndexByte(key, '.')+1:] }

// editDistance counts the letters to insert, delete or replace to make b of a (Levenshtein).
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// render shows a wrong value much as it was written, on one line and not too long.
func render(v any) string {
	switch v := v.(type) {
	case string:
		return strconv.Quote(cut(v))
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
	case []map[string]any:
		return "[[...]]"
	default:
		return cut(fmt.Sprint(v))
	}
}

func cut(s string) string {
	if runes := []rune(s); len(runes) > longest {
		return string(runes[:longest]) + "..."
	}
	return s
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
