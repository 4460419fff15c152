package notify

import (
	"fmt"
	"text/template/parse"
	"time"
)

// The template engine is the standard library's without the calling of methods: with it, the linker would have to keep
// every exported method of every type of the program, which makes it two thirds larger. The only methods that a template
// has use for are those of times and durations. So a call of one is turned into that of a function when the template is
// read: {{ .StartTime.Format "15:04" }} becomes {{ method "Format" .StartTime "15:04" }}.

// methodFunction is the name of that function.
const methodFunction = "method"

// timeMethods and durationMethods are the methods without arguments.
var (
	timeMethods = map[string]func(time.Time) any{
		"Day":       func(t time.Time) any { return t.Day() },
		"Hour":      func(t time.Time) any { return t.Hour() },
		"IsZero":    func(t time.Time) any { return t.IsZero() },
		"Local":     func(t time.Time) any { return t.Local() },
		"Minute":    func(t time.Time) any { return t.Minute() },
		"Month":     func(t time.Time) any { return t.Month() },
		"Second":    func(t time.Time) any { return t.Second() },
		"String":    func(t time.Time) any { return t.String() },
		"UTC":       func(t time.Time) any { return t.UTC() },
		"Unix":      func(t time.Time) any { return t.Unix() },
		"UnixMilli": func(t time.Time) any { return t.UnixMilli() },
		"Weekday":   func(t time.Time) any { return t.Weekday() },
		"Year":      func(t time.Time) any { return t.Year() },
	}
	durationMethods = map[string]func(time.Duration) any{
		"Hours":        func(d time.Duration) any { return d.Hours() },
		"Milliseconds": func(d time.Duration) any { return d.Milliseconds() },
		"Minutes":      func(d time.Duration) any { return d.Minutes() },
		"Seconds":      func(d time.Duration) any { return d.Seconds() },
		"String":       func(d time.Duration) any { return d.String() },
	}
)

// isMethod tells whether a name is that of a method and not of a field.
func isMethod(name string) bool {
	switch name {
	case "Format", "Sub", "Add":
		return true
	}
	return timeMethods[name] != nil || durationMethods[name] != nil
}

// callMethod is the function.
func callMethod(name string, receiver any, args ...any) (any, error) {
	var method func() any
	switch r := receiver.(type) {
	case time.Time:
		method = ofTime(name, r, args)
	case time.Duration:
		if m := durationMethods[name]; m != nil && len(args) == 0 {
			method = func() any { return m(r) }
		}
	}
	if method == nil {
		return nil, fmt.Errorf("%T has no %s that takes %d arguments of these types", receiver, name, len(args))
	}
	return method(), nil
}

func ofTime(name string, t time.Time, args []any) func() any {
	if len(args) == 0 {
		if m := timeMethods[name]; m != nil {
			return func() any { return m(t) }
		}
		return nil
	}
	switch arg := args[0].(type) {
	case string:
		if name == "Format" && len(args) == 1 {
			return func() any { return t.Format(arg) }
		}
	case time.Time:
		if name == "Sub" && len(args) == 1 {
			return func() any { return t.Sub(arg) }
		}
	case time.Duration:
		if name == "Add" && len(args) == 1 {
			return func() any { return t.Add(arg) }
		}
	}
	return nil
}

// rewrite turns the calls of methods below a node into calls of the function.
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

// follow goes from a node along names; as is the node that says the same, if no name is a method's.
func follow(from, as parse.Node, names []string) parse.Node {
	methods := false
	for _, name := range names {
		if !isMethod(name) {
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
