package config

import (
	"fmt"
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

// unknown returns the text of a fault: a table has no key with this name. It lists the keys that the table has. A key of the webhook is not shown: it
// may be a secret in the wrong place.
func (d *decoder) unknown(table, name string) string {
	shown, place, prefix := text.Visible(join(table, name), maxShown), "the file", ""
	if table != "" {
		place, prefix = "["+table+"]", table+"."
	}
	if mayHoldSecret(table) {
		shown = prefix + notShown
	}
	var keys []string
	for key := range d.known {
		if rest, isBelow := strings.CutPrefix(key, prefix); isBelow && !strings.Contains(rest, ".") {
			keys = append(keys, rest)
		}
	}
	slices.Sort(keys)
	return fmt.Sprintf("%s: unknown key; %s has %s", shown, place, strings.Join(keys, ", "))
}

// wrong returns the text of a fault: the value got of a key is not among those that are allowed. It does not show what may be a secret.
func wrong(key string, got any, allowed string) string {
	_, isText := got.(string)
	shown := text.Visible(text.Redact(fmt.Sprint(got)), maxShown)
	switch {
	case mayHoldSecret(key):
		shown = notShown
	case isText:
		shown = strconv.Quote(shown)
	}
	return key + " = " + shown + ": must be " + allowed
}
