package migration

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Settings are what was set there, and only that.
type Settings struct {
	// values holds the settings by the name of their environment variable. An empty value is the handler's default.
	values map[string]string
	// seen are all variables, also those that the handler does not know: its flags may name them.
	seen map[string]string
	// elsewhere tells which settings take their value from a Secret or another object of the cluster, and which one.
	elsewhere map[string]string
	// pod and unknown name values of the chart that concern the pod alone, and what else this package does not know.
	pod, unknown []string
	// missing names objects of the cluster that hold settings which nobody knows here.
	missing []string
	// remarks are what else is to be said.
	remarks []string

	// queue and secrets are those of the target, while it is written.
	queue   bool
	secrets string
}

// longest bounds what is read, in bytes: a rendered chart with all that stands beside it is long, and a wrong file may be anything.
const longest = 64 << 20

// Read reads settings: "NAME=value" lines, values of the Helm chart, or a DaemonSet (or a Deployment, a Pod, a list of
// objects) with the ConfigMaps and Secrets that it takes settings from, whichever it is.
func Read(r io.Reader) (Settings, error) {
	content, err := io.ReadAll(io.LimitReader(r, longest+1))
	if err != nil {
		return Settings{}, fmt.Errorf("reading settings: %w", err)
	}
	if len(content) > longest {
		return Settings{}, fmt.Errorf("reading settings: more than %d MiB (%d bytes); these are not the handler's settings", longest>>20, longest)
	}
	s := Settings{values: map[string]string{}, seen: map[string]string{}, elsewhere: map[string]string{}}
	if isEnvironment(content) {
		s.environment(content)
		return s, nil
	}
	values, objects := map[string]any{}, false
	var documents []string
	for _, part := range separator.Split(string(content), -1) {
		var document map[string]any
		if err := yaml.Unmarshal([]byte(part), &document); err != nil {
			return Settings{}, fmt.Errorf("reading settings: neither NAME=value lines nor YAML: %w", err)
		}
		if document == nil {
			continue // A comment, at most.
		}
		kind, _ := document["kind"].(string)
		objects = objects || kind != ""
		documents = append(documents, part)
		maps.Copy(values, document)
	}
	switch {
	case len(documents) == 0:
		return Settings{}, errors.New("reading settings: nothing is in there")
	case objects:
		return s, s.manifest(documents)
	}
	s.chart(values)
	return s, nil
}

// separator is what begins a document of YAML: the rest of its line is a comment, or belongs to the document.
var separator = regexp.MustCompile(`(?m)^---(?:[ \t]|\r?$)`)

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

// set takes a variable in. One that the handler does not know is named in the end, without its value, which may be a secret.
func (s *Settings) set(name, value string) {
	s.seen[name] = value
	switch {
	case ruleOf(name) == nil:
		s.unknown = append(s.unknown, name)
	case value != "":
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
}

// extra takes in the chart's extraEnv: a list of variables, as in a container.
func (s *Settings) extra(value any) {
	var list []variable
	encoded, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(encoded, &list)
	}
	if err != nil {
		s.unknown = append(s.unknown, "extraEnv, which is no list of variables")
	}
	s.variables(list, nil)
}

func sorted(values map[string]string) []string { return slices.Sorted(maps.Keys(values)) }

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
