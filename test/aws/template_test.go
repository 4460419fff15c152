package aws_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// template is CloudFormation's, with its functions in the long form that JSON has.
type template struct {
	Parameters map[string]parameter `yaml:"Parameters"`
	Conditions map[string]any       `yaml:"Conditions"`
	Resources  map[string]any       `yaml:"Resources"`
	Outputs    map[string]any       `yaml:"Outputs"`
	Rules      map[string]any       `yaml:"Rules"`
	Metadata   any                  `yaml:"Metadata"`
}

type parameter struct {
	Type           string `yaml:"Type"`
	Default        any    `yaml:"Default"`
	AllowedValues  []any  `yaml:"AllowedValues"`
	AllowedPattern string `yaml:"AllowedPattern"`
	Description    string `yaml:"Description"`
}

func readTemplate(t *testing.T) template {
	t.Helper()
	var root yaml.Node
	if err := yaml.Unmarshal(read(t, "nth-queue.yaml"), &root); err != nil {
		t.Fatal(err)
	}
	lengthen(&root)
	var out template
	if err := root.Decode(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

// lengthen turns YAML's tags for functions, such as !Ref, into what they stand for: a mapping with one key.
func lengthen(n *yaml.Node) {
	for _, child := range n.Content {
		lengthen(child)
	}
	if !strings.HasPrefix(n.Tag, "!") || strings.HasPrefix(n.Tag, "!!") {
		return
	}
	name := "Fn::" + n.Tag[1:]
	if n.Tag == "!Ref" || n.Tag == "!Condition" {
		name = n.Tag[1:]
	}
	value := *n
	value.Tag, value.Style = "", value.Style&^yaml.TaggedStyle
	if n.Tag == "!GetAtt" {
		resource, attribute, _ := strings.Cut(n.Value, ".")
		value = yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{
			{Kind: yaml.ScalarNode, Value: resource}, {Kind: yaml.ScalarNode, Value: attribute},
		}}
	}
	*n = yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{{Kind: yaml.ScalarNode, Value: name}, &value}}
}

// stack is what a template makes with some parameters.
type stack struct {
	template   template
	parameters map[string]string
	resources  map[string]any // with their functions worked out
	outputs    map[string]any
	faults     []string
}

// attributes are what can be asked of a resource by GetAtt, of all that AWS has as far as it is used here.
var attributes = map[string][]string{
	"AWS::SQS::Queue": {"Arn"}, "AWS::Events::Rule": {"Arn"}, "AWS::IAM::Role": {"Arn"}, "AWS::KMS::Key": {"Arn"},
}

// make works a template out as CloudFormation does, and notes what it would refuse.
func (tpl template) make(parameters map[string]string) *stack {
	s := &stack{template: tpl, parameters: map[string]string{}, resources: map[string]any{}, outputs: map[string]any{}}
	for name, p := range tpl.Parameters {
		s.parameters[name] = fmt.Sprint(p.Default)
		if value, given := parameters[name]; given {
			s.parameters[name] = value
		}
	}
	for name, raw := range tpl.Resources {
		if s.wanted(raw) {
			s.resources[name] = raw
		}
	}
	worked := map[string]any{}
	for name, raw := range s.resources {
		worked[name] = s.value(name, raw)
	}
	for name, raw := range tpl.Outputs {
		if s.wanted(raw) {
			s.outputs[name] = s.value(name, raw)
		}
	}
	s.resources = worked
	return s
}

func (s *stack) wanted(raw any) bool {
	condition, ok := raw.(map[string]any)["Condition"]
	return !ok || s.condition(condition.(string))
}

func (s *stack) condition(name string) bool {
	raw, ok := s.template.Conditions[name]
	if !ok {
		s.fault("there is no condition %s", name)
		return false
	}
	return s.holds(raw)
}

// holds works out what may stand in a condition.
func (s *stack) holds(raw any) bool {
	for name, argument := range raw.(map[string]any) {
		list, _ := argument.([]any)
		switch name {
		case "Condition":
			return s.condition(argument.(string))
		case "Fn::Equals":
			return s.value("a condition", list[0]) == s.value("a condition", list[1])
		case "Fn::Not":
			return !s.holds(list[0])
		case "Fn::And":
			return !slices.ContainsFunc(list, func(one any) bool { return !s.holds(one) })
		}
	}
	s.fault("%v is no condition", raw)
	return false
}

// none is the value of AWS::NoValue: what has it is not there.
type none struct{}

// value works out what stands at a place.
func (s *stack) value(place string, raw any) any {
	switch v := raw.(type) {
	case []any:
		list := []any{}
		for _, one := range v {
			if value := s.value(place, one); value != any(none{}) {
				list = append(list, value)
			}
		}
		return list
	case map[string]any:
		if len(v) == 1 {
			for name, argument := range v {
				if name == "Ref" || strings.HasPrefix(name, "Fn::") {
					return s.function(place, name, argument)
				}
			}
		}
		object := map[string]any{}
		for key, one := range v {
			if value := s.value(place, one); value != any(none{}) {
				object[key] = value
			}
		}
		return object
	}
	return raw
}

func (s *stack) function(place, name string, argument any) any {
	switch name {
	case "Ref":
		return s.ref(place, argument.(string))
	case "Fn::Sub":
		return substitution.ReplaceAllStringFunc(argument.(string), func(word string) string {
			return fmt.Sprint(s.ref(place, word[2:len(word)-1]))
		})
	case "Fn::GetAtt":
		list := argument.([]any)
		resource, attribute := list[0].(string), list[1].(string)
		raw, ok := s.resources[resource]
		switch {
		case !ok:
			s.fault("%s refers to the resource %s, which there is not", place, resource)
		case !slices.Contains(attributes[raw.(map[string]any)["Type"].(string)], attribute):
			s.fault("%s asks %s for %s, which it has not", place, resource, attribute)
		}
		return "<" + resource + "." + attribute + ">"
	case "Fn::If":
		list := argument.([]any)
		if s.condition(list[0].(string)) {
			return s.value(place, list[1])
		}
		return s.value(place, list[2])
	}
	s.fault("%s uses %s, of which this test knows nothing", place, name)
	return nil
}

var substitution = regexp.MustCompile(`\$\{[A-Za-z0-9:.]+\}`)

// pseudo are the parameters that are always there.
var pseudo = map[string]any{
	"AWS::AccountId": "123456789012", "AWS::Partition": "aws", "AWS::Region": "eu-central-1", "AWS::URLSuffix": "amazonaws.com",
	"AWS::NoValue": none{},
}

func (s *stack) ref(place, name string) any {
	if value, ok := pseudo[name]; ok {
		return value
	}
	if value, ok := s.parameters[name]; ok {
		return value
	}
	if _, ok := s.resources[name]; !ok {
		s.fault("%s refers to %s, which there is not", place, name)
	}
	return "<" + name + ">"
}

func (s *stack) fault(format string, args ...any) {
	s.faults = append(s.faults, fmt.Sprintf(format, args...))
}
