package notify

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"reflect"
	"strings"
	"sync"
	"text/template/parse"
	"time"

	template "github.com/DataDog/datadog-agent/pkg/template/text"
)

// defaultTemplate is understood by Slack, Mattermost, Rocket.Chat and compatible services.
const defaultTemplate = `{"text": "{{ escapeSlack .Text }}"}`

// Template renders Fields as messages, one at a time.
type Template struct {
	parsed *template.Template

	mu     sync.Mutex
	budget *budget // that of the message that is being rendered
}

// CompileTemplate compiles a template, or nth's own if the text is empty. It renders nothing. The name of the template is used in
// errors, which name the line, too.
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
		rewrite(defined.Root)
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

// message renders one message, which must be JSON if the content type says so.
func (t *Template) message(f Fields, contentType string) (string, error) {
	text, err := t.Render(f)
	if err == nil && text != "" && isJSON(contentType) && !json.Valid([]byte(text)) {
		err = fmt.Errorf("%s: it gives no JSON, which is what the Content-Type says that it is, for a notice that is %q: %w", t.parsed.Name(), f.Outcome, jsonError(text))
	}
	return text, err
}

// Render renders one message. It is empty if the template gives nothing but space: then there is nothing to post.
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

// templateError removes the prefix of text/template's errors, which name the template, the line and the place.
func templateError(err error) error {
	return errors.New(strings.TrimPrefix(err.Error(), "template: "))
}

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

// The template engine is the standard library's without method calls. With them, the linker would have to keep every
// exported method of every type of the program, which would make it two thirds larger, while templates only need the methods
// of times and durations. So a chain that may contain a method call is rewritten into a function call when the template is
// compiled: {{ .StartTime.Format "15:04" }} becomes {{ method "Format" .StartTime "15:04" }}.

const methodFunction = "method"

// methods are the methods that a template can call, by the receiver's type: all of times, of durations and of the types that these
// return, except methods that return bytes or several values, which a template cannot use.
var methods = map[reflect.Type]map[string]any{
	reflect.TypeFor[time.Time](): {
		"Add": time.Time.Add, "AddDate": time.Time.AddDate, "After": time.Time.After, "Before": time.Time.Before,
		"Compare": time.Time.Compare, "Day": time.Time.Day, "Equal": time.Time.Equal, "Format": time.Time.Format,
		"GoString": time.Time.GoString, "Hour": time.Time.Hour, "In": time.Time.In, "IsDST": time.Time.IsDST, "IsZero": time.Time.IsZero,
		"Local": time.Time.Local, "Location": time.Time.Location, "Minute": time.Time.Minute, "Month": time.Time.Month,
		"Nanosecond": time.Time.Nanosecond, "Round": time.Time.Round, "Second": time.Time.Second, "String": time.Time.String,
		"Sub": time.Time.Sub, "Truncate": time.Time.Truncate, "UTC": time.Time.UTC, "Unix": time.Time.Unix,
		"UnixMicro": time.Time.UnixMicro, "UnixMilli": time.Time.UnixMilli, "UnixNano": time.Time.UnixNano,
		"Weekday": time.Time.Weekday, "Year": time.Time.Year, "YearDay": time.Time.YearDay,
	},
	reflect.TypeFor[time.Duration](): {
		"Abs": time.Duration.Abs, "Hours": time.Duration.Hours, "Microseconds": time.Duration.Microseconds,
		"Milliseconds": time.Duration.Milliseconds, "Minutes": time.Duration.Minutes, "Nanoseconds": time.Duration.Nanoseconds,
		"Round": time.Duration.Round, "Seconds": time.Duration.Seconds, "String": time.Duration.String, "Truncate": time.Duration.Truncate,
	},
	reflect.TypeFor[time.Month]():     {"String": time.Month.String},
	reflect.TypeFor[time.Weekday]():   {"String": time.Weekday.String},
	reflect.TypeFor[*time.Location](): {"String": (*time.Location).String},
}

// mayBeMethod reports whether any type has a method of this name. Only the receiver decides: in a map, the name is a key.
func mayBeMethod(name string) bool {
	for _, named := range methods {
		if named[name] != nil {
			return true
		}
	}
	return false
}

// callMethod implements methodFunction. A missing key gives no value, as everywhere in a template.
func callMethod(name string, receiver any, args ...any) (reflect.Value, error) {
	on := reflect.ValueOf(receiver)
	if receiver != nil {
		if method := methods[on.Type()][name]; method != nil {
			return callWith(reflect.ValueOf(method), name, append([]any{receiver}, args...))
		}
	}
	switch {
	case on.Kind() == reflect.Map && on.Type().Key().Kind() == reflect.String && len(args) == 0:
		return on.MapIndex(reflect.ValueOf(name).Convert(on.Type().Key())), nil
	case on.Kind() == reflect.Struct && len(args) == 0 && on.FieldByName(name).IsValid():
		return on.FieldByName(name), nil
	}
	return reflect.Value{}, fmt.Errorf("%T has no %s", receiver, name)
}

