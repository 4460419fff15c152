package migration

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Settings are what was set there, and only that.
type Settings struct {
	// values holds the settings by the name of their environment variable. An empty value is the handler's default.
	values map[string]string
	// elsewhere tells which settings take their value from a Secret or another object of the cluster, and which one.
	elsewhere map[string]string
	// pod and unknown name values of the chart that concern the pod alone, and those that this package does not know.
	pod, unknown []string
}

// longest bounds what is read: settings are small, and a wrong file may be anything.
const longest = 1 << 20

// Read reads settings: "NAME=value" lines, values of the Helm chart, or a DaemonSet (or a Deployment, a Pod, a list of
// objects), whichever it is.
func Read(r io.Reader) (Settings, error) {
	content, err := io.ReadAll(io.LimitReader(r, longest+1))
	if err != nil {
		return Settings{}, fmt.Errorf("reading settings: %w", err)
	}
	if len(content) > longest {
		return Settings{}, fmt.Errorf("reading settings: more than %d bytes; these are not the handler's settings", longest)
	}
	s := Settings{values: map[string]string{}, elsewhere: map[string]string{}}
	if isEnvironment(content) {
		s.environment(content)
		return s, nil
	}
	var document map[string]any
	if err := yaml.Unmarshal(content, &document); err != nil {
		return Settings{}, fmt.Errorf("reading settings: neither NAME=value lines nor YAML: %w", err)
	}
	if document == nil {
		return Settings{}, errors.New("reading settings: nothing is in there")
	}
	if document["kind"] != nil && document["apiVersion"] != nil {
		return s, s.manifest(content)
	}
	s.chart(document)
	return s, nil
}

var assignment = regexp.MustCompile(`^(?:export\s+)?([A-Z][A-Z0-9_]*)=(.*)$`)

// isEnvironment tells whether every line that says something is an assignment.
func isEnvironment(content []byte) bool {
	found := false
	for line := range bytes.Lines(content) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		if !assignment.Match(line) {
			return false
		}
		found = true
	}
	return found
}

func (s *Settings) environment(content []byte) {
	lines := bufio.NewScanner(bytes.NewReader(content))
	lines.Buffer(nil, longest+1)
	for lines.Scan() {
		if m := assignment.FindStringSubmatch(strings.TrimSpace(lines.Text())); m != nil {
			s.set(m[1], unquoted(m[2]))
		}
	}
}

// unquoted takes one pair of quotes off, as a shell would.
func unquoted(text string) string {
	if n := len(text); n >= 2 && (text[0] == '"' || text[0] == '\'') && text[n-1] == text[0] {
		return text[1 : n-1]
	}
	return text
}

// set takes a variable in that the handler knows. Other variables of its environment are none of its settings.
func (s *Settings) set(name, value string) {
	if ruleOf(name) != nil && value != "" {
		s.values[name] = value
	}
}

// chart takes in the values of the Helm chart.
func (s *Settings) chart(values map[string]any) {
	for key, value := range values {
		switch r := ruleOfChart(key); {
		case key == "extraEnv":
			s.extra(value)
		case r != nil && value != nil:
			s.set(r.env, text(value))
		case r != nil:
		case slices.Contains(aboutPod, key):
			s.pod = append(s.pod, key)
		case key == "webhookURLSecretName" && text(value) != "":
			s.elsewhere["WEBHOOK_URL"] = "the Secret " + text(value)
		case key == "webhookTemplateConfigMapName" && text(value) != "":
			s.elsewhere["WEBHOOK_TEMPLATE_FILE"] = "the ConfigMap " + text(value)
		case text(value) != "":
			s.unknown = append(s.unknown, key)
		}
	}
	slices.Sort(s.pod)
	slices.Sort(s.unknown)
}

// extra takes in the chart's extraEnv: a list of variables, as in a container.
func (s *Settings) extra(value any) {
	encoded, err := json.Marshal(value)
	if err != nil {
		return
	}
	var list []variable
	if json.Unmarshal(encoded, &list) == nil {
		s.variables(list)
	}
}

// text is a value of the chart as its template would print it.
func text(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case string:
		return v
	case map[string]any, []any:
		encoded, err := json.Marshal(v)
		if err != nil || string(encoded) == "{}" || string(encoded) == "[]" {
			return ""
		}
		return string(encoded)
	default:
		return fmt.Sprint(v)
	}
}
