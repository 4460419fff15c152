package migration

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nth-project/nth/pkg/text"
)

// tableOrder is the order of the tables in the file.
var tableOrder = []string{
	"", "log", "imds", "queue", "kubernetes", "fleet", "drain", spot, rebalance, maintenance, asg, shutdown, hibernation, reservation, stateChange,
	"webhook", "metrics",
}

// Target is what the settings are converted for.
type Target struct {
	// Queue: the program is nth-queue, not nth.
	Queue bool
	// Secrets is the directory for files with secrets; if it is "", secrets are named and not converted.
	Secrets string
	// CheckTemplate returns why a template of the webhook does not work with these headers. It may be nil.
	CheckTemplate func(template string, headers map[string]string) error
}

// Result is the converted settings.
type Result struct {
	// Text is the configuration file.
	Text string
	// Secrets has the contents of the files that Text names, by their paths.
	Secrets map[string]string
}

// origin is a line with the settings that it comes from, and what to know about them.
type origin struct {
	line
	from, why []string
}

// For makes a commented configuration file. The error has one line for each wrong value: the setting, the value, unless that may be a
// secret, and what would be right.
func (s Settings) For(t Target) (Result, error) {
	s.target = t
	const mode = "ENABLE_SQS_TERMINATION_DRAINING"
	name := "nth"
	switch {
	case t.Queue && !s.is(mode) && s.given[mode].from == "":
		return Result{}, errors.New(mode + ` is not true, so the settings are for "nth config import"`)
	case !t.Queue && s.is(mode):
		return Result{}, errors.New(mode + ` is true, so the settings are for "nth-queue config import"`)
	case t.Queue:
		name = "nth-queue"
	}
	lines, remarks, err := s.convert()
	if err != nil {
		return Result{}, err
	}
	result := Result{Secrets: map[string]string{}}
	b := &strings.Builder{}
	fmt.Fprintf(b, "# /etc/nth/%s.toml, from the settings of aws-node-termination-handler.\n# All other settings have %s's defaults: see %s.toml(5).\n", name, name, name)
	for _, table := range tableOrder {
		header := "\n[" + table + "]\n"
		if table == "" {
			header = "\n"
		}
		for _, l := range lines {
			if l.table != table {
				continue
			}
			fmt.Fprintf(b, "%s# From %s.%s\n%s = %s\n", header, strings.Join(l.from, ", "), strings.Join(l.why, ""), l.key, l.value)
			header = ""
			if l.secret != "" {
				result.Secrets[l.file] = l.secret
			}
		}
	}
	if len(remarks) > 0 {
		fmt.Fprint(b, "\n# Not converted:\n")
	}
	for _, remark := range remarks {
		fmt.Fprintf(b, "#   %s.\n", text.Visible(remark, text.Line))
	}
	result.Text = b.String()
	return result, nil
}

// convert applies the rules. It returns the lines, and remarks about the rest.
func (s Settings) convert() (lines []origin, remarks []string, err error) {
	var faults []error
	for _, r := range rules {
		if s.target.Queue && r.queue != nil {
			env := r.env
			r = *r.queue
			r.env = env
		}
		given := s.given[r.env]
		if given == (value{}) && !r.always {
			continue
		}
		found, remark, err := s.apply(r, given)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s = %s: must be %w", r.env, shown(r.env, given), err))
			continue
		}
		if remark != "" {
			remarks = append(remarks, r.env+": "+remark)
		}
		for n, l := range found {
			lines = addLine(lines, l, r, n == 0)
		}
		if r.env == "WEBHOOK_URL" { // The handler posts once for each event, after the drain.
			lines = addLine(lines, line{table: "webhook", key: "at", value: `["ended"]`}, r, false)
		}
	}
	return lines, append(remarks, s.unconverted()...), errors.Join(faults...)
}

// unconverted are the remarks about what has no rule.
func (s Settings) unconverted() []string {
	remarks := slices.Clone(s.remarks)
	placed := slices.IndexFunc(s.chart, func(key string) bool {
		key = strings.ToLower(key)
		return strings.HasSuffix(key, "affinity") || strings.HasSuffix(key, "nodeselector")
	})
	if placed >= 0 {
		remarks = append(remarks, s.chart[placed]+": nth runs where its image or package is; `life_cycles` in [imds] can leave instances out")
	}
	if len(s.chart) > 0 {
		remarks = append(remarks, strings.Join(s.chart, ", ")+": about the pod or its objects, or unknown")
	}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(s.unknown))) {
		remarks = append(remarks, name+": not a setting of aws-node-termination-handler that nth knows")
	}
	return remarks
}

// apply applies one rule. The remark says why there are no lines; the error completes the sentence "SETTING must be ...".
func (s Settings) apply(r rule, given value) (lines []line, remark string, err error) {
	switch {
	case r.to == nil:
		return nil, r.why, nil
	case given.from != "":
		return nil, "its value is in " + given.from + ": look it up there, and set it by hand", nil
	case r.env == "WEBHOOK_TEMPLATE":
		remark = s.templateFault(given)
	}
	lines, err = r.to(s, given.text)
	switch {
	case err != nil || remark != "":
		return nil, remark, err
	case s.target.Secrets == "" && slices.ContainsFunc(lines, func(l line) bool { return l.secret != "" }):
		return nil, "a secret, which is not shown: import with --secrets DIR, which puts it into a file there", nil
	case len(lines) == 0 && r.env == "WEBHOOK_PROXY":
		return nil, "it has a password, which is not shown: set `proxy` in [webhook] by hand", nil
	case len(lines) == 0 && given.text != "":
		return nil, "there is nothing to set for its value", nil
	}
	return lines, "", nil
}

// templateFault says why the template is left out; "" if it works.
func (s Settings) templateFault(given value) string {
	if s.isGiven("WEBHOOK_TEMPLATE_FILE") {
		return "WEBHOOK_TEMPLATE_FILE overrides it"
	}
	if s.target.CheckTemplate == nil {
		return ""
	}
	headers, _ := parseHeaders(s.text("WEBHOOK_HEADERS")) // Their own rule reports the error.
	switch err := s.target.CheckTemplate(given.text, headers); {
	case err == nil:
		return ""
	case given.secret:
		return "left out, and nth posts its own text: the template, which is not shown, does not work"
	default:
		return "left out, and nth posts its own text: " + err.Error()
	}
}

// addLine adds a line that a setting becomes. If its key has a line already, the setting is named there.
func addLine(lines []origin, l line, r rule, explained bool) []origin {
	i := slices.IndexFunc(lines, func(o origin) bool { return o.table == l.table && o.key == l.key })
	if i < 0 {
		i = len(lines)
		lines = append(lines, origin{line: l})
	}
	lines[i].from = append(lines[i].from, r.env)
	if explained && r.why != "" {
		lines[i].why = append(lines[i].why, " "+strings.ToUpper(r.why[:1])+r.why[1:]+".")
	}
	return lines
}

// shown returns a wrong value for an error, unless it may be a secret.
func shown(env string, given value) string {
	if given.secret || strings.HasPrefix(env, "WEBHOOK_") || strings.Contains(given.text, "://") || strings.Contains(given.text, "@") {
		return "(not shown)"
	}
	return strconv.Quote(text.Visible(given.text, 60))
}