// callWith calls a method expression with its receiver as the first argument. A template's integers are converted.
func callWith(method reflect.Value, name string, args []any) (reflect.Value, error) {
	takes := method.Type()
	if len(args) != takes.NumIn() {
		return reflect.Value{}, fmt.Errorf("%s takes %d arguments, not %d", name, takes.NumIn()-1, len(args)-1)
	}
	values := make([]reflect.Value, len(args))
	for i, arg := range args {
		value, want := reflect.ValueOf(arg), takes.In(i)
		if value.IsValid() && value.CanInt() && want.Kind() >= reflect.Int && want.Kind() <= reflect.Int64 {
			value = value.Convert(want)
		}
		if !value.IsValid() || !value.Type().AssignableTo(want) {
			return reflect.Value{}, fmt.Errorf("%s takes a %s, not a %T", name, want, arg)
		}
		values[i] = value
	}
	return method.Call(values)[0], nil
}

// rewrite turns possible method calls below a node into calls of methodFunction, and has every step counted.
func rewrite(node parse.Node) {
	switch n := node.(type) {
	case *parse.ListNode:
		if n == nil {
			return
		}
		step := &parse.TextNode{NodeType: parse.NodeText, Pos: n.Pos} // See budget.Write.
		counted := []parse.Node{step}
		for _, child := range n.Nodes {
			rewrite(child)
			counted = append(counted, child, step)
		}
		n.Nodes = counted
	case *parse.ActionNode:
		rewrite(n.Pipe)
	case *parse.IfNode:
		rewriteBranch(&n.BranchNode)
	case *parse.RangeNode:
		rewriteBranch(&n.BranchNode)
	case *parse.WithNode:
		rewriteBranch(&n.BranchNode)
	case *parse.TemplateNode:
		rewrite(n.Pipe)
	case *parse.PipeNode:
		if n == nil {
			return
		}
		for _, command := range n.Cmds {
			rewriteCommand(command)
		}
	}
}

func rewriteBranch(n *parse.BranchNode) {
	rewrite(n.Pipe)
	rewrite(n.List)
	rewrite(n.ElseList)
}

// rewriteCommand rewrites a command's operands. If the first becomes a call, the others become its arguments.
func rewriteCommand(c *parse.CommandNode) {
	for i, arg := range c.Args {
		c.Args[i] = rewriteOperand(arg)
	}
	if call, ok := c.Args[0].(*parse.PipeNode); ok && len(call.Cmds) == 1 && isCall(call.Cmds[0]) {
		c.Args = append(call.Cmds[0].Args, c.Args[1:]...)
	}
}

func isCall(c *parse.CommandNode) bool {
	f, ok := c.Args[0].(*parse.IdentifierNode)
	return ok && f.Ident == methodFunction
}

// rewriteOperand rewrites one operand: a chain of fields, from the dot, a variable or something in parentheses.
func rewriteOperand(node parse.Node) parse.Node {
	switch n := node.(type) {
	case *parse.PipeNode:
		rewrite(n)
	case *parse.FieldNode:
		return rewriteChain(&parse.DotNode{NodeType: parse.NodeDot, Pos: n.Pos}, n, n.Ident)
	case *parse.VariableNode:
		variable := *n
		variable.Ident = n.Ident[:1]
		return rewriteChain(&variable, n, n.Ident[1:])
	case *parse.ChainNode:
		rewrite(n.Node)
		return rewriteChain(n.Node, n, n.Field)
	}
	return node
}

// rewriteChain rewrites a chain of names that begins at a node; it returns the original if no name may be a method.
func rewriteChain(from, original parse.Node, names []string) parse.Node {
	rewritten := false
	for _, name := range names {
		if !mayBeMethod(name) {
			from = &parse.ChainNode{NodeType: parse.NodeChain, Pos: original.Position(), Node: from, Field: []string{name}}
			continue
		}
		rewritten = true
		call := &parse.CommandNode{NodeType: parse.NodeCommand, Pos: original.Position(), Args: []parse.Node{
			parse.NewIdentifier(methodFunction).SetPos(original.Position()),
			&parse.StringNode{NodeType: parse.NodeString, Pos: original.Position(), Quoted: "\"" + name + "\"", Text: name},
			from,
		}}
		from = &parse.PipeNode{NodeType: parse.NodePipe, Pos: original.Position(), Cmds: []*parse.CommandNode{call}}
	}
	if !rewritten {
		return original
	}
	return from
}
