// Package migration converts the settings of aws-node-termination-handler to a configuration file of nth or nth-queue.
//
// Read (read.go, manifest.go) accepts an environment ("NAME=value" lines), values of the Helm chart, or the DaemonSet or Deployment
// with the ConfigMaps and Secrets that it refers to. Each setting has one rule (rules.go): what it becomes, or why it has no
// counterpart. For (write.go) makes the commented file. Every setting is named, and no secret is shown.
package migration

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Settings are the settings of aws-node-termination-handler that a file sets.
type Settings struct {
	// given has their values, by the names of the environment variables.
	given map[string]value
	// chart names values that are not settings of the program, and unknown names variables and flags without a rule.
	chart, unknown []string
	// remarks are further comments for the file.
	remarks []string

	// target is what For converts for.
	target Target
}

// value is what a setting is set to.
type value struct {
	text string
	// from says where the value is, if the file does not have it: "the Secret webhook".
	from string
	// secret: the text comes from a Secret.
	secret bool
}

// Limits of the input.
const (
	maxInput   = 4 << 20 // bytes
	maxDepth   = 50      // nested lists and maps of YAML
	maxAliases = 100     // of YAML, in one document
)

// Read reads settings in any of their forms. An error names the line where one is known, and repeats nothing of the input.
func Read(r io.Reader) (Settings, error) {
	content, err := io.ReadAll(io.LimitReader(r, maxInput+1))
	if err != nil {
		return Settings{}, fmt.Errorf("reading settings: %w", err)
	}
	s := Settings{given: map[string]value{}}
	if err := s.read(content); err != nil {
		return Settings{}, fmt.Errorf("reading settings: %w", err)
	}
	return s, nil
}

func (s *Settings) read(content []byte) error {
	if len(content) > maxInput {
		return fmt.Errorf("the input must be at most %d MiB", maxInput>>20)
	}
	line := 1
	for text := range strings.Lines(string(content)) {
		if !utf8.ValidString(text) {
			return fmt.Errorf("line %d must be UTF-8", line)
		}
		line++
	}
	if s.readEnvironment(string(content)) {
		return nil
	}
	documents, err := parseYAML(string(content))
	if err != nil {
		return err
	}
	if slices.ContainsFunc(documents, isObject) {
		return s.readManifest(documents)
	}
	values := map[string]any{}
	for _, document := range documents {
		var more map[string]any
		if err := decode(document, &more); err != nil {
			return err
		}
		maps.Copy(values, more)
	}
	return s.readChart(values)
}

// assignment matches a variable and its value.
var assignment = regexp.MustCompile(`(?s)^(?:export\s+)?([-._a-zA-Z][-._a-zA-Z0-9]*)=(.*)$`)

// readEnvironment reads "NAME=value" lines, or the environment of a process (/proc/PID/environ), where each ends with a NUL. It returns
// false, and sets nothing, if there is anything else.
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
		text := m[2]
		if n := len(text); end == "\n" && n >= 2 && (text[0] == '"' || text[0] == '\'') && text[n-1] == text[0] {
			text = text[1 : n-1]
		}
		s.define(m[1], value{text: text})
	}
	return len(found) > 0
}

// secretFiles are the settings that For puts into files with secrets.
var secretFiles = []string{"WEBHOOK_URL", "WEBHOOK_HEADERS", "WEBHOOK_TEMPLATE"}

// define sets a variable of the container: a later one replaces an earlier one, and an empty one means the default. What comes from
// a Secret is dropped here, unless it is true or false, or goes into a file with secrets.
func (s *Settings) define(name string, v value) {
	if _, known := ruleOf(name); !known {
		s.unknown = append(s.unknown, name)
		return
	}
	if _, err := parseBool(v.text); v.secret && err != nil && !slices.Contains(secretFiles, name) {
		v = value{from: "a Secret"}
	}
	s.given[name] = v
}

// text returns what a setting is set to; "" if it is not set, or if the file does not say to what.
func (s Settings) text(env string) string { return s.given[env].text }

func (s Settings) isGiven(env string) bool { return s.given[env] != (value{}) }

func (s Settings) is(env string) bool {
	on, err := parseBool(s.text(env))
	return on && err == nil
}

