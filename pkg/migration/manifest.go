package migration

import (
	"cmp"
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

// variable is an environment variable of a container.
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

// envSource is an object whose keys are all variables.
type envSource struct {
	Prefix       string     `json:"prefix"`
	ConfigMapRef *reference `json:"configMapRef"`
	SecretRef    *reference `json:"secretRef"`
}

type container struct {
	Name    string      `json:"name"`
	Image   string      `json:"image"`
	Command []string    `json:"command"`
	Args    []string    `json:"args"`
	Env     []variable  `json:"env"`
	EnvFrom []envSource `json:"envFrom"`

	namespace string   // of its pod; "" if the file does not say
	placement []string // the fields of its pod that restrict on which nodes it runs
}

type podSpec struct {
	Containers   []container       `json:"containers"`
	NodeSelector map[string]string `json:"nodeSelector"`
	Affinity     map[string]any    `json:"affinity"`
}

func (p podSpec) placement() []string {
	var by []string
	if len(p.NodeSelector) > 0 {
		by = append(by, "nodeSelector")
	}
	if len(p.Affinity) > 0 {
		by = append(by, "affinity")
	}
	return by
}

// object is a DaemonSet, a Deployment, a Pod, a list of objects, or what a container refers to.
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

// readManifest reads the settings of the handler's container and of the ConfigMaps and Secrets beside it. At least one of the
// documents is an object of a cluster.
func (s *Settings) readManifest(documents []string) error {
	var all object
	for _, document := range documents {
		var o object
		if err := yaml.Unmarshal([]byte(document), &o); err != nil {
			return fmt.Errorf("reading settings: this %s cannot be understood: %w", o.Kind, yamlError(err))
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
	case len(containers) > 1: // The others may be sidecars.
		containers = slices.DeleteFunc(containers, func(c container) bool {
			return !strings.Contains(c.Image, "node-termination-handler") && !strings.Contains(c.Name, "node-termination-handler")
		})
	}
	if len(containers) != 1 {
		return errors.New("reading settings: more than one container, and none (or several) that is named *node-termination-handler*, or whose image is")
	}
	c := containers[0]
	s.pod = c.placement
	objects := all.configObjects()
	for _, from := range c.EnvFrom {
		s.defineAll(from, objects, c.namespace)
	}
	s.defineVariables(c.Env, objects, c.namespace)
	return s.readArgs(s.handlerArgs(c))
}

func (o object) containers() []container {
	var all []container
	for _, spec := range []podSpec{o.Spec.podSpec, o.Spec.Template.Spec} {
		for _, c := range spec.Containers {
			c.namespace, c.placement = o.Metadata.Namespace, spec.placement()
			all = append(all, c)
		}
	}
	for _, item := range o.Items {
		all = append(all, item.containers()...)
	}
	return all
}

// configObject is a ConfigMap or a Secret. Its name begins with "the ConfigMap" or "the Secret", and its namespace is "" if the file does
// not say.
type configObject struct {
	name, namespace string
	data            map[string]string
}

type configObjects []configObject

func (o object) configObjects() configObjects {
	var all configObjects
	if o.Kind == "ConfigMap" || o.Kind == "Secret" {
		data := map[string]string{}
		for key, value := range o.Data {
			if decoded, err := base64.StdEncoding.DecodeString(value); err == nil && o.Kind == "Secret" {
				value = strings.TrimRight(string(decoded), "\n")
			}
			data[key] = value
		}
		maps.Copy(data, o.StringData)
		all = configObjects{{"the " + o.Kind + " " + o.Metadata.Name, o.Metadata.Namespace, data}}
	}
	for _, item := range o.Items {
		all = append(all, item.configObjects()...)
	}
	return all
}

// lookUp returns the data of the object that a pod refers to; nil if the file does not have it. Where the object or the pod has no
// namespace, the only object of that name is taken.
func (h configObjects) lookUp(name, namespace string) map[string]string {
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

// objectName is the name of a configObject that is referred to as a Secret or as a ConfigMap.
func objectName(secret, configMap *reference) string {
	switch {
	case secret != nil:
		return "the Secret " + secret.Name
	case configMap != nil:
		return "the ConfigMap " + configMap.Name
	}
	return "another object of the cluster"
}

// defineAll defines a variable for each key of an object. An object that is not in the file is reported.
func (s *Settings) defineAll(from envSource, objects configObjects, namespace string) {
	name := objectName(from.SecretRef, from.ConfigMapRef)
	values := objects.lookUp(name, namespace)
	if values == nil {
		s.missing = append(s.missing, name)
	}
	for _, key := range sortedKeys(values) {
		s.define(from.Prefix+key, givenValue{text: values[key], secret: from.SecretRef != nil})
	}
}

func (s *Settings) defineVariables(list []variable, objects configObjects, namespace string) {
	for _, v := range list {
		from := v.ValueFrom
		if from == nil {
			s.define(v.Name, s.expand(v.Value))
			continue
		}
		name, ref := objectName(from.SecretKeyRef, from.ConfigMapKeyRef), cmp.Or(from.SecretKeyRef, from.ConfigMapKeyRef, &reference{})
		if from.FieldRef != nil {
			name = "the pod's field " + from.FieldRef.Path
		}
		data := objects.lookUp(name, namespace)
		value, set := data[ref.Key]
		switch {
		case set:
			s.define(v.Name, givenValue{text: value, secret: from.SecretKeyRef != nil})
		case data == nil || !ref.Optional:
			s.define(v.Name, givenValue{from: name})
		}
	}
}

// handlerArgs returns the handler's arguments: all that follow its name, or the name of another program.
func (s *Settings) handlerArgs(c container) []string {
	all := slices.Concat(c.Command, c.Args)
	for i, arg := range all {
		if path.Base(arg) == "node-termination-handler" {
			return all[i+1:]
		}
		name, _, _ := parseFlag(arg)
		if _, known := ruleOf(envOfFlag(name)); known {
			break // What follows may be a flag's value, even if it is that name.
		}
	}
	if len(c.Command) == 0 {
		return all
	}
	s.remarks = append(s.remarks, "the container's command: it is not the handler itself, and what it sets by its own is not known here; look it up, and set it by hand")
	return all[1:]
}

// readArgs reads the flags of a command line, which override the environment. Like the handler, it parses them as Go does and
// ignores everything from the first argument that is no flag. Unknown flags are reported without their values, which may be
// secrets.
func (s *Settings) readArgs(args []string) error {
	for i := 0; i < len(args); i++ {
		arg := s.expand(args[i])
		name, value, assigned := parseFlag(arg.text)
		switch {
		case name == "" && arg.from != "":
			s.remarks = append(s.remarks, fmt.Sprintf("an argument comes from %s, which is not in this file: look it up there", arg.from))
			continue
		case name == "":
			s.remarks = append(s.remarks, fmt.Sprintf("arguments from the first on that is no flag (%d, which are not shown): the handler does not heed them", len(args)-i))
			return nil
		}
		r, known := ruleOf(envOfFlag(name))
		switch {
		case !known:
			i += s.unknownFlag(arg.text, args[i+1:])
			continue
		case !assigned && r.isBool():
			arg = givenValue{text: "true"}
		case assigned && value == "" && r.isBool():
			return fmt.Errorf("reading settings: the flag --%s has an empty value", name)
		case assigned:
			arg.text = value
		case i+1 == len(args):
			return fmt.Errorf("reading settings: the flag --%s has no value", name)
		default:
			i++
			arg = s.expand(args[i])
		}
		s.set(r.env, arg)
	}
	return nil
}

// parseFlag splits an argument as Go does: one dash or two, a name, and a value after "=". Without a dash there is no name.
func parseFlag(arg string) (name, value string, assigned bool) {
	name, dashed := strings.CutPrefix(arg, "-")
	if !dashed {
		return "", "", false
	}
	return strings.Cut(strings.TrimPrefix(name, "-"), "=")
}

var flagName = regexp.MustCompile("^[a-z][a-z0-9-]*$")

// unknownFlag reports a flag, and returns how many of the arguments after it may be its value. More than one letter after a single
// dash is not shown: some programs take a password that way.
func (s *Settings) unknownFlag(arg string, following []string) int {
	name, _, assigned := parseFlag(arg)
	named := "a flag, which is not shown"
	if flagName.MatchString(name) && (assigned || len(name) == 1 || strings.HasPrefix(arg, "--")) {
		named = "the flag --" + name
	}
	s.unknown = append(s.unknown, named)
	if assigned || len(following) == 0 || strings.HasPrefix(following[0], "-") {
		return 0
	}
	return 1
}

// envOfFlag returns the environment variable that corresponds to a flag.
func envOfFlag(name string) string {
	switch name {
	case "metadata-url":
		return "INSTANCE_METADATA_URL"
	case "pod-namespace":
		return "NAMESPACE"
	}
	return strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// isBool reports whether the setting's flag needs no value.
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
