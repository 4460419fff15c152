package notify

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"reflect"
	"strings"
	"text/template/parse"
	"time"

	template "github.com/DataDog/datadog-agent/pkg/template/text"
	"github.com/Masterminds/sprig/v3"
)

// defaultTemplate is understood by Slack, Mattermost, Rocket.Chat and compatible services.
const defaultTemplate = `{"text": "{{ escapeSlack .Text }}"}`

// maxTextSize bounds a message, in bytes.
const maxTextSize = 128 << 10

// Template renders Fields as messages.
type Template struct{ parsed *template.Template }

// CompileTemplate compiles a template, or nth's own if the text is empty. It renders a notice of every kind and outcome:
// the error names the line that fails for one of them, or is not JSON although the content type says so. The name of the template is used in errors.
func CompileTemplate(name, text, contentType string) (*Template, error) {
	if text == "" {
		text = defaultTemplate
	}
	if len(text) > maxTemplateSize {
		return nil, fmt.Errorf("%s: it is longer than %d bytes", name, maxTemplateSize)
	}
	parsed, err := template.New(name).Funcs(functions()).Parse(text)
	if err != nil {
		return nil, templateError(err)
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
				name, sample.Outcome, jsonError(rendered))
		}
	}
	if silent {
		return nil, fmt.Errorf("%s: it gives nothing, for no notice", name)
	}
	return t, nil
}

// Render renders one message. It is empty if the template gives nothing but space: then there is nothing to post.
func (t *Template) Render(f Fields) (string, error) {
	into := &boundedText{}
	if err := t.parsed.Execute(into, f); err != nil {
		return "", templateError(err)
	}
	if strings.TrimSpace(into.text.String()) == "" {
		return "", nil
	}
	return into.text.String(), nil
}

// boundedText is an io.Writer that fails beyond maxTextSize.
type boundedText struct{ text strings.Builder }

var errTooLong = fmt.Errorf("it gives more than %d bytes", maxTextSize)

func (b *boundedText) Write(p []byte) (int, error) {
	if b.text.Len()+len(p) > maxTextSize {
		return 0, errTooLong
	}
	return b.text.Write(p)
}

// templateError removes the prefix of text/template's errors, which name the template, the line and the place.
func templateError(err error) error {
	return errors.New(strings.TrimPrefix(err.Error(), "template: "))
}

func isJSON(contentType string) bool {
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && (media == "application/json" || strings.HasSuffix(media, "+json"))
}

func jsonError(text string) error {
	var whole json.RawMessage
	err := json.Unmarshal([]byte(text), &whole)
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		line := 1 + strings.Count(text[:min(int(syntax.Offset), len(text))], "\n")
		return fmt.Errorf("line %d of the message: %w", line, err)
	}
	return err
}

// unsuitable are functions of sprig that give another result at each call, so that a notice would change from one attempt to the next,
// or generate keys, which takes seconds.
var unsuitable = []string{
	"bcrypt", "derivePassword", "encryptAES", "genCA", "genCAWithKey", "genPrivateKey", "genSelfSignedCert", "genSelfSignedCertWithKey",
	"genSignedCert", "genSignedCertWithKey", "htpasswd", "randInt", "shuffle",
}

// multiplying are the functions whose result grows with a number, and maxFactor is the largest number that they accept: a typo
// must not use up the memory of the node.
var multiplying = []string{"indent", "nindent", "repeat", "seq", "until", "untilStep"}

const maxFactor = 10_000

// slackEscapes keep a text from being a mention or a link in Slack's markup, which begin with "<", and teamsEscapes from being a link in
// the Markdown of Teams' cards, which knows no escapes in a table of facts.
var (
	slackEscapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")
	teamsEscapes = strings.NewReplacer("[", "(", "]", ")")
)

// functions returns sprig's hermetic functions, which read neither the environment nor the network and give no random values, and those
// about time, which are not hermetic as they read the clock.
func functions() map[string]any {
	all, some := sprig.TxtFuncMap(), sprig.HermeticTxtFuncMap()
	for _, name := range []string{
		"now", "date", "dateInZone", "date_in_zone", "dateModify", "date_modify", "htmlDate", "htmlDateInZone",
	} {
		some[name] = all[name]
	}
	for _, name := range unsuitable {
		delete(some, name)
	}
	for _, name := range multiplying {
		some[name] = limited(name, reflect.ValueOf(some[name]))
	}
	some["escapeSlack"], some["escapeTeams"] = slackEscapes.Replace, teamsEscapes.Replace
	some[methodFunction] = callMethod
	return some
}

// limited wraps a function of numbers and texts. It refuses to make more than a message has room for.
func limited(name string, f reflect.Value) func(args ...any) (any, error) {
	takes := f.Type()
	wanted := func(i int) reflect.Type {
		if last := takes.NumIn() - 1; i >= last && takes.IsVariadic() {
			return takes.In(last).Elem()
		}
		return takes.In(i)
	}
	return func(args ...any) (any, error) {
		if !takes.IsVariadic() && len(args) != takes.NumIn() {
			return nil, fmt.Errorf("%s takes %d arguments, not %d", name, takes.NumIn(), len(args))
		}
		values, times, length := make([]reflect.Value, len(args)), int64(1), int64(1)
		for i, arg := range args {
			value, want := reflect.ValueOf(arg), wanted(i)
			switch number := value.CanInt() && want.Kind() == reflect.Int; {
			case number && (value.Int() < -maxFactor || value.Int() > maxFactor):
				return nil, fmt.Errorf("%s takes numbers up to %d, not %d", name, maxFactor, arg)
			case number:
				times = max(times, value.Int())
			case value.Kind() == reflect.String && want.Kind() == reflect.String:
				length = max(length, int64(value.Len()))
			default:
				return nil, fmt.Errorf("%s takes no %T there", name, arg)
			}
			values[i] = value.Convert(want)
		}
		if times*length > maxTextSize {
			return nil, errTooLong
		}
		return f.Call(values)[0].Interface(), nil
	}
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

// rewrite turns possible method calls below a node into calls of methodFunction.
func rewrite(node parse.Node) {
	switch n := node.(type) {
	case *parse.ListNode:
		if n == nil {
			return
		}
		for _, child := range n.Nodes {
			rewrite(child)
		}
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
