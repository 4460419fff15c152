package notify

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"strings"

	template "github.com/DataDog/datadog-agent/pkg/template/text"
)

// defaultTemplate is understood by Slack, Mattermost, Rocket.Chat and whatever has learned from them.
const defaultTemplate = `{"text": "{{ .Text }}"}`

// longestText is the largest message that is made, in bytes.
const longestText = 128 << 10

// Template makes messages out of Fields.
type Template struct{ parsed *template.Template }

// CompileTemplate reads a template; the empty one is nth's own. It is tried with a notice of every kind and outcome: what
// cannot be rendered with one of them, or is no JSON where the content type says so, is refused with its line. The name
// is used in errors.
func CompileTemplate(name, text, contentType string) (*Template, error) {
	if text == "" {
		text = defaultTemplate
	}
	if len(text) > longestTemplate {
		return nil, fmt.Errorf("%s: it is longer than %d bytes", name, longestTemplate)
	}
	parsed, err := template.New(name).Funcs(functions()).Parse(text)
	if err != nil {
		return nil, templateFault(err)
	}
	for _, defined := range parsed.Templates() {
		rewrite(defined.Root)
	}
	t := &Template{parsed}
	silent := true
	for _, sample := range Samples() {
		rendered, err := t.Render(sample)
		if err != nil {
			return nil, err
		}
		silent = silent && rendered == ""
		if rendered != "" && isJSON(contentType) && !json.Valid([]byte(rendered)) {
			return nil, fmt.Errorf("%s: it gives no JSON, which is what the Content-Type says that it is, for a notice that is %q: %w",
				name, sample.Outcome, jsonFault(rendered))
		}
	}
	if silent {
		return nil, fmt.Errorf("%s: it gives nothing, for no notice", name)
	}
	return t, nil
}

// Render makes one message. It is empty where the template gives nothing but space: then there is nothing to post.
func (t *Template) Render(f Fields) (string, error) {
	into := &bounded{}
	if err := t.parsed.Execute(into, f); err != nil {
		return "", templateFault(err)
	}
	if strings.TrimSpace(into.text.String()) == "" {
		return "", nil
	}
	return into.text.String(), nil
}

// bounded takes a message of a bearable length.
type bounded struct{ text strings.Builder }

var errTooLong = fmt.Errorf("it gives more than %d bytes", longestText)

func (b *bounded) Write(p []byte) (int, error) {
	if b.text.Len()+len(p) > longestText {
		return 0, errTooLong
	}
	return b.text.Write(p)
}

// templateFault is what text/template says, which names the template, the line and the place, without the word that it
// puts before.
func templateFault(err error) error {
	return errors.New(strings.TrimPrefix(err.Error(), "template: "))
}

func isJSON(contentType string) bool {
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && (media == "application/json" || strings.HasSuffix(media, "+json"))
}

func jsonFault(text string) error {
	var whole json.RawMessage
	err := json.Unmarshal([]byte(text), &whole)
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		line := 1 + strings.Count(text[:min(int(syntax.Offset), len(text))], "\n")
		return fmt.Errorf("line %d of the message: %w", line, err)
	}
	return err
}
