package migration

import (
	"regexp"
	"strings"
)

// mention is how a variable's value, or an argument, refers to a variable of the container. Two dollar signs are one.
var mention = regexp.MustCompile(`\$(?:\$|\([^)]*\))`)

// variableName is a name that a variable may have. What stands in parentheses may be anything else, such as a command for a shell.
var variableName = regexp.MustCompile(`^[-._a-zA-Z][-._a-zA-Z0-9]*$`)

// freeTexts are settings in which a dollar sign before parentheses may mean itself.
var freeTexts = []string{"WEBHOOK_TEMPLATE", "WEBHOOK_HEADERS", "KUBERNETES_EVENTS_EXTRA_ANNOTATIONS"}

// expanded is a text with the variables so far in the place of references to them, as the kubelet puts them there. What refers to
// no variable stays, unless an object that is not in the file may define it.
func (s *Settings) expanded(text string) known {
	var from, bare []string
	secret := false
	text = mention.ReplaceAllStringFunc(text, func(found string) string {
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
	v := known{text: text, bare: strings.Join(bare, ", "), secret: secret}
	if len(from) > 0 {
		v.from = "the variable " + strings.Join(from, ", ")
	}
	return v
}