// yamlLine finds the line in an error of the YAML parser. The rest of the error may repeat a secret.
var yamlLine = regexp.MustCompile(`line \d+`)

func yamlError(err error) error {
	if line := yamlLine.FindString(err.Error()); line != "" {
		return fmt.Errorf("%s: not YAML as expected (nor are these NAME=value lines)", line)
	}
	return errors.New("not YAML as expected (nor NAME=value lines)")
}

// parseYAML returns the documents of a file that are not empty. They are within the limits.
func parseYAML(content string) ([]*yaml.Node, error) {
	var documents []*yaml.Node
	for parser := yaml.NewDecoder(strings.NewReader(content)); ; {
		var document yaml.Node
		err := parser.Decode(&document)
		switch {
		case errors.Is(err, io.EOF) && len(documents) == 0:
			return nil, errors.New("the file has no settings")
		case errors.Is(err, io.EOF):
			return documents, nil
		case err != nil:
			return nil, yamlError(err)
		}
		aliases := maxAliases
		if err := checkLimits(&document, maxDepth, &aliases); err != nil {
			return nil, err
		}
		if content := document.Content; len(content) > 0 && content[0].Tag != "!!null" {
			documents = append(documents, &document)
		}
	}
}

// checkLimits walks a document before anything is made of it: an alias stands for a copy of what it names.
func checkLimits(node *yaml.Node, depth int, aliases *int) error {
	if node.Kind == yaml.AliasNode {
		*aliases--
	}
	switch {
	case depth < 0:
		return fmt.Errorf("line %d: lists and maps are nested more than %d deep", node.Line, maxDepth)
	case *aliases < 0:
		return fmt.Errorf("line %d: more than %d YAML aliases", node.Line, maxAliases)
	}
	for _, child := range node.Content {
		if err := checkLimits(child, depth-1, aliases); err != nil {
			return err
		}
	}
	return nil
}

func decode(node *yaml.Node, into any) error {
	if err := node.Decode(into); err != nil {
		return yamlError(err)
	}
	return nil
}

// chartName is the key under which a chart that depends on the handler's chart has its values.
const chartName = "aws-node-termination-handler"

// readChart reads the values of the Helm chart, or of a chart that depends on it.
func (s *Settings) readChart(values map[string]any) error {
	if own, depends := values[chartName].(map[string]any); depends {
		if len(values) > 1 {
			s.remarks = append(s.remarks, "values outside "+chartName+": they belong to another chart, and are not read")
		}
		values = own
	}
	for _, key := range sortedKeys(values) {
		i := slices.IndexFunc(rules, func(r rule) bool { return r.chart != "" && r.chart == key })
		switch text := chartText(values[key]); {
		case text == "":
		case i >= 0:
			s.define(rules[i].env, value{text: text})
		case !slices.Contains([]string{"extraEnv", "webhookURLSecretName", "webhookTemplateConfigMapName", "webhookTemplateConfigMapKey"}, key):
			s.chart = append(s.chart, key)
		}
	}
	if name := chartText(values["webhookURLSecretName"]); name != "" {
		s.define("WEBHOOK_URL", value{from: "the Secret " + name})
	}
	if name := chartText(values["webhookTemplateConfigMapName"]); name != "" {
		s.define("WEBHOOK_TEMPLATE_FILE", value{from: "the ConfigMap " + name})
	}
	return s.readExtraEnv(values["extraEnv"])
}

// readExtraEnv reads the chart's extraEnv, a list of variables as a container has it.
func (s *Settings) readExtraEnv(list any) error {
	var node yaml.Node
	var variables []variable
	if err := node.Encode(list); err != nil {
		return yamlError(err)
	}
	if err := node.Decode(&variables); err != nil {
		return errors.New("extraEnv must be a list of variables, each with name and value")
	}
	s.defineVariables(variables, nil, "")
	return nil
}

// chartText returns a value of the chart as text; "" for an empty list or map.
func chartText(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case map[string]any:
		if len(v) == 0 {
			return ""
		}
	case []any:
		if len(v) == 0 {
			return ""
		}
	}
	return fmt.Sprint(v)
}

func sortedKeys[V any](values map[string]V) []string { return slices.Sorted(maps.Keys(values)) }
