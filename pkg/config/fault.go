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

// mayHoldSecret reports whether the value of a key may hold a secret: the whole webhook table, as an operator may write a secret to a wrong key.
func mayHoldSecret(key string) bool { return key == "webhook" || strings.HasPrefix(key, "webhook.") }

// unknown returns the text of a fault: a table has no key with this name. It names the key that was probably meant. If no key of the webhook is
// like the name, the text does not show it: it may be a secret in the wrong place.
func (d *decoder) unknown(table, name string) string {
	key := join(table, name)
	meant := d.nearest(key)
	switch {
	case meant != "":
		return text.Visible(key, maxShown) + ": unknown key, did you mean " + meant + "?"
	case mayHoldSecret(key):
		return table + "." + notShown + ": unknown key"
	default:
		return text.Visible(key, maxShown) + ": unknown key"
	}
}

// nearest returns the known key that was probably meant by an unknown key; "" if no known key is similar enough.
func (d *decoder) nearest(key string) string {
	best, bestDistance := "", 0
	for _, candidate := range slices.Sorted(maps.Keys(d.known)) {
		distance := editDistance(strings.ToLower(key), candidate)
		misspelled := distance <= min(2, len(key)/4)
		shortened := strings.HasPrefix(candidate, key)
		inOtherTable := strings.HasPrefix(lastPart(candidate), lastPart(key))
		similar := misspelled || shortened || inOtherTable
		if similar && (best == "" || distance < bestDistance) {
			best, bestDistance = candidate, distance
		}
	}
	return best
}

// lastPart returns a key without its table.
func lastPart(key string) string { return key[strings.LastIndexByte(key, '.')+1:] }

// editDistance is the Levenshtein distance: how many bytes to insert, delete or replace to turn a into b.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1) // After round i, row[j] is the distance from the first i+1 bytes of a to the first j bytes of b.
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal // the distance between the bytes before a[i] and b[j]
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// wrong returns the text of a fault: the value got of a key is not among those that are allowed. It does not show what may be a secret.
func wrong(key string, got any, allowed string) string {
	given, isText := got.(string)
	shown := text.Visible(text.Redact(fmt.Sprint(got)), maxShown)
	switch {
	case mayHoldSecret(key):
		shown = notShown
	case isText:
		shown = strconv.Quote(shown)
	}
	hint := ""
	if days, hasDays := strings.CutSuffix(given, "d"); hasDays && strings.Contains(allowed, "a duration") { // Go's notation has no days.
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			hint = fmt.Sprintf(" (use \"%dh\")", 24*n)
		}
	}
	return key + " = " + shown + ": must be " + allowed + hint
}
