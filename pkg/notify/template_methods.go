package notify

import (
	"fmt"
	"reflect"
	"text/template/parse"
	"time"
)

// The template engine is the standard library's without the calling of methods: with it, the linker would have to keep
// every exported method of every type of the program, which makes it two thirds larger. The only methods that a template
// has use for are those of times and durations. So what may be a call of one is turned into that of a function when the template is
// read: {{ .StartTime.Format "15:04" }} becomes {{ method "Format" .StartTime "15:04" }}.

// methodFunction is the name of that function.
const methodFunction = "method"

// methods are those that a template can call, by what they are called on: all of a time, a duration and what these give, but for
// those that give bytes, or several values, which no template can use.
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

// mayBeMethod tells whether a name is a method's of anything. What it is follows from what it stands behind: of a map it is a key.
func mayBeMethod(name string) bool {
	for _, named := range methods {
		if named[name] != nil {
			return true
		}
	}
	return false
}

// callMethod is the function. A key that is not there gives no value, as everywhere in a template.
func callMethod(name string, receiver any, args ...any) (reflect.Value, error) {
	on := reflect.ValueOf(receiver)
	if receiver != nil {
		if method := methods[on.Type()][name]; method != nil {
			return call(reflect.ValueOf(method), name, append([]any{receiver}, args...))
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

// call calls a method, whose receiver is its first argument. Numbers of a template are those that the method takes.
func call(method reflect.Value, name string, args []any) (reflect.Value, error) {
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

// rewrite turns what may be calls of methods below a node into calls of the function.
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

// rewriteCommand takes the operands of a command one by one. The first, if it is a call, takes the others with it.
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

// rewriteOperand takes one operand: a way through fields, from the dot, a variable or something in parentheses.
func rewriteOperand(node parse.Node) parse.Node {
	switch n := node.(type) {
	case *parse.PipeNode:
		rewrite(n)
	case *parse.FieldNode:
		return follow(&parse.DotNode{NodeType: parse.NodeDot, Pos: n.Pos}, n, n.Ident)
	case *parse.VariableNode:
		variable := *n
		variable.Ident = n.Ident[:1]
		return follow(&variable, n, n.Ident[1:])
	case *parse.ChainNode:
		rewrite(n.Node)
		return follow(n.Node, n, n.Field)
	}
	return node
}

// follow goes from a node along names; as is the node that says the same, if no name may be a method's.
func follow(from, as parse.Node, names []string) parse.Node {
	methods := false
	for _, name := range names {
		if !mayBeMethod(name) {
			from = &parse.ChainNode{NodeType: parse.NodeChain, Pos: as.Position(), Node: from, Field: []string{name}}
			continue
		}
		methods = true
		call := &parse.CommandNode{NodeType: parse.NodeCommand, Pos: as.Position(), Args: []parse.Node{
			parse.NewIdentifier(methodFunction).SetPos(as.Position()),
			&parse.StringNode{NodeType: parse.NodeString, Pos: as.Position(), Quoted: "\"" + name + "\"", Text: name},
			from,
		}}
		from = &parse.PipeNode{NodeType: parse.NodePipe, Pos: as.Position(), Cmds: []*parse.CommandNode{call}}
	}
	if !methods {
		return as
	}
	return from
}
