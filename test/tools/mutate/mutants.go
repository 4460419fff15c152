package mutate

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
)

// negate flips a boolean: a condition, an operand of && or ||, a result. What is made of && and || is left to its
// operands and operators: to flip all of it is noticed by whatever notices one of them.
func (f *finder) negate(e ast.Expr) {
	for e != nil {
		if not, ok := e.(*ast.UnaryExpr); ok && not.Op == token.NOT {
			e = not.X
		} else if parens, ok := e.(*ast.ParenExpr); ok {
			e = parens.X
		} else {
			break
		}
	}
	if e == nil || f.negated[e] || !f.isBool(e) || f.spares(e) {
		return
	}
	if binary, ok := e.(*ast.BinaryExpr); ok && (binary.Op == token.LAND || binary.Op == token.LOR) {
		return
	}
	f.negated[e] = true
	f.add("negate "+f.text(e), e, f.wrap(e, "((", ") != mutantOn(§))"))
}

func (f *finder) isBool(e ast.Expr) bool {
	basic, ok := f.pkg.info.TypeOf(e).(*types.Basic)
	return ok && basic.Info()&types.IsBoolean != 0
}

// spares tells whether an expression is a call that is to be left alone.
func (f *finder) spares(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	return ok && f.spared.call(f.callee(call))
}

// operators are the functions that stand for an operator, and the operator that each becomes.
var operators = map[token.Token]struct{ function, becomes string }{
	token.LSS: {"mutantLess", "<="}, token.LEQ: {"mutantAtMost", "<"},
	token.GTR: {"mutantMore", ">="}, token.GEQ: {"mutantAtLeast", ">"},
	token.ADD: {"mutantPlus", "-"}, token.SUB: {"mutantMinus", "+"},
	token.MUL: {"mutantTimes", "/"}, token.QUO: {"mutantBy", "*"}, token.REM: {"mutantRest", "*"},
}

// binary gives an operator its opposite or its neighbour. a && b becomes !(!a && !b), which is a || b, and b still waits
// for a.
func (f *finder) binary(n *ast.BinaryExpr) {
	switch n.Op {
	case token.LAND, token.LOR:
		other := map[token.Token]string{token.LAND: "||", token.LOR: "&&"}[n.Op]
		if f.isBool(n) && f.isBool(n.X) && f.isBool(n.Y) {
			flip := func(e ast.Expr) edit { return f.wrap(e, "((", ") != mutantOn(§))") }
			f.add(n.Op.String()+" becomes "+other+": "+f.text(n), n, flip(n), flip(n.X), flip(n.Y))
		}
		f.negate(n.X)
		f.negate(n.Y)
	case token.EQL, token.NEQ:
		f.negate(n)
	default:
		op, known := operators[n.Op]
		basic, ok := f.pkg.info.TypeOf(n.X).Underlying().(*types.Basic)
		if !known || !ok || basic.Info()&types.IsString != 0 && n.Op == token.ADD {
			return
		}
		start := f.offset(n.OpPos)
		comma := edit{start: start, end: start + len(n.Op.String()), before: ",", replaces: true}
		f.add(n.Op.String()+" becomes "+op.becomes+": "+f.text(n), n, f.wrap(n, op.function+"(§, ", ")"), comma)
	}
}

// sign turns += into -= and back.
func (f *finder) sign(n *ast.AssignStmt) {
	other := map[token.Token]string{token.ADD_ASSIGN: "-=", token.SUB_ASSIGN: "+="}[n.Tok]
	if other == "" {
		return
	}
	to, ok := f.pkg.info.TypeOf(n.Lhs[0]).Underlying().(*types.Basic)
	if !ok || to.Info()&(types.IsInteger|types.IsFloat) == 0 || !plain(n.Lhs[0]) {
		return
	}
	like := types.ExprString(n.Lhs[0])
	f.add(n.Tok.String()+" becomes "+other+": "+f.text(n), n, f.wrap(n.Rhs[0], "mutantSign(§, "+like+", ", ")"))
}

// plain tells whether an expression is a name, or one with dots, which can be written twice.
func plain(e ast.Expr) bool {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return true
		case *ast.SelectorExpr:
			e = x.X
		default:
			return false
		}
	}
}

// constant makes a number one more, a duration twice as long, and flips a boolean. Numbers with types of their own are
// mostly enumerations.
func (f *finder) constant(e ast.Expr) {
	parent := f.parent()
	if pair, ok := parent.(*ast.KeyValueExpr); ok && pair.Key == e {
		return // of an array, perhaps: it must stay a constant
	}
	if f.isBool(e) {
		if assign, ok := parent.(*ast.AssignStmt); !ok || assign.Tok != token.ASSIGN { // To remove it does the same.
			f.negate(e)
		}
		return
	}
	if f.pkg.info.TypeOf(e).String() == "time.Duration" {
		if constant.Sign(f.pkg.info.Types[e].Value) != 0 {
			f.add("longer: "+f.text(e), e, f.wrap(e, "mutantLonger(§, ", ")"))
		}
		return
	}
	// Next to < and its like, one more is what the neighbouring operator does.
	if binary, ok := parent.(*ast.BinaryExpr); ok && isOrder(binary.Op) {
		return
	}
	basic, ok := f.pkg.info.TypeOf(e).(*types.Basic)
	if ok && basic.Info()&(types.IsInteger|types.IsFloat) != 0 && basic.Info()&types.IsUntyped == 0 {
		f.add("one more than "+f.text(e), e, f.wrap(e, "mutantNext["+basic.Name()+"](§, ", ")"))
	}
}

