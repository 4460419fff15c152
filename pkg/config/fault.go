package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/nth-project/nth/pkg/text"
)

// maxShown is how many characters of a wrong value or key an error repeats.
const maxShown = 60

// notShown stands for what may be a secret.
const notShown = "(not shown)"

// secretive reports whether a key, or a key below it, may hold a secret, even one that does not belong there.
func secretive(key string) bool { return key == "webhook" || strings.HasPrefix(key, "webhook.") }

// unknown says that a table has no such key, and which one may have been meant. A name that is like no key of the webhook may be a secret.
func (d *decoder) unknown(table, name string) string {
	key := join(table, name)
	near, meant := "", d.nearest(key)
	switch {
	case meant != "":
		near = ", did you mean " + meant + "?"
	case secretive(key):
		return table + "." + notShown + ": unknown key"
	}
	return text.Visible(key, maxShown) + ": unknown key" + near
}

// nearest returns the known key that was most likely meant; "" if none is likely. Likely is a key that differs in a few letters, that begins with
// key, or whose last part begins with key's, so that it may be in another table.
func (d *decoder) nearest(key string) string {
	best, bestDistance := "", 0
	for _, candidate := range slices.Sorted(maps.Keys(d.known)) {
		distance := editDistance(strings.ToLower(key), candidate)
		likely := distance <= min(2, len(key)/4) || strings.HasPrefix(candidate, key) || strings.HasPrefix(lastPart(candidate), lastPart(key))
		if likely && (best == "" || distance < bestDistance) {
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

// wrong says that a key's value got is not what the setting allows.
func wrong(key string, got any, allowed string) string {
	hint := ""
	if days, ok := got.(string); ok && strings.Contains(allowed, "a duration") { // Go's notation has no days.
		if n, err := strconv.ParseUint(strings.TrimSuffix(days, "d"), 10, 16); err == nil && strings.HasSuffix(days, "d") {
			hint = fmt.Sprintf(" (use \"%dh\")", 24*n)
		}
	}
	shown := text.Visible(text.Redact(fmt.Sprint(got)), maxShown)
	switch _, isText := got.(string); {
	case secretive(key): // A secret may be at the wrong key.
		shown = notShown
	case isText:
		shown = strconv.Quote(shown)
	}
	return key + " = " + shown + ": must be " + allowed + hint
}
