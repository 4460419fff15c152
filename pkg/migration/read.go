// Package migration converts the settings of aws-node-termination-handler to a configuration file of nth.
//
// Read accepts an environment ("NAME=value" lines), the values of the Helm chart, or the DaemonSet itself as YAML or JSON, with
// its arguments and the ConfigMaps and Secrets that it refers to. Each setting has one rule (rules.go), which says what it
// becomes, or why it has no counterpart. For makes a commented file for nth, or for nth-queue. Nothing that was set is dropped
// silently, and no secret is shown.
package migration

import (
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

// Settings are the handler's settings that were set explicitly.
type Settings struct {
	// given has the last value of each, by the name of the environment variable.
	given map[string]givenValue
	// scope has all variables of the container so far, including those that the handler does not know: later variables, and the
	// arguments, may refer to them.
	scope map[string]givenValue
	// pod names values and fields that only concern the pod, unknown settings without a rule, and missing objects of the cluster
	// that contain settings and are not in the file.
	pod, unknown, missing []string
	// remarks are further comments for the file.
	remarks []string

	// queue and secrets are those of the Target, while For runs.
	queue   bool
	secrets string
}

// givenValue is a value as the file has it.
type givenValue struct {
	text string
	// from names the object or variable that has the value, or a part of it, if the file does not.
	from string
	// undefined lists references in the text to variables that do not exist, which stay as they are.
	undefined string
	// secret: the text, or a part of it, comes from a Secret, and must not be shown.
	secret bool
}

// maxInput is the largest input, in bytes: a rendered chart can be long, and a wrong file may be anything.
const maxInput = 64 << 20

// Read reads settings in whichever form they are: "NAME=value" lines (terminated by newlines or NULs), values of the Helm chart, or a
// DaemonSet (or a Deployment, a Pod, a list of objects) with the ConfigMaps and Secrets that it refers to.
func Read(r io.Reader) (Settings, error) {
	content, err := io.ReadAll(io.LimitReader(r, maxInput+1))
	if err != nil {
		return Settings{}, fmt.Errorf("reading settings: %w", err)
	}
	if len(content) > maxInput {
		return Settings{}, fmt.Errorf("reading settings: more than %d MiB (%d bytes); these are not the handler's settings", maxInput>>20, maxInput)
	}
	s := Settings{given: map[string]givenValue{}, scope: map[string]givenValue{}}
	if s.readEnvironment(string(content)) {
		return s, nil
	}
	values, objects := map[string]any{}, false
	var documents []string
	for _, part := range separator.Split(string(content), -1) {
		var document map[string]any
		if err := yaml.Unmarshal([]byte(part), &document); err != nil {
			return Settings{}, fmt.Errorf("reading settings: neither NAME=value lines nor YAML: %w", yamlError(err))
		}
		if document == nil {
			continue // It has comments at most.
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
		return s, s.readManifest(documents)
	}
	s.readChart(values)
	return s, nil
}

// yamlQuotes matches what errors of the YAML parser repeat of its input. That may be a secret, such as a password that begins with an asterisk.
var yamlQuotes = regexp.MustCompile("'[^']*'|\"(?:[^\"\\\\]|\\\\.)*\"|`[^`]*`|, value: .*")

// yamlError removes what an error of the YAML parser repeats of its input.
func yamlError(err error) error {
	return errors.New(yamlQuotes.ReplaceAllString(err.Error(), notShown))
}

// separator begins a YAML document. The rest of its line is a comment, or belongs to the document.
var separator = regexp.MustCompile(`(?m)^---(?:[ \t]|\r?$)`)

// assignment matches a variable and its value. Kubernetes allows these names, including lower case.
var assignment = regexp.MustCompile(`(?s)^(?:export\s+)?([-._a-zA-Z][-._a-zA-Z0-9]*)=(.*)$`)

// readEnvironment reads "NAME=value" lines, or the environment of a process (/proc/PID/environ), in which each ends with a NUL.
// It returns false if there is anything else, or nothing.
func (s *Settings) readEnvironment(content string) bool {
	end, raw := "\n", strings.Contains(content, "\x00")
	if raw {
		end = "\x00"
	}
	var found [][]string
	for entry := range strings.SplitSeq(content, end) {
		if !raw {
			entry = strings.TrimSpace(entry)
		}
		if entry == "" || !raw && entry[0] == '#' {
			continue
		}
		m := assignment.FindStringSubmatch(entry)
		if m == nil {
			return false
		}
		found = append(found, m)
	}
	for _, m := range found {
		if !raw {
			m[2] = unquoted(m[2])
		}
		s.define(m[1], givenValue{text: m[2]})
	}
	return len(found) > 0
}

// unquoted removes one pair of quotes around the text.
func unquoted(text string) string {
	if n := len(text); n >= 2 && (text[0] == '"' || text[0] == '\'') && text[n-1] == text[0] {
		return text[1 : n-1]
	}
	return text
}

// define sets a variable of the container. A variable that the handler does not know is reported without its value, which may be
// a secret.
func (s *Settings) define(name string, v givenValue) {
	s.scope[name] = v
	if _, known := ruleOf(name); !known {
		s.unknown = append(s.unknown, name)
		return
	}
	s.set(name, v)
}

// set sets one of the handler's settings. An empty value means the default to the handler.
func (s *Settings) set(env string, v givenValue) {
	switch {
	case v.from != "":
		v = givenValue{from: v.from}
	case v.undefined != "" && slices.Contains(freeTexts, env):
		s.remarks = append(s.remarks, fmt.Sprintf("%s: %s stands in it as it is, there as here: nothing in this file defines it", env, v.undefined))
	case v.undefined != "":
		v = givenValue{from: "the variable " + v.undefined}
	case v.text == "":
		v = givenValue{}
	}
	remark := env + ": it is set more than once; the last one counts, and a flag before any variable"
	before := s.given[env]
	if before.text != v.text && before != (givenValue{}) && !slices.Contains(s.remarks, remark) {
		s.remarks = append(s.remarks, remark)
	}
	s.given[env] = v
}

// value returns what a setting is set to; "" if it is not set, or if the file does not say to what.
func (s Settings) value(env string) string { return s.given[env].text }

// isGiven reports whether a setting is set, whether or not the file says to what.
func (s Settings) isGiven(env string) bool { return s.given[env] != (givenValue{}) }

func sortedKeys[V any](values map[string]V) []string { return slices.Sorted(maps.Keys(values)) }

// variableReference matches a reference to a variable of the container, in another variable or an argument. $$ is an escaped $.
var variableReference = regexp.MustCompile(`\$(?:\$|\([^)]*\))`)

// variableName matches a valid name of a variable. Other text in parentheses may be anything, such as a shell command.
var variableName = regexp.MustCompile(`^[-._a-zA-Z][-._a-zA-Z0-9]*$`)

// freeTexts are settings that may contain a literal "$(".
var freeTexts = []string{"WEBHOOK_TEMPLATE", "WEBHOOK_HEADERS", "KUBERNETES_EVENTS_EXTRA_ANNOTATIONS"}

// expand replaces references to variables as the kubelet does, which leaves references to undefined variables as they are. A
// variable may still be defined by an object that is not in the file.
func (s *Settings) expand(text string) givenValue {
	var from, bare []string
	secret := false
	text = variableReference.ReplaceAllStringFunc(text, func(found string) string {
		if found == "$$" {
			return "$"
		}
		name := found[2 : len(found)-1]
		v, defined := s.scope[name]
		switch {
		case defined && v.from == "":
			secret = secret || v.secret
			return v.text
		case !variableName.MatchString(name):
		case defined || len(s.missing) > 0:
			from = append(from, found)
		default:
			bare = append(bare, found)
		}
		return found
	})
	v := givenValue{text: text, undefined: strings.Join(bare, ", "), secret: secret}
	if len(from) > 0 {
		v.from = "the variable " + strings.Join(from, ", ")
	}
	return v
}

// chartName is the key under which a chart that depends on the handler's has its values.
const chartName = "aws-node-termination-handler"

// readChart reads the values of the Helm chart, or of a chart that depends on it.
func (s *Settings) readChart(values map[string]any) {
	own, depends := values[chartName].(map[string]any)
	if !depends {
		s.readOwnChart(values)
		return
	}
	if len(values) > 1 {
		s.remarks = append(s.remarks, "values beside "+chartName+": they are another chart's, and not read")
	}
	s.readOwnChart(own)
}

// readOwnChart reads the values of the Helm chart in the order in which the chart makes variables of them.
func (s *Settings) readOwnChart(values map[string]any) {
	for _, name := range []string{"NODE_NAME", "POD_NAME", "NAMESPACE"} {
		s.scope[name] = givenValue{from: "the pod's own fields"} // The chart sets them before all others.
	}
	for _, r := range rules {
		if value := values[r.chart]; r.chart != "" && value != nil {
			s.define(r.env, s.expand(chartText(value)))
		}
	}
	s.readChartWebhook(values)
	s.readExtraEnv(values["extraEnv"])
	for _, key := range sortedKeys(values) {
		switch {
		case slices.Contains(webhookObjectKeys, key), key == "extraEnv":
		case slices.ContainsFunc(rules, func(r rule) bool { return r.chart != "" && r.chart == key }):
		case slices.Contains(placementValues, key) && chartText(values[key]) == "":
		case slices.Contains(podValues, key):
			s.pod = append(s.pod, key)
		case chartText(values[key]) != "":
			s.unknown = append(s.unknown, key)
		}
	}
}

// webhookObjectKeys are the chart's values that name objects with settings of the webhook.
var webhookObjectKeys = []string{"webhookURLSecretName", "webhookTemplateConfigMapName", "webhookTemplateConfigMapKey"}

// readChartWebhook notes the settings that are in objects of the cluster. They override the chart's other values.
func (s *Settings) readChartWebhook(values map[string]any) {
	secret, template, key := chartText(values[webhookObjectKeys[0]]), chartText(values[webhookObjectKeys[1]]), chartText(values[webhookObjectKeys[2]])
	if secret != "" {
		s.define("WEBHOOK_URL", givenValue{from: "the Secret " + secret})
	}
	switch {
	case template != "" && key != "":
		s.define("WEBHOOK_TEMPLATE_FILE", givenValue{from: "the ConfigMap " + template})
	case template != key:
		s.remarks = append(s.remarks, "webhookTemplateConfigMapName and webhookTemplateConfigMapKey: one does not count without the other")
	}
}

// readExtraEnv reads the chart's extraEnv: a list of variables, as in a container.
func (s *Settings) readExtraEnv(value any) {
	var list []variable
	encoded, err := json.Marshal(value)
	if err == nil {
		err = yaml.Unmarshal(encoded, &list) // Unlike JSON's decoder, it accepts numbers for strings.
	}
	if err != nil {
		s.unknown = append(s.unknown, "extraEnv, which is no list of variables")
	}
	s.defineVariables(list, nil, "")
}

// chartText is a value of the chart as its template renders it.
func chartText(value any) string {
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
