package migration

import (
	"errors"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"
)

// variable is an environment variable of a container, as far as it matters here.
type variable struct {
	Name      string `json:"name"`
	Value     string `json:"value"`
	ValueFrom *struct {
		SecretKeyRef    *reference `json:"secretKeyRef"`
		ConfigMapKeyRef *reference `json:"configMapKeyRef"`
	} `json:"valueFrom"`
}

type reference struct {
	Name string `json:"name"`
	Key  string `json:"key"`
}

type container struct {
	Image string     `json:"image"`
	Env   []variable `json:"env"`
}

type podSpec struct {
	Containers []container `json:"containers"`
}

// object is a DaemonSet, a Deployment, a Pod or a list of objects.
type object struct {
	Kind string `json:"kind"`
	Spec struct {
		podSpec
		Template struct {
			Spec podSpec `json:"spec"`
		} `json:"template"`
	} `json:"spec"`
	Items []object `json:"items"`
}

// manifest takes in the environment of the handler's container.
func (s *Settings) manifest(content []byte) error {
	var o object
	if err := yaml.Unmarshal(content, &o); err != nil {
		return fmt.Errorf("reading settings: this %s cannot be understood: %w", o.Kind, err)
	}
	containers := o.containers()
	switch {
	case len(containers) == 0:
		return fmt.Errorf("reading settings: this %s has no container; a DaemonSet, Deployment or Pod of the handler is needed", o.Kind)
	case len(containers) > 1:
		containers = handlers(containers)
	}
	if len(containers) != 1 {
		return errors.New("reading settings: more than one container, and none (or several) whose image is named *node-termination-handler*")
	}
	s.variables(containers[0].Env)
	return nil
}

func (o object) containers() []container {
	all := append(o.Spec.Containers, o.Spec.Template.Spec.Containers...)
	for _, item := range o.Items {
		all = append(all, item.containers()...)
	}
	return all
}

// handlers picks the containers of the handler from among others, sidecars for example.
func handlers(all []container) []container {
	var found []container
	for _, c := range all {
		if strings.Contains(c.Image, "node-termination-handler") {
			found = append(found, c)
		}
	}
	return found
}

func (s *Settings) variables(list []variable) {
	for _, v := range list {
		s.set(v.Name, v.Value)
		if v.ValueFrom == nil || ruleOf(v.Name) == nil {
			continue
		}
		if ref := v.ValueFrom.SecretKeyRef; ref != nil {
			s.elsewhere[v.Name] = "the Secret " + ref.Name
		}
		if ref := v.ValueFrom.ConfigMapKeyRef; ref != nil {
			s.elsewhere[v.Name] = "the ConfigMap " + ref.Name
		}
	}
}
