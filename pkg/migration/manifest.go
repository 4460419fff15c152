package migration

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
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
		FieldRef        *field     `json:"fieldRef"`
	} `json:"valueFrom"`
}

type reference struct {
	Name     string `json:"name"`
	Key      string `json:"key"`
	Optional bool   `json:"optional"`
}

type field struct {
	Path string `json:"fieldPath"`
}

// source is an object all of whose keys are variables.
type source struct {
	Prefix       string     `json:"prefix"`
	ConfigMapRef *reference `json:"configMapRef"`
	SecretRef    *reference `json:"secretRef"`
}

type container struct {
	Name    string     `json:"name"`
	Image   string     `json:"image"`
	Command []string   `json:"command"`
	Args    []string   `json:"args"`
	Env     []variable `json:"env"`
	EnvFrom []source   `json:"envFrom"`

	namespace string   // where its pod is; "" if the file does not tell
	placed    []string // what says on which nodes its pod is
}

type podSpec struct {
	Containers   []container       `json:"containers"`
	NodeSelector map[string]string `json:"nodeSelector"`
	Affinity     map[string]any    `json:"affinity"`
}

func (p podSpec) placed() []string {
	var by []string
	if len(p.NodeSelector) > 0 {
		by = append(by, "nodeSelector")
	}
	if len(p.Affinity) > 0 {
		by = append(by, "affinity")
	}
	return by
}

// object is a DaemonSet, a Deployment, a Pod, a list of objects, or what a container takes settings from.
type object struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
	Spec struct {
		podSpec
		Template struct {
			Spec podSpec `json:"spec"`
		} `json:"template"`
	} `json:"spec"`
	Items      []object          `json:"items"`
	Data       map[string]string `json:"data"`
	StringData map[string]string `json:"stringData"`
}

// manifest takes in the settings of the handler's container, with those of the ConfigMaps and Secrets beside it, out of documents
// of which at least one is an object of a cluster.
func (s *Settings) manifest(documents []string) error {
	var all object
	for _, document := range documents {
		var o object
		if err := yaml.Unmarshal([]byte(document), &o); err != nil {
			return fmt.Errorf("reading settings: this %s cannot be understood: %w", o.Kind, yamlFault(err))
		}
		if o.Kind == "" {
			s.unknown = append(s.unknown, "a document without a kind")
			continue
		}
		all.Items = append(all.Items, o)
	}
	containers := all.containers()
	switch {
	case len(containers) == 0:
		return fmt.Errorf("reading settings: this %s has no container; a DaemonSet, Deployment or Pod of the handler is needed", all.Items[0].Kind)
	case len(containers) > 1:
		containers = handlers(containers)
	}
	if len(containers) != 1 {
		return errors.New("reading settings: more than one container, and none (or several) that is named *node-termination-handler*, or whose image is")
	}
	c := containers[0]
	s.pod = c.placed
	held := all.holders()
	for _, from := range c.EnvFrom {
		s.all(from, held, c.namespace)
	}
	s.variables(c.Env, held, c.namespace)
	return s.arguments(s.flags(c))
}

func (o object) containers() []container {
	var all []container
	for _, spec := range []podSpec{o.Spec.podSpec, o.Spec.Template.Spec} {
		for _, c := range spec.Containers {
			c.namespace, c.placed = o.Metadata.Namespace, spec.placed()
			all = append(all, c)
		}
	}
	for _, item := range o.Items {
		all = append(all, item.containers()...)
	}
	return all
}

// handlers picks the containers of the handler from among others, sidecars for example.
func handlers(all []container) []container {
	var found []container
	for _, c := range all {
		if strings.Contains(c.Image, "node-termination-handler") || strings.Contains(c.Name, "node-termination-handler") {
			found = append(found, c)
		}
	}
	return found
}

// holder is a ConfigMap or a Secret: what it is called, in which namespace it is, if the file tells, and what it holds.
type holder struct {
	name, namespace string
	data            map[string]string
}

type holders []holder

func (o object) holders() holders {
	var all holders
	if o.Kind == "ConfigMap" || o.Kind == "Secret" {
		data := map[string]string{}
		for key, value := range o.Data {
			if decoded, err := base64.StdEncoding.DecodeString(value); err == nil && o.Kind == "Secret" {
				value = strings.TrimRight(string(decoded), "\n")
			}
			data[key] = value
		}
		maps.Copy(data, o.StringData)
		all = holders{{"the " + o.Kind + " " + o.Metadata.Name, o.Metadata.Namespace, data}}
	}
	for _, item := range o.Items {
		all = append(all, item.holders()...)
	}
	return all
}

// of is what a pod of a namespace finds in an object of that name; nil if the file does not tell. An object, or a pod, whose
// namespace is not written may be in any, if there is but one.
func (h holders) of(name, namespace string) map[string]string {
	var found []map[string]string
	for _, o := range h {
		switch {
		case o.name != name:
		case o.namespace == namespace:
			return o.data
		case o.namespace == "" || namespace == "":
			found = append(found, o.data)
		}
	}
	if len(found) != 1 {
		return nil
	}
	return found[0]
}

