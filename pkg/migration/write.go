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

// tableOrder has the tables in the sequence of the file.
var tableOrder = []string{
	"", "log", "imds", "queue", "kubernetes", "fleet", "drain", spot, rebalance, maintenance, asg, shutdown, hibernation, reservation, stateChange,
	"webhook", "metrics",
}

// origin is a line with the settings of the handler that it comes from, and what to know about them.
type origin struct {
	line
	from []string
	why  string
}

// For returns a commented configuration file for nth-queue if queue is true, and else for nth. The error says that the settings are for the other
// program, or it has one line for each wrong value. That names the setting, what would be right, and the value unless it may be a secret.
func (s Settings) For(queue bool) (string, error) {
	const mode = "ENABLE_SQS_TERMINATION_DRAINING" // It is true in the handler's queue mode.
	name := "nth"
	switch {
	case queue && !s.is(mode) && s.given[mode].elsewhere == "":
		return "", errors.New(mode + ` is not true, so the settings are for "nth config import"`)
	case !queue && s.is(mode):
		return "", errors.New(mode + ` is true, so the settings are for "nth-queue config import"`)
	case queue:
		name = "nth-queue"
	}
	lines, remarks, err := s.convert(queue)
	if err != nil {
		return "", err
	}
	b := &strings.Builder{}
	fmt.Fprintf(b, "# /etc/nth/%s.toml, from the settings of aws-node-termination-handler.\n# All other settings have %s's defaults: see %s.toml(5).\n", name, name, name)
	for _, table := range tableOrder {
		header := "\n[" + table + "]\n"
		if table == "" {
			header = "\n"
		}
		for _, l := range lines {
			if l.table == table {
				from := strings.TrimSpace("# From " + strings.Join(l.from, ", ") + ". " + l.why)
				fmt.Fprintf(b, "%s%s\n%s = %s\n", header, from, l.key, l.value)
				header = ""
			}
		}
	}
	if len(remarks) > 0 {
		fmt.Fprint(b, "\n# Not converted, as it has no counterpart, or is about the pod or its objects:\n")
	}
	for _, remark := range remarks {
		fmt.Fprintf(b, "#   %s\n", text.Visible(remark, text.Line))
	}
	return b.String(), nil
}

// convert applies the rules for nth, or for nth-queue. It returns the lines of the new file, and a remark for each setting that becomes no
// line. The error has all wrong values.
func (s Settings) convert(queue bool) (lines []origin, remarks []string, err error) {
	if queue { // What the handler does in its queue mode unless it is set otherwise.
		s.given = maps.Clone(s.given)
		s.assume("ENABLE_REBALANCE_DRAINING", "true")
		s.assume("CHECK_TAG_BEFORE_DRAINING", cmp.Or(s.text("CHECK_ASG_TAG_BEFORE_DRAINING"), "true"))
	}
	var faults []error
	all := rulesFor(queue)
	for _, r := range all {
		given := s.given[r.env]
		switch {
		case given == value{} || r.to == nil: // It is not set, or empty, or another rule uses it.
			continue
		case given.elsewhere != "" && r.env != webhookURL: // The URL's line names a file, so it needs no value.
			remarks = append(remarks, r.env+": its value is in "+given.elsewhere+": look it up there, and set it by hand")
			continue
		}
		found, err := r.to(s, given.text)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s = %s: must be %w", r.env, shown(r.env, given.text), err))
		} else if len(found) == 0 && given.text != "" {
			remarks = append(remarks, r.env+": nothing is set for this value, see docs/migration.md")
		}
		for _, l := range found {
			if i := slices.IndexFunc(lines, func(o origin) bool { return o.table == l.table && o.key == l.key }); i >= 0 {
				lines[i].from = append(lines[i].from, r.env) // The first rule has set the value for all of them.
				continue
			}
			lines = append(lines, origin{line: l, from: []string{r.env}, why: r.why})
			r.why = "" // Only the first line says it.
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.given)) {
		if !slices.ContainsFunc(all, func(r rule) bool { return r.env == name }) {
			remarks = append(remarks, name)
		}
	}
	return lines, remarks, errors.Join(faults...)
}

// assume sets a setting that is not set.
func (s Settings) assume(env, text string) {
	if s.given[env] == (value{}) {
		s.given[env] = value{text: text}
	}
}

// shown returns a wrong value for an error, unless it may be a secret.
func shown(env, given string) string {
	if strings.HasPrefix(env, "WEBHOOK_") || strings.Contains(given, "://") || strings.Contains(given, "@") {
		return "(not shown)"
	}
	return strconv.Quote(text.Visible(given, 60))
}
