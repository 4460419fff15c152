package migration

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/nth-project/nth/pkg/text"
)

// Convert returns the settings in a manifest as a commented configuration file, for nth-queue if queue is true and for nth otherwise. The error says
// what keeps the manifest from being read, that the settings are for the other program, or it has one line for each wrong value. Such a line names
// the setting, what would be right, and the value unless that may be a secret.
func Convert(manifest []byte, queue bool) (string, error) {
	s, err := read(manifest)
	if err != nil {
		return "", err
	}
	const mode = "ENABLE_SQS_TERMINATION_DRAINING" // It is true in the handler's queue mode, which nth-queue replaces.
	mayBeQueueMode := s.is(mode) || s[mode].elsewhere
	name := "nth"
	switch {
	case queue && !mayBeQueueMode:
		return "", errors.New(mode + ` is not true, so the settings are for "nth config import"`)
	case !queue && s.is(mode):
		return "", errors.New(mode + ` is true, so the settings are for "nth-queue config import"`)
	case queue:
		name = "nth-queue"
		delete(s, mode)
		// In queue mode, the handler behaves as if these were set. CHECK_ASG_TAG_BEFORE_DRAINING is the older name of the second.
		s.assume("ENABLE_REBALANCE_DRAINING", "true")
		s.assume("CHECK_TAG_BEFORE_DRAINING", cmp.Or(s.text("CHECK_ASG_TAG_BEFORE_DRAINING"), "true"))
	}
	b := &strings.Builder{}
	fmt.Fprintf(b, "# /etc/nth/%s.toml, from the settings of aws-node-termination-handler.\n# All other settings have %s's defaults: see %s.toml(5).\n", name, name, name)
	unconverted, err := s.convert(b, rulesFor(queue))
	if err != nil {
		return "", err
	}
	if len(unconverted) > 0 {
		fmt.Fprint(b, "\n# Not converted, as it has no counterpart, or is about the pod or its objects:\n")
	}
	for _, setting := range unconverted {
		fmt.Fprintf(b, "#   %s\n", text.Visible(setting, text.Line))
	}
	return b.String(), nil
}

// convert writes the lines that follow from the rules to b, each key once. It returns the names of the settings that set no key, each with the
// reason if there is a rule for it. The error has a line for each wrong value.
func (s settings) convert(b *strings.Builder, rules []rule) (unconverted []string, err error) {
	var faults []error
	written := map[string]bool{} // the keys that have a line
	ruled := map[string]bool{}   // the settings that have a rule
	for _, r := range rules {
		ruled[r.env] = true
		given := s[r.env]
		switch {
		case given == value{}: // The setting is not set, or empty.
			continue
		case given.elsewhere && r.env != webhookURL: // nth reads the webhook's URL from a file, so its value is not needed.
			unconverted = append(unconverted, r.env+": its value is not in the manifest: look it up where it refers to, and set it by hand")
			continue
		case r.to == nil: // The conversion of another setting uses it.
			continue
		}
		toml, err := r.to(s, given.text)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s = %s: must be %w", r.env, shown(r.env, given.text), err))
			continue
		}
		lines := ""
		for _, key := range r.keys {
			if toml != "" && !written[key] {
				written[key] = true
				lines += key + " = " + toml + "\n"
			}
		}
		if lines == "" {
			unconverted = append(unconverted, r.env+": nothing is set for this value, see docs/migration.md")
			continue
		}
		fmt.Fprintf(b, "\n%s\n%s", strings.TrimSpace("# From "+r.env+". "+r.why), lines)
	}
	for _, name := range slices.Sorted(maps.Keys(s)) {
		if !ruled[name] {
			unconverted = append(unconverted, name)
		}
	}
	return unconverted, errors.Join(faults...)
}

// assume sets a setting, unless the manifest sets it.
func (s settings) assume(env, text string) {
	if s[env] == (value{}) {
		s[env] = value{text: text}
	}
}

// shown returns a wrong value as an error may show it: quoted, or "(not shown)" if it may be a secret.
func shown(env, given string) string {
	if strings.HasPrefix(env, "WEBHOOK_") || strings.Contains(given, "://") || strings.Contains(given, "@") {
		return "(not shown)"
	}
	return strconv.Quote(text.Visible(given, 60))
}
