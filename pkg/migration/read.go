// Package migration converts the settings of aws-node-termination-handler to a configuration file of nth or nth-queue.
//
// Read accepts an environment ("NAME=value" lines), values of the Helm chart, or the manifest of the DaemonSet or Deployment. The rules (rules.go)
// say what each setting becomes. For applies them, and names every setting in the commented file that it returns. No secret is shown: addresses,
// headers and passwords are not copied.
package migration

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Settings are the settings of aws-node-termination-handler that a file sets.
type Settings struct {
	// given has their values, by the names of the environment variables, and the other values of the chart by their own names.
	given map[string]value
}

// value is what a setting is set to.
type value struct {
	text      string
	elsewhere bool // The value is not in the input: it is in a Secret, a field of the pod or another variable.
}

// maxInput is the largest input, in bytes. The YAML parser bounds depth and aliases.
const maxInput = 4 << 20

// Read reads settings in any of their forms. An error names the line where one is known, and repeats nothing of the input.
func Read(r io.Reader) (Settings, error) {
	content, err := io.ReadAll(io.LimitReader(r, maxInput+1))
	s := Settings{given: map[string]value{}}
	switch {
	case err != nil: // Reading has failed.
	case len(content) > maxInput:
		err = fmt.Errorf("the input must be at most %d MiB", maxInput>>20)
	case !utf8.Valid(content):
		err = errors.New("the input must be UTF-8")
	case !s.readEnvironment(string(content)):
		err = s.readYAML(content)
	}
	if err != nil {
		return Settings{}, fmt.Errorf("reading settings: %w", err)
	}
	return s, nil
}

// assignment matches a variable and its value.
var assignment = regexp.MustCompile(`(?s)^([-._a-zA-Z][-._a-zA-Z0-9]*)=(.*)$`)

// readEnvironment reads "NAME=value" lines, or the environment of a process (/proc/PID/environ), in which each assignment ends with a NUL. It
// returns false, and sets nothing, if the content has anything else or nothing at all.
func (s *Settings) readEnvironment(content string) bool {
	end := "\n"
	if strings.Contains(content, "\x00") {
		end = "\x00"
	}
	var found [][]string
	for entry := range strings.SplitSeq(content, end) {
		entry = strings.TrimSpace(entry)
		if entry == "" || entry[0] == '#' {
			continue
		}
		m := assignment.FindStringSubmatch(entry)
		if m == nil {
			return false
		}
		found = append(found, m)
	}
	for _, m := range found {
		text := m[2] // in lines, perhaps in quotes
		if n := len(text); end == "\n" && n >= 2 && (text[0] == '"' || text[0] == '\'') && text[n-1] == text[0] {
			text = text[1 : n-1]
		}
		s.given[m[1]] = value{text: text}
	}
	return len(found) > 0
}

// text returns the value of a setting; "" if it is not set, or the input does not have it.
func (s Settings) text(env string) string { return s.given[env].text }

// is reports whether a setting is true.
func (s Settings) is(env string) bool {
	on, err := parseBool(s.text(env))
	return on && err == nil
}

// object is a Kubernetes object: a workload or a list of objects. It has the fields that are read.
type object struct {
	Kind string
	Spec struct {
		podSpec  `yaml:",inline"`
		Template struct{ Spec podSpec }
	}
	Items []object
}

// podSpec, container and variable have the fields of a workload that are read.
type podSpec struct{ Containers []container }

type container struct {
	Name, Image   string
	Command, Args []any
	Env           []variable
	EnvFrom       []any `yaml:"envFrom"`
}

type variable struct {
	Name, Value string
	ValueFrom   any `yaml:"valueFrom"`
}

// readYAML reads one YAML document. If it has a kind, it is an object, or a list of objects; otherwise it has values of the chart.
func (s *Settings) readYAML(content []byte) error {
	var o object
	if err := yaml.Unmarshal(content, &o); err != nil {
		return yamlError(err)
	}
	if o.Kind != "" {
		return s.readManifest(append(o.Items, o))
	}
	var values map[string]any
	if err := yaml.Unmarshal(content, &values); err != nil {
		return yamlError(err)
	}
	if len(values) == 0 {
		return errors.New("the file has no settings")
	}
	var chart struct {
		ExtraEnv []variable `yaml:"extraEnv"`
	}
	if err := yaml.Unmarshal(content, &chart); err != nil {
		return errors.New("extraEnv must be a list of variables, each with name and value")
	}
	for key, entry := range values {
		s.readValue(key, entry)
	}
	s.defineAll(chart.ExtraEnv) // They override the other values.
	return nil
}

// yamlLine finds the line in an error of the YAML parser. The rest of the error may repeat a secret.
var yamlLine = regexp.MustCompile(`line \d+`)

// yamlError returns an error with the line that the YAML parser names, and without its text, which may quote a secret.
func yamlError(err error) error {
	if line := yamlLine.FindString(err.Error()); line != "" {
		return fmt.Errorf("%s: not YAML as expected (nor are these NAME=value lines)", line)
	}
	return errors.New("not YAML as expected (nor NAME=value lines)")
}

// readManifest reads the environment variables of the handler's container. It is an error if another container could be
// the handler's, too, or if the container has settings elsewhere than in its variables.
func (s *Settings) readManifest(objects []object) error {
	var all []container
	for _, o := range objects {
		all = slices.Concat(all, o.Spec.Containers, o.Spec.Template.Spec.Containers)
	}
	if len(all) > 1 { // The others may be sidecars.
		all = slices.DeleteFunc(all, func(c container) bool { return !strings.Contains(c.Image+" "+c.Name, "node-termination-handler") })
	}
	switch {
	case len(all) != 1:
		return errors.New("there must be one container, or one with node-termination-handler in its name or image")
	case len(all[0].Args)+len(all[0].Command) > 0:
		return errors.New("the container has a command or arguments, which are not read: write them as variables (CORDON_ONLY for --cordon-only)")
	case len(all[0].EnvFrom) > 0:
		return errors.New("the container has envFrom, which is not read: import /proc/PID/environ of the running handler")
	}
	s.defineAll(all[0].Env)
	return nil
}

// defineAll sets environment variables of a container.
func (s *Settings) defineAll(list []variable) {
	for _, v := range list {
		if v.ValueFrom != nil || strings.Contains(v.Value, "$(") || strings.Contains(v.Value, "$$") {
			s.given[v.Name] = value{elsewhere: true}
		} else {
			s.given[v.Name] = value{text: v.Value}
		}
	}
}

// envOf returns the environment variable of a value of the Helm chart, whose name is the same in camel case; the value's own name if it has none.
func envOf(key string) string {
	for _, r := range slices.Concat(rulesFor(false), queueRules) {
		if strings.EqualFold(strings.ReplaceAll(r.env, "_", ""), key) {
			return r.env
		}
	}
	return key
}

// readValue sets the setting of a value of the Helm chart. An empty list or map sets nothing.
func (s *Settings) readValue(key string, entry any) {
	text := fmt.Sprint(entry)
	switch {
	case entry == nil, text == "", text == "[]", text == "map[]":
	case key == "extraEnv", key == "webhookTemplateConfigMapKey": // Its variables are read alone; the key is a name in the ConfigMap.
	case key == "webhookURLSecretName":
		s.given[webhookURL] = value{elsewhere: true}
	default:
		s.given[envOf(key)] = value{text: text}
	}
}
