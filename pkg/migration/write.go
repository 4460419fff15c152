package migration

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/nth-project/nth/pkg/text"
)

// tableOrder is the order of the tables in the file.
var tableOrder = []string{
	"", "log", "imds", "queue", "kubernetes", "fleet", "drain", spot, rebalance, maintenance, asg, shutdown, hibernation, reservation, stateChange,
	"aws", "webhook", "metrics",
}

// Target is the program that the settings are converted for.
type Target struct {
	// Queue: it is nth-queue, not nth.
	Queue bool
	// Secrets is the directory for files with secrets; if it is empty, secrets are reported and not converted.
	Secrets string
}

// Result is the converted settings.
type Result struct {
	// Text is the configuration file.
	Text string
	// Secrets has the contents of the files that Text names, by their paths.
	Secrets map[string]string
	// Headers are those of the webhook, and Template is its template, wherever they are stored; "" is the default.
	Headers  map[string]string
	Template string
}

// annotatedLine is a line with the settings that it comes from, and why.
type annotatedLine struct {
	line
	from []string
	why  []string
}

// For makes a commented configuration file. The error has one line for each invalid value, with the setting, the value,
// unless that may be a secret, and what would be right.
func (s Settings) For(t Target) (Result, error) {
	s.queue, s.secrets = t.Queue, t.Secrets
	if err := s.checkMode(); err != nil {
		return Result{}, err
	}
	lines, remarks, err := s.translate()
	if err != nil {
		return Result{}, err
	}
	result := Result{Secrets: map[string]string{}}
	if !s.isGiven("WEBHOOK_TEMPLATE_FILE") {
		result.Template = s.value("WEBHOOK_TEMPLATE")
	}
	_ = json.Unmarshal([]byte(s.value("WEBHOOK_HEADERS")), &result.Headers) // translate has checked it.
	for _, l := range lines {
		if l.secret != "" {
			result.Secrets[l.file] = l.secret
		}
	}
	b := &strings.Builder{}
	fmt.Fprintf(b, `# /etc/nth/%s.toml, made from the settings of aws-node-termination-handler.
# What is not named here is %s's default: see %s.toml(5). What was not set there is not set here.
`, t.name(), t.name(), t.name())
	for _, table := range tableOrder {
		var inTable []annotatedLine
		for _, l := range lines {
			if l.table == table {
				inTable = append(inTable, l)
			}
		}
		writeTable(b, table, inTable)
	}
	s.writeRemarks(b, remarks)
	result.Text = b.String()
	return result, nil
}

// checkMode refuses settings of the handler's other mode, for which there is another program here.
func (s Settings) checkMode() error {
	const sqs, url = "ENABLE_SQS_TERMINATION_DRAINING", "QUEUE_URL"
	queued, other := s.is(sqs), `; "nth config import" takes those of the other one`
	switch {
	case !s.queue && queued:
		return errors.New(sqs + `=true: these are settings of the queue mode; "nth-queue config import" takes them over`)
	case s.queue && !queued && s.given[sqs].from == "":
		return errors.New(sqs + ": is not true, so these are no settings of the queue mode" + other)
	case s.queue && s.given[url].from != "":
		return fmt.Errorf("%s: it comes from %s, which is not in this file: add it behind a line ---, and import that", url, text.Visible(s.given[url].from, text.Name))
	case s.queue && s.value(url) == "":
		return errors.New(url + ": is not set, so these are no settings of the queue mode" + other)
	}
	return nil
}

func (t Target) name() string {
	if t.Queue {
		return "nth-queue"
	}
	return "nth"
}

func writeTable(b *strings.Builder, table string, lines []annotatedLine) {
	if len(lines) == 0 {
		return
	}
	fmt.Fprintln(b)
	if table != "" {
		fmt.Fprintf(b, "[%s]\n", table)
	}
	for _, l := range lines {
		fmt.Fprintf(b, "# From %s.", strings.Join(l.from, ", "))
		for _, why := range l.why {
			fmt.Fprintf(b, " %s.", capitalized(why))
		}
		fmt.Fprintf(b, "\n%s = %s\n", l.key, l.value)
	}
}

// writeRemarks lists what has no counterpart, and why.
func (s Settings) writeRemarks(b *strings.Builder, remarks []string) {
	remarks = append(remarks, s.podRemarks()...)
	for _, name := range s.missing {
		remarks = append(remarks, name+": sets what stands in it, and is not in this file; add it behind a line ---, and import that")
	}
	remarks = append(remarks, s.remarks...)
	slices.Sort(s.unknown)
	for _, key := range slices.Compact(s.unknown) {
		remarks = append(remarks, key+": not a setting of aws-node-termination-handler that nth knows")
	}
	if len(remarks) == 0 {
		return
	}
	fmt.Fprint(b, "\n# Without a counterpart:\n")
	for _, remark := range remarks {
		fmt.Fprintf(b, "#   %s.\n", text.Visible(remark, text.Page))
	}
}

