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

	"go.yaml.in/yaml/v3"
)

// variable is an environment variable of a container.
type variable struct {
	Name      string
	Value     string
	ValueFrom *struct {
		SecretKeyRef    *reference `yaml:"secretKeyRef"`
		ConfigMapKeyRef *reference `yaml:"configMapKeyRef"`
	} `yaml:"valueFrom"`
}

type reference struct{ Name, Key string }

type container struct {
	Name, Image   string
	Command, Args []string
	Env           []variable
	EnvFrom       []struct {
		Prefix       string
		ConfigMapRef *reference `yaml:"configMapRef"`
		SecretRef    *reference `yaml:"secretRef"`
	} `yaml:"envFrom"`
}

type podSpec struct {
	Containers   []container
	NodeSelector map[string]any `yaml:"nodeSelector"`
	Affinity     map[string]any
}

// pod is a container with what its pod says of it.
type pod struct {
	spec      podSpec
	container container
	namespace string
}

// object is a workload, a ConfigMap, a Secret, or a list of objects.
type object struct {
	Kind     string
	Metadata struct{ Name, Namespace string }
	Spec     struct {
		podSpec  `yaml:",inline"`
		Template struct{ Spec podSpec }
	}
	Items      []object
	Data       map[string]string
	StringData map[string]string `yaml:"stringData"`
}

// isObject reports whether a document is an object of Kubernetes.
func isObject(document *yaml.Node) bool {
	var o struct{ Kind string }
	return document.Decode(&o) == nil && o.Kind != ""
}

// readManifest reads the handler's container, and takes values from the ConfigMaps and Secrets in the same file.
func (s *Settings) readManifest(documents []*yaml.Node) error {
	var objects []object
	for _, document := range documents {
		var o object
		if err := decode(document, &o); err != nil {
			return err
		}
		objects = append(append(objects, o), o.Items...)
	}
	var all []pod
	for _, o := range objects {
		for _, spec := range []podSpec{o.Spec.podSpec, o.Spec.Template.Spec} {
			for _, c := range spec.Containers {
				all = append(all, pod{spec, c, o.Metadata.Namespace})
			}
		}
	}
	if len(all) > 1 { // The others may be sidecars.
		all = slices.DeleteFunc(all, func(p pod) bool {
			return !strings.Contains(p.container.Image+" "+p.container.Name, "node-termination-handler")
		})
	}
	if len(all) != 1 {
		return errors.New("there must be one container, or one with node-termination-handler in its name or image")
	}
	s.readPod(all[0], objects)
	return nil
}

func (s *Settings) readPod(p pod, objects []object) {
	if len(p.spec.NodeSelector) > 0 {
		s.chart = append(s.chart, "nodeSelector")
	}
	if len(p.spec.Affinity) > 0 {
		s.chart = append(s.chart, "affinity")
	}
	for _, from := range p.container.EnvFrom {
		name, ref := "the ConfigMap ", cmp.Or(from.ConfigMapRef, from.SecretRef, &reference{})
		if from.SecretRef != nil {
			name = "the Secret "
		}
		data, ok := lookUp(objects, name+ref.Name, p.namespace)
		if !ok {
			s.remarks = append(s.remarks, name+ref.Name+": may have settings, and is not in this file: add it after a line --- and import again")
		}
		for _, key := range sortedKeys(data) {
			s.define(from.Prefix+key, value{text: data[key], secret: from.SecretRef != nil})
		}
	}
	s.defineVariables(p.container.Env, objects, p.namespace)
	s.readArgs(p.container)
}

