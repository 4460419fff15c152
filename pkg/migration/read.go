// Package migration converts settings of aws-node-termination-handler (the handler) to a configuration file of nth or nth-queue.
//
// Newcomers begin with Convert. It reads the manifest of the handler's DaemonSet or Deployment. The rules (rules.go) say what each setting of the
// handler becomes. The file that Convert returns has a comment for each setting. No secret is shown: addresses, headers and passwords are not
// copied.
package migration

import (
	"errors"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// settings are those settings of the handler that a manifest sets, by the names of its environment variables.
type settings map[string]value

// value is the value of a setting. The zero value means that the setting is not set, or empty.
type value struct {
	text      string
	elsewhere bool // The setting is set, but its value is not in the manifest: it is in a Secret, a field of the pod or another variable.
}

// text returns the value of a setting; "" if the setting is not set, or its value is not in the manifest.
func (s settings) text(env string) string { return s[env].text }

// is reports whether the value of a setting is in the manifest and true.
func (s settings) is(env string) bool {
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

// yamlLine finds the line in an error of the YAML parser. The rest of the error may repeat a secret.
var yamlLine = regexp.MustCompile(`line \d+: `)

// read reads the environment variables of the handler's container in a manifest in YAML: an object, or a list of objects. An error names the line
// if it is known, and repeats nothing of the manifest. It may say that it is unclear which container is the handler's, or that the container has
// settings elsewhere than in its variables.
func read(manifest []byte) (settings, error) {
	var o object
	if err := yaml.Unmarshal(manifest, &o); err != nil {
		return nil, errors.New(yamlLine.FindString(err.Error()) + "the input must be a YAML manifest")
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
		return nil, errors.New("the input must be the manifest of the handler's DaemonSet or Deployment, with one container, or one with node-termination-handler in its name or image")
	case len(all[0].Args)+len(all[0].Command) > 0:
		return nil, errors.New("the container has a command or arguments, which are not read: write them as variables (CORDON_ONLY for --cordon-only)")
	case len(all[0].EnvFrom) > 0:
		return nil, errors.New("the container has envFrom, which is not read: write its variables into env")
	}
	s := settings{}
	for _, v := range all[0].Env {
		expanded := strings.Contains(v.Value, "$(") || strings.Contains(v.Value, "$$") // Kubernetes expands $(NAME) and $$.
		if expanded || v.ValueFrom != nil {
			s[v.Name] = value{elsewhere: true}
		} else {
			s[v.Name] = value{text: v.Value}
		}
	}
	return s, nil
}
