package migration

import (
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
	// given is what is set, by the name of the environment variable: the last word on each.
	given map[string]known
	// scope are all variables of the container so far, also those that the handler does not know: later ones, and its flags, may
	// refer to them.
	scope map[string]known
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

// known is what a file tells of a value.
type known struct {
	text string
	// from names what in the cluster holds the value, or a part of it, where the file does not.
	from string
	// bare are references in the text to variables that there are not: they are a part of it, as they stand there.
	bare string
	// secret: the text, or a part of it, comes from a Secret. It is not repeated where it need not be.
	secret bool
}

// longest bounds what is read, in bytes: a rendered chart with all that stands beside it is long, and a wrong file may be anything.
const longest = 64 << 20

// Read reads settings: "NAME=value" lines (or with a NUL behind each), values of the Helm chart, or a DaemonSet (or a Deployment, a Pod, a list of
// objects) with the ConfigMaps and Secrets that it takes settings from, whichever it is.
func Read(r io.Reader) (Settings, error) {
	content, err := io.ReadAll(io.LimitReader(r, longest+1))
	if err != nil {
		return Settings{}, fmt.Errorf("reading settings: %w", err)
	}
	if len(content) > longest {
		return Settings{}, fmt.Errorf("reading settings: more than %d MiB (%d bytes); these are not the handler's settings", longest>>20, longest)
	}
	s := Settings{given: map[string]known{}, scope: map[string]known{}}
	if s.environment(string(content)) {
		return s, nil
	}
	values, objects := map[string]any{}, false
	var documents []string
	for _, part := range separator.Split(string(content), -1) {
		var document map[string]any
		if err := yaml.Unmarshal([]byte(part), &document); err != nil {
			return Settings{}, fmt.Errorf("reading settings: neither NAME=value lines nor YAML: %w", yamlFault(err))
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

// repeated is what the errors of a reader of YAML repeat of a text, be it a password that begins with an asterisk.
var repeated = regexp.MustCompile("'[^']*'|\"(?:[^\"\\\\]|\\\\.)*\"|`[^`]*`|, value: .*")

// yamlFault is what is wrong with YAML, without what stands there.
func yamlFault(err error) error { return errors.New(repeated.ReplaceAllString(err.Error(), notShown)) }

// separator is what begins a document of YAML: the rest of its line is a comment, or belongs to the document.
var separator = regexp.MustCompile(`(?m)^---(?:[ \t]|\r?$)`)

// assignment is a variable with its value. The names are those that a container may have, in small letters, too.
var assignment = regexp.MustCompile(`(?s)^(?:export\s+)?([-._a-zA-Z][-._a-zA-Z0-9]*)=(.*)$`)

// environment takes in "NAME=value" lines, or what the kernel tells of a process (/proc/PID/environ), where a NUL ends each. It
// returns false if that is not all that is in there, or if there is nothing.
func (s *Settings) environment(content string) bool {
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
		s.define(m[1], known{text: m[2]})
	}
	return len(found) > 0
}

// unquoted takes one pair of quotes off, as a shell would.
func unquoted(text string) string {
	if n := len(text); n >= 2 && (text[0] == '"' || text[0] == '\'') && text[n-1] == text[0] {
		return text[1 : n-1]
	}
	return text
}

// define takes a variable of the container in. One that the handler does not know is named in the end, without its value, which may
// be a secret.
func (s *Settings) define(name string, v known) {
	s.scope[name] = v
	if ruleOf(name) == nil {
		s.unknown = append(s.unknown, name)
		return
	}
	s.take(name, v)
}

// take takes a setting in, in the place of what it was set to before: to the handler, an empty value is its default.
func (s *Settings) take(env string, v known) {
	switch {
	case v.from != "":
		v = known{from: v.from}
	case v.bare != "" && slices.Contains(freeTexts, env):
		s.remarks = append(s.remarks, fmt.Sprintf("%s: %s stands in it as it is, there as here: nothing in this file defines it", env, v.bare))
	case v.bare != "":
		v = known{from: "the variable " + v.bare}
	case v.text == "":
		v = known{}
	}
	told := env + ": it is set more than once; the last one counts, and a flag before any variable"
	before := s.given[env]
	if before.text != v.text && before != (known{}) && !slices.Contains(s.remarks, told) {
		s.remarks = append(s.remarks, told)
	}
	s.given[env] = v
}

// value is what a setting is set to; empty where it is not set, or where the file does not tell to what.
func (s Settings) value(env string) string { return s.given[env].text }

func sorted[V any](values map[string]V) []string { return slices.Sorted(maps.Keys(values)) }