// lookUp returns the data of "the ConfigMap NAME" or "the Secret NAME" in a namespace. An object or a pod without a namespace is in
// any; two that match are not ok.
func lookUp(objects []object, name, namespace string) (data map[string]string, ok bool) {
	found := 0
	for _, o := range objects {
		other := o.Metadata.Namespace != namespace && o.Metadata.Namespace != "" && namespace != ""
		if "the "+o.Kind+" "+o.Metadata.Name != name || other {
			continue
		}
		found, data = found+1, map[string]string{}
		for key, text := range o.Data {
			if decoded, err := base64.StdEncoding.DecodeString(text); err == nil && o.Kind == "Secret" {
				text = strings.TrimRight(string(decoded), "\n")
			}
			data[key] = text
		}
		maps.Copy(data, o.StringData)
	}
	return data, found == 1
}

func (s *Settings) defineVariables(list []variable, objects []object, namespace string) {
	for _, v := range list {
		switch from := v.ValueFrom; {
		case from == nil:
			s.define(v.Name, literal(v.Value))
		case from.ConfigMapKeyRef != nil:
			s.defineFrom(v.Name, "the ConfigMap ", *from.ConfigMapKeyRef, objects, namespace)
		case from.SecretKeyRef != nil:
			s.defineFrom(v.Name, "the Secret ", *from.SecretKeyRef, objects, namespace)
		default:
			s.define(v.Name, value{from: "a field of the pod"})
		}
	}
}

func (s *Settings) defineFrom(env, kind string, ref reference, objects []object, namespace string) {
	data, _ := lookUp(objects, kind+ref.Name, namespace)
	v := value{from: kind + ref.Name}
	if text, ok := data[ref.Key]; ok {
		v = value{text: text, secret: kind == "the Secret "}
	}
	s.define(env, v)
}

// literal is the value of a variable or an argument. What refers to another variable, "$(NAME)", is not expanded.
func literal(text string) value {
	if strings.Contains(text, "$(") || strings.Contains(text, "$$") {
		return value{from: "another variable, by a reference $(NAME)"}
	}
	return value{text: text}
}

// readArgs reads the flags of the command line, which override the environment.
func (s *Settings) readArgs(c container) {
	args := c.Args
	if len(c.Command) > 0 {
		if path.Base(c.Command[0]) != "node-termination-handler" {
			s.remarks = append(s.remarks, "the container's command: it is not the handler itself; look up what it sets")
			return
		}
		args = slices.Concat(c.Command[1:], c.Args)
	}
	for i := 0; i < len(args); i++ {
		arg := args[i]
		name, text, assigned := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-"), "=")
		r, known := ruleOf(envOfFlag(name))
		switch follows := i+1 < len(args) && !strings.HasPrefix(args[i+1], "-"); {
		case !strings.HasPrefix(arg, "-"):
			s.remarks = append(s.remarks, fmt.Sprintf("argument %d, which is not shown, and all after it: the first is not a flag, so the handler ignores them", i+1))
			return
		case assigned:
		case known && r.isBool():
			text = "true"
		case follows:
			i++
			text = args[i]
		}
		switch {
		case known:
			s.given[r.env] = literal(text)
		case flagName.MatchString(name) && (assigned || strings.HasPrefix(arg, "--")):
			s.unknown = append(s.unknown, "the flag --"+name)
		default:
			s.unknown = append(s.unknown, "a flag, which is not shown")
		}
	}
}

// flagName matches what is certainly the name of a flag. Another text, such as "-ppassword", may be a secret.
var flagName = regexp.MustCompile("^[a-z][a-z0-9-]*$")

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

// isBool reports whether the flag of a setting needs no value.
func (r rule) isBool() bool {
	return slices.ContainsFunc([]string{"ENABLE_", "CHECK_", "USE_", "DELETE_"}, func(prefix string) bool { return strings.HasPrefix(r.env, prefix) }) ||
		slices.Contains([]string{
			"CORDON_ONLY", "DRY_RUN", "IGNORE_DAEMON_SETS", "TAINT_NODE", "EXCLUDE_FROM_LOAD_BALANCERS", "JSON_LOGGING", "EMIT_KUBERNETES_EVENTS",
		}, r.env)
}