func (s Settings) podRemarks() []string {
	var nodes, rest, remarks []string
	for _, key := range s.pod {
		if slices.Contains(placementValues, key) && !s.queue {
			nodes = append(nodes, key)
		} else {
			rest = append(rest, key)
		}
	}
	if len(nodes) > 0 {
		remarks = append(remarks, strings.Join(nodes, ", ")+
			": there, the pod is on some nodes only; nth is where its image is, and `life_cycles` in [imds] can leave instances out")
	}
	if len(rest) > 0 {
		remarks = append(remarks, strings.Join(rest, ", ")+": about the pod, and there is none")
	}
	return remarks
}

// fileAdvice says which setting takes a file, for values that are only in the cluster.
var fileAdvice = map[string]string{
	"WEBHOOK_URL":      ", put it into a file on the node, and name that as url_file in [webhook]",
	"WEBHOOK_TEMPLATE": ", put it into a file on the node, and name that as template_file in [webhook]",
	"WEBHOOK_HEADERS":  ", put it into a file on the node, and name that as headers_file in [webhook]",
}

// translate applies the rules. It returns the lines, and remarks about what became none.
func (s Settings) translate() ([]annotatedLine, []string, error) {
	var lines []annotatedLine
	var remarks []string
	var faults []error
	for _, rule := range rules {
		r := rule.forProgram(s)
		given := s.given[r.env]
		switch {
		case given.from != "":
			remarks = append(remarks, fromElsewhere(r, given.from))
			continue
		case given.text == "" && !r.always:
			continue
		case r.to == nil:
			remarks = append(remarks, fmt.Sprintf("%s: %s", s.shown(r.env), r.why))
			continue
		}
		found, err := r.to(s, given.text)
		if !utf8.ValidString(given.text) {
			err = errors.New("must be UTF-8")
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("%s=%s: %w", r.env, s.quoted(r.env), err))
			continue
		}
		writable := slices.DeleteFunc(slices.Clone(found), func(l line) bool { return l.secret != "" && s.secrets == "" })
		switch {
		case len(writable) < len(found):
			remarks = append(remarks, fmt.Sprintf("%s: a secret, which is not shown; import with --secrets DIR, which puts it into a file there", r.env))
		case len(found) == 0 && given.text != "":
			remarks = append(remarks, fmt.Sprintf("%s: %s", s.shown(r.env), cmp.Or(r.idle, "as nth does by itself")))
		}
		lines = addLines(lines, writable, r.env, r.why)
	}
	if s.given["WEBHOOK_URL"].from != "" {
		lines = addLines(lines, postOnce, "WEBHOOK_URL", "the handler posts once for each event, after the work")
	}
	return lines, remarks, errors.Join(faults...)
}

// fromElsewhere is the remark on a setting whose value is not in the file.
func fromElsewhere(r rule, from string) string {
	if r.to == nil {
		return fmt.Sprintf("%s, from %s: %s", r.env, from, r.why)
	}
	by := cmp.Or(fileAdvice[r.env], ", and set by hand what becomes of it")
	return fmt.Sprintf("%s comes from %s, which is not in this file: look it up there%s", r.env, from, by)
}

// addLines adds the lines that a setting has become: where a key has a line already, the setting is noted there. The reason is
// given at the first line.
func addLines(lines []annotatedLine, all []line, env, why string) []annotatedLine {
	for n, l := range all {
		i := slices.IndexFunc(lines, func(w annotatedLine) bool { return w.table == l.table && w.key == l.key })
		if i < 0 {
			lines, i = append(lines, annotatedLine{line: l}), len(lines)
		}
		lines[i].from = append(lines[i].from, env)
		if why != "" && n == 0 {
			lines[i].why = append(lines[i].why, why)
		}
	}
	return lines
}

// shown returns a setting with its value, unless that may be a secret.
func (s Settings) shown(env string) string {
	if s.isSecret(env) {
		return env
	}
	return env + "=" + shortened(s.value(env))
}

// notShown replaces a secret.
const notShown = "(not shown)"

// quoted returns a setting's value in quotes, unless it may be a secret.
func (s Settings) quoted(env string) string {
	if s.isSecret(env) {
		return notShown
	}
	return strconv.Quote(shortened(s.value(env)))
}

var (
	// secrets are settings that are always secret, and addresses those that may be URLs.
	secrets   = []string{"WEBHOOK_URL", "WEBHOOK_HEADERS", "WEBHOOK_PROXY", "WEBHOOK_TEMPLATE"}
	addresses = []string{"INSTANCE_METADATA_URL", "AWS_ENDPOINT", "QUEUE_URL"}
)

// flagLike matches a flag that was taken for the value of another.
var flagLike = regexp.MustCompile("^--?[a-zA-Z]")

// isSecret reports whether the value of a setting may be a secret: because of its kind, because it comes from a Secret, or
// because it is a URL, or a flag, in the wrong place.
func (s Settings) isSecret(env string) bool {
	value := s.value(env)
	switch {
	case slices.Contains(secrets, env), s.given[env].secret, flagLike.MatchString(value):
		return true
	case slices.Contains(addresses, env):
		return hasPassword(value)
	}
	return strings.Contains(value, "://")
}

func capitalized(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// maxShown is how many bytes of a value messages repeat.
const maxShown = 63

// shortened returns a value as messages repeat it.
func shortened(value string) string { return text.Visible(value, maxShown) }
