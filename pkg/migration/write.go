package migration

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// order is that of the tables in the file.
var order = []string{"", "log", "imds", "kubernetes", "drain", spot, rebalance, maintenance, asg, shutdown, "aws", "webhook", "metrics"}

// written is a line with the settings that it comes from.
type written struct {
	line
	from []string
	why  []string
}

// Write writes the settings as an nth.toml that explains itself. What cannot be understood is an error that names the
// setting, its value and what would be right; all of them are named at once.
func (s Settings) Write(w io.Writer) error {
	lines, remarks, err := s.translate()
	if err != nil {
		return err
	}
	b := bufio.NewWriter(w)
	fmt.Fprint(b, `# /etc/nth/nth.toml, made from the settings of aws-node-termination-handler.
# What is not named here is nth's default: see nth.toml(5). What was not set there is not set here.
`)
	for _, table := range order {
		var inTable []written
		for _, l := range lines {
			if l.table == table {
				inTable = append(inTable, l)
			}
		}
		writeTable(b, table, inTable)
	}
	s.writeRest(b, remarks)
	return b.Flush()
}

func writeTable(b *bufio.Writer, table string, lines []written) {
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
			fmt.Fprintf(b, " %s.", sentence(why))
		}
		fmt.Fprintf(b, "\n%s = %s\n", l.key, l.value)
	}
}

// writeRest says what has no counterpart, and why.
func (s Settings) writeRest(b *bufio.Writer, remarks []string) {
	for _, env := range slices.Sorted(maps.Keys(s.elsewhere)) {
		remarks = append(remarks, fmt.Sprintf("%s comes from %s, which is in the cluster: put its content into a file on the node%s",
			env, s.elsewhere[env], fileSetting[env]))
	}
	if len(s.pod) > 0 {
		remarks = append(remarks, fmt.Sprintf("%s: about the pod, and there is none", strings.Join(s.pod, ", ")))
	}
	for _, key := range s.unknown {
		remarks = append(remarks, key+": not a setting of aws-node-termination-handler that nth knows")
	}
	if len(remarks) == 0 {
		return
	}
	fmt.Fprint(b, "\n# Without a counterpart:\n")
	for _, remark := range remarks {
		fmt.Fprintf(b, "#   %s.\n", remark)
	}
}

// fileSetting names the setting that takes a file, for settings that come from the cluster.
var fileSetting = map[string]string{
	"WEBHOOK_URL":           ", and name it as url_file in [webhook]",
	"WEBHOOK_TEMPLATE":      ", and name it as template_file in [webhook]",
	"WEBHOOK_TEMPLATE_FILE": ", and name it as template_file in [webhook]",
	"WEBHOOK_HEADERS":       ", and name it as headers_file in [webhook]",
}

// translate applies the rules: what becomes lines, and what is to be said about the rest.
func (s Settings) translate() ([]written, []string, error) {
	var lines []written
	var remarks []string
	var faults []error
	for _, r := range rules {
		value, set := s.values[r.env]
		if !set {
			continue
		}
		if r.to == nil {
			remarks = append(remarks, fmt.Sprintf("%s=%s: %s", r.env, shortened(value), r.why))
			continue
		}
		found, err := r.to(s, value)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s=%w", r.env, err))
			continue
		}
		if len(found) == 0 {
			remarks = append(remarks, fmt.Sprintf("%s=%s: %s", r.env, shortened(value), cmp.Or(r.idle, "as nth does by itself")))
		}
		for i, l := range found {
			why := ""
			if i == 0 {
				why = r.why
			}
			lines = merge(lines, l, r.env, why)
		}
	}
	return lines, remarks, errors.Join(faults...)
}

// merge adds a line, or its origin where there is that line already.
func merge(lines []written, l line, env, why string) []written {
	i := slices.IndexFunc(lines, func(w written) bool { return w.table == l.table && w.key == l.key })
	if i < 0 {
		lines, i = append(lines, written{line: l}), len(lines)
	}
	lines[i].from = append(lines[i].from, env)
	if why != "" {
		lines[i].why = append(lines[i].why, why)
	}
	return lines
}

func sentence(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

// shortened keeps a comment to its line.
func shortened(value string) string {
	value = strings.Join(strings.Fields(value), " ")
	if len(value) > 60 {
		value = value[:60] + "…"
	}
	return value
}

// Names lists the environment variables that are understood.
func Names() []string {
	var names []string
	for _, r := range rules {
		names = append(names, r.env)
	}
	return names
}
