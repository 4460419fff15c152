// Package migration converts the settings of aws-node-termination-handler (the handler) to a configuration file of nth or nth-queue.
//
// Newcomers begin with Read. It accepts the manifest of the handler's DaemonSet or Deployment, or its environment ("NAME=value" lines). The rules
// (rules.go) say what each setting of the handler becomes. Settings.For applies them. The file that it returns has a
// comment for each setting. No secret is shown: addresses, headers and passwords are not copied.
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

// Settings are those settings of the handler that the input sets.
type Settings struct {
	// given has the values by the names of the handler's environment variables.
	given map[string]value
}

// value is the value of a setting. The zero value means that the setting is not set, or empty.
type value struct {
	text      string
	elsewhere bool // The setting is set, but its value is not in the input: it is in a Secret, a field of the pod or another variable.
}

// maxInput is the largest input, in bytes. The YAML parser bounds depth and aliases.
const maxInput = 4 << 20

// Read reads settings in either form. An error names the line of the input if it is known, and repeats nothing of the input.
func Read(r io.Reader) (Settings, error) {
	content, err := io.ReadAll(io.LimitReader(r, maxInput+1))
	s := Settings{given: map[string]value{}}
	switch {
	case err != nil: // The error is that of reading.
	case len(content) > maxInput:
		err = fmt.Errorf("the input must be at most %d MiB", maxInput>>20)
	case !utf8.Valid(content):
		err = errors.New("the input must be UTF-8")
	case !s.readEnvironment(string(content)):
		err = s.readManifest(content)
	}
	if err != nil {
		return Settings{}, fmt.Errorf("reading settings: %w", err)
	}
	return s, nil
}

// assignment matches "NAME=value". The first group is the name, the second the value.
var assignment = regexp.MustCompile(`^([-._a-zA-Z][-._a-zA-Z0-9]*)=(.*)$`)

// readEnvironment reads "NAME=value" lines. It returns false, and sets nothing, if the content is empty or has any other line.
func (s *Settings) readEnvironment(content string) bool {
	var found [][]string
	for line := range strings.Lines(content) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		match := assignment.FindStringSubmatch(line)
		if match == nil {
			return false
		}
		found = append(found, match)
	}
	for _, match := range found {
		s.given[match[1]] = value{text: match[2]}
	}
	return len(found) > 0
}

// text returns the value of a setting; "" if the setting is not set, or its value is not in the input.
func (s Settings) text(env string) string { return s.given[env].text }

// is reports whether the value of a setting is in the input and true.
func (s Settings) is(env string) bool {
	on, err := parseBool(s.text(env))
	return on && err == nil
}

// object is a Kubernetes object: a pod, a workload or a list of objects. It has only the fields that are read.
type object struct {
	Spec struct {
		podSpec  `yaml:",inline"`
		Template struct{ Spec podSpec }
	}
	Items []object
}

// podSpec, container and variable are parts of an object, with only the fields that are read.
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

// readManifest reads the environment variables of the handler's container in a YAML document: an object, or a list of objects. The error says
// that it is unclear which container that is, or that the container has settings elsewhere than in its variables.
func (s *Settings) readManifest(content []byte) error {
	var o object
	if err := yaml.Unmarshal(content, &o); err != nil {
		return yamlError(err)
	}
	var all []container
	for _, o := range append(o.Items, o) { // A list has Items, and no containers; another object has containers, and no Items.
		all = slices.Concat(all, o.Spec.Containers, o.Spec.Template.Spec.Containers)
	}
	if len(all) > 1 { // Drop sidecars, by image and name.
		all = slices.DeleteFunc(all, func(c container) bool { return !strings.Contains(c.Image+" "+c.Name, "node-termination-handler") })
	}
	switch {
	case len(all) != 1:
		return errors.New("this must be the manifest of the handler's DaemonSet or Deployment, with one container, or one with node-termination-handler in its name or image")
	case len(all[0].Args)+len(all[0].Command) > 0:
		return errors.New("the container has a command or arguments, which are not read: write them as variables (CORDON_ONLY for --cordon-only)")
	case len(all[0].EnvFrom) > 0:
		return errors.New("the container has envFrom, which is not read: write its variables into env")
	}
	s.defineAll(all[0].Env)
	return nil
}

// yamlLine finds the line in an error of the YAML parser. The rest of the error may repeat a secret.
var yamlLine = regexp.MustCompile(`line \d+`)

// yamlError returns an error with the line in the YAML parser's error. It drops the parser's text, which may quote a secret.
func yamlError(err error) error {
	if line := yamlLine.FindString(err.Error()); line != "" {
		return fmt.Errorf("%s: not YAML as expected, and not all lines are NAME=value", line)
	}
	return errors.New("not YAML as expected, and not all lines are NAME=value")
}

// defineAll sets settings from the environment variables of a container. Kubernetes expands $(NAME) and $$ in a variable's value; this function
// does not, so that such a value is elsewhere.
func (s *Settings) defineAll(list []variable) {
	for _, v := range list {
		expanded := strings.Contains(v.Value, "$(") || strings.Contains(v.Value, "$$")
		if expanded || v.ValueFrom != nil {
			s.given[v.Name] = value{elsewhere: true}
		} else {
			s.given[v.Name] = value{text: v.Value}
		}
	}
}