// all takes in an object all of whose keys are variables. One that is not in the file is named: nobody knows what it sets.
func (s *Settings) all(from source, held holders, namespace string) {
	name := "another object of the cluster"
	switch {
	case from.ConfigMapRef != nil:
		name = "the ConfigMap " + from.ConfigMapRef.Name
	case from.SecretRef != nil:
		name = "the Secret " + from.SecretRef.Name
	}
	values := held.of(name, namespace)
	if values == nil {
		s.missing = append(s.missing, name)
	}
	for _, key := range sorted(values) {
		s.define(from.Prefix+key, known{text: values[key], secret: from.SecretRef != nil})
	}
}

func (s *Settings) variables(list []variable, held holders, namespace string) {
	for _, v := range list {
		from := v.ValueFrom
		if from == nil {
			s.define(v.Name, s.expanded(v.Value))
			continue
		}
		name, ref := "another object of the cluster", &reference{}
		switch {
		case from.SecretKeyRef != nil:
			name, ref = "the Secret "+from.SecretKeyRef.Name, from.SecretKeyRef
		case from.ConfigMapKeyRef != nil:
			name, ref = "the ConfigMap "+from.ConfigMapKeyRef.Name, from.ConfigMapKeyRef
		case from.FieldRef != nil:
			name = "the pod's field " + from.FieldRef.Path
		}
		data := held.of(name, namespace)
		value, set := data[ref.Key]
		switch {
		case set:
			s.define(v.Name, known{text: value, secret: from.SecretKeyRef != nil})
		case data == nil || !ref.Optional:
			s.define(v.Name, known{from: name})
		}
	}
}

// flags are the arguments that the handler is given: all that stands behind its name, or behind the one of another program.
func (s *Settings) flags(c container) []string {
	all := slices.Concat(c.Command, c.Args)
	for i, arg := range all {
		if path.Base(arg) == "node-termination-handler" {
			return all[i+1:]
		}
		if name, _, _ := flagOf(arg); name != "" && ruleOf(flagged(name)) != nil {
			break // From here on, that name is a flag's value.
		}
	}
	if len(c.Command) == 0 {
		return all
	}
	s.remarks = append(s.remarks, "the container's command: it is not the handler itself, and what it sets by its own is not known here; look it up, and set it by hand")
	return all[1:]
}

// arguments takes in the flags of a command line, which go before the environment, as the handler would: it has Go's flags. What
// stands behind the first argument that is none is not heeded there. Of what is not known, nothing but a name is repeated: the
// rest may be a secret.
func (s *Settings) arguments(args []string) error {
	for i := 0; i < len(args); i++ {
		arg := s.expanded(args[i])
		name, value, assigned := flagOf(arg.text)
		switch {
		case name == "" && arg.from != "":
			s.remarks = append(s.remarks, fmt.Sprintf("an argument comes from %s, which is not in this file: look it up there", arg.from))
			continue
		case name == "":
			s.remarks = append(s.remarks, fmt.Sprintf("arguments from the first on that is no flag (%d, which are not shown): the handler does not heed them", len(args)-i))
			return nil
		}
		r := ruleOf(flagged(name))
		switch {
		case r == nil:
			i += s.unknownFlag(arg.text, args[i+1:])
			continue
		case !assigned && r.isBool():
			arg = known{text: "true"}
		case assigned && value == "" && r.isBool():
			return fmt.Errorf("reading settings: the flag --%s has an empty value", name)
		case assigned:
			arg.text = value
		case i+1 == len(args):
			return fmt.Errorf("reading settings: the flag --%s has no value", name)
		default:
			i++
			arg = s.expanded(args[i])
		}
		s.take(r.env, arg)
	}
	return nil
}

// flagOf takes an argument apart, as Go does: one dash or two, a name, and a value behind "=". What is no flag has no name.
func flagOf(arg string) (name, value string, assigned bool) {
	name, dashed := strings.CutPrefix(arg, "-")
	if !dashed {
		return "", "", false
	}
	return strings.Cut(strings.TrimPrefix(name, "-"), "=")
}

var flagName = regexp.MustCompile("^[a-z][a-z0-9-]*$")

// unknownFlag names a flag, and returns how many of the arguments behind it may be its value. Behind a single dash, more than a
// letter may be anything: some programs take a password so.
func (s *Settings) unknownFlag(arg string, behind []string) int {
	name, _, assigned := flagOf(arg)
	named := "a flag, which is not shown"
	if flagName.MatchString(name) && (assigned || len(name) == 1 || strings.HasPrefix(arg, "--")) {
		named = "the flag --" + name
	}
	s.unknown = append(s.unknown, named)
	if assigned || len(behind) == 0 || strings.HasPrefix(behind[0], "-") {
		return 0
	}
	return 1
}

// flagged is the variable of a flag.
func flagged(name string) string {
	switch name {
	case "metadata-url":
		return "INSTANCE_METADATA_URL"
	case "pod-namespace":
		return "NAMESPACE"
	}
	return strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// isBool tells of a flag that needs no value.
func (r rule) isBool() bool {
	for _, prefix := range []string{"ENABLE_", "CHECK_", "USE_", "DELETE_"} {
		if strings.HasPrefix(r.env, prefix) {
			return true
		}
	}
	return slices.Contains([]string{
		"CORDON_ONLY", "DRY_RUN", "IGNORE_DAEMON_SETS", "TAINT_NODE", "EXCLUDE_FROM_LOAD_BALANCERS", "JSON_LOGGING", "EMIT_KUBERNETES_EVENTS",
	}, r.env)
}