func isOrder(op token.Token) bool {
	return op == token.LSS || op == token.LEQ || op == token.GTR || op == token.GEQ
}

// results flips the booleans that are returned, and returns nil for an error.
func (f *finder) results(n *ast.ReturnStmt) {
	for _, e := range n.Results {
		f.negate(e)
	}
	signature := f.signature()
	if signature == nil || len(n.Results) == 0 || signature.Results().Len() != len(n.Results) {
		return
	}
	last := n.Results[len(n.Results)-1]
	if signature.Results().At(len(n.Results)-1).Type().String() != "error" || f.pkg.info.Types[last].IsNil() || f.spares(last) {
		return
	}
	f.add("no error: "+f.text(last), n, f.wrap(last, "mutantNil(§, ", ")"))
}

// signature is that of the innermost function around the node at hand.
func (f *finder) signature() *types.Signature {
	for i := len(f.parents) - 1; i >= 0; i-- {
		var typ types.Type
		switch parent := f.parents[i].(type) {
		case *ast.FuncLit:
			typ = f.pkg.info.TypeOf(parent)
		case *ast.FuncDecl:
			if object := f.pkg.info.Defs[parent.Name]; object != nil {
				typ = object.Type()
			}
		default:
			continue
		}
		signature, _ := typ.(*types.Signature)
		return signature
	}
	return nil
}

// remove leaves out a statement: a call, an assignment, a ++ or --, a break or continue.
func (f *finder) remove(s ast.Stmt) {
	if f.removable(s) && f.inList(s) {
		f.add("remove "+f.text(s), s, f.wrap(s, "if !mutantOn(§) { ", " }"))
	}
}

func (f *finder) removable(s ast.Stmt) bool {
	switch s := s.(type) {
	case *ast.ExprStmt:
		call, ok := s.X.(*ast.CallExpr)
		return ok && !f.spares(call)
	case *ast.AssignStmt:
		return s.Tok != token.DEFINE && !blank(s)
	case *ast.BranchStmt:
		return s.Tok == token.BREAK || s.Tok == token.CONTINUE
	case *ast.IncDecStmt:
		return true
	}
	return false
}

// blank tells whether an assignment does nothing: _ = x.
func blank(s *ast.AssignStmt) bool {
	for _, e := range s.Lhs {
		if name, ok := e.(*ast.Ident); !ok || name.Name != "_" {
			return false
		}
	}
	for _, e := range s.Rhs {
		if _, ok := e.(*ast.CallExpr); ok {
			return false
		}
	}
	return true
}

// inList tells whether a statement is one of a list, and not in the head of an if or a for.
func (f *finder) inList(s ast.Stmt) bool {
	switch parent := f.parent().(type) {
	case *ast.BlockStmt, *ast.CaseClause:
		return true
	case *ast.CommClause:
		return parent.Comm != s
	}
	return false
}

// branches negates the condition of an if, and leaves out what it leads to.
func (f *finder) branches(n *ast.IfStmt) {
	f.negate(n.Cond)
	f.removeBlock(n, "remove the body of if "+f.text(n.Cond), n.Body.List)
	if other, ok := n.Else.(*ast.BlockStmt); ok {
		f.removeBlock(other, "remove the else of if "+f.text(n.Cond), other.List)
	}
}

// branch does the same to a case of a switch.
func (f *finder) branch(n *ast.CaseClause) {
	name := "default"
	for i, e := range n.List {
		f.negateCase(e)
		if i == 0 {
			name = "case " + f.text(e)
		}
	}
	f.removeBlock(n, "remove the body of "+name, n.Body)
}

// negateCase negates a case of a switch without a tag.
func (f *finder) negateCase(e ast.Expr) {
	if outer, ok := f.parents[len(f.parents)-2].(*ast.SwitchStmt); ok && outer.Tag == nil {
		f.negate(e)
	}
}

// removeBlock leaves out a list of statements, unless it is a single one that is left out anyway.
func (f *finder) removeBlock(at ast.Node, what string, list []ast.Stmt) {
	if len(list) == 0 || len(list) == 1 && (f.removable(list[0]) || f.sparesStatement(list[0])) {
		return
	}
	first, last := list[0], list[len(list)-1]
	if through, ok := last.(*ast.BranchStmt); ok && through.Tok == token.FALLTHROUGH {
		return
	}
	body := edit{start: f.offset(first.Pos()), end: f.offset(last.End()), before: "if !mutantOn(§) { ", after: " }"}
	f.add(what, at, body).block = true
}

// sparesStatement tells whether a statement is nothing but a call that is to be left alone.
func (f *finder) sparesStatement(s ast.Stmt) bool {
	expression, ok := s.(*ast.ExprStmt)
	return ok && f.spares(expression.X)
}
