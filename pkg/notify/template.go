package notify

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"strings"
	"sync"
	"text/template/parse"
	"time"

	template "github.com/DataDog/datadog-agent/pkg/template/text"
)

// defaultTemplate is understood by Slack, Mattermost, Rocket.Chat and compatible services.
const defaultTemplate = `{"text": "{{ escapeSlack .Text }}"}`

// Template renders Fields as messages, one at a time. Its engine is a copy of the standard library's that calls no methods. With those, the
// linker would keep every exported method of every type, and the program would be two thirds larger. So templates format times with functions.
type Template struct {
	parsed *template.Template

	mu     sync.Mutex // held while a message is rendered
	budget *budget    // that of the message that is being rendered; the functions of parsed spend it
}

// CompileTemplate compiles a template, or nth's own if the text is empty. It renders nothing. Errors begin with the name of the template, and
// with the line where they concern one.
func CompileTemplate(name, text string) (*Template, error) {
	if text == "" {
		text = defaultTemplate
	}
	if len(text) > maxTemplateSize {
		return nil, fmt.Errorf("%s: it is longer than %d bytes", name, maxTemplateSize)
	}
	b := &budget{}
	parsed, err := template.New(name).Funcs(b.functions()).Parse(text)
	if err != nil {
		return nil, templateError(err)
	}
	for _, defined := range parsed.Templates() {
		countSteps(defined.Root)
	}
	return &Template{parsed: parsed, budget: b}, nil
}

// Try renders a notice of every kind and outcome. The error names the line that fails for one of them, or says that the message is not
// JSON although the content type says so.
func (t *Template) Try(contentType string) error {
	silent := true
	for _, sample := range Samples() {
		text, err := t.message(sample, contentType)
		if err != nil {
			return err
		}
		silent = silent && text == ""
	}
	if silent {
		return fmt.Errorf("%s: it gives nothing, for no notice", t.parsed.Name())
	}
	return nil
}

// message renders one message; "" if there is nothing to post. It is an error if the message is not JSON although the content type says so.
func (t *Template) message(f Fields, contentType string) (string, error) {
	text, err := t.Render(f)
	if err == nil && text != "" && isJSON(contentType) && !json.Valid([]byte(text)) {
		err = fmt.Errorf("%s: it gives no JSON, which is what the Content-Type says that it is, for a notice that is %q: %w", t.parsed.Name(), f.Outcome, jsonError(text))
	}
	return text, err
}

// Render renders one message. It returns "" if the template gives nothing but white space: then there is nothing to post.
func (t *Template) Render(f Fields) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	*t.budget = budget{work: maxWork, until: time.Now().Add(maxRenderTime)}
	if err := t.parsed.Execute(t.budget, f); err != nil {
		return "", templateError(err)
	}
	if strings.TrimSpace(t.budget.text.String()) == "" {
		return "", nil
	}
	return t.budget.text.String(), nil
}

// templateError returns an error of the engine, which names the template and the line, without the engine's prefix. Where a template calls a
// method of a time, the error names the function to use instead.
func templateError(err error) error {
	text := strings.TrimPrefix(err.Error(), "template: ")
	if strings.HasSuffix(text, " in type time.Time") {
		text += ", whose methods are unknown here; try {{ date \"15:04\" .StartTime }}"
	}
	return errors.New(text)
}

// isJSON reports whether a message of this content type must be JSON.
func isJSON(contentType string) bool {
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && (media == "application/json" || strings.HasSuffix(media, "+json"))
}

// jsonError returns nil if the text is JSON, and otherwise an error that names the line.
func jsonError(text string) error {
	var whole json.RawMessage
	err := json.Unmarshal([]byte(text), &whole)
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		line := 1 + strings.Count(text[:min(int(syntax.Offset), len(text))], "\n")
		return fmt.Errorf("line %d of the message: %w", line, err)
	}
	return err
}

// countSteps puts an empty text between the steps of a template, also within loops and branches. The engine writes each text to the budget,
// whose Write counts the calls. So even a loop without output ends.
func countSteps(list *parse.ListNode) {
	if list == nil { // an "if" without an "else", or a template that only defines others
		return
	}
	step := &parse.TextNode{NodeType: parse.NodeText, Pos: list.Pos}
	counted := []parse.Node{step}
	for _, node := range list.Nodes {
		switch n := node.(type) {
		case *parse.IfNode:
			countSteps(n.List)
			countSteps(n.ElseList)
		case *parse.RangeNode:
			countSteps(n.List)
			countSteps(n.ElseList)
		case *parse.WithNode:
			countSteps(n.List)
			countSteps(n.ElseList)
		}
		counted = append(counted, node, step)
	}
	list.Nodes = counted
}
