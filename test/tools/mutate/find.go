package mutate

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
)

// mutant is one change of the code.
type mutant struct {
	id   int
	file string // from the project's top
	line int
	// key is how the list of survivors knows it, wherever its line is: the package, the function, what is done, the line.
	key      string
	edits    []edit
	closing  int    // where the innermost function around it ends
	block    bool   // a whole block is not run
	tests    []test // that reach it
	hung     bool
	survived bool
}

// find returns the mutants of a package, in the order of their lines.
func find(pkg *loaded, leftOut spared) []*mutant {
	var all []*mutant
	for _, s := range pkg.files {
		if leftOut.file(s.name) || ast.IsGenerated(s.file) {
			continue
		}
		f := &finder{
			pkg: pkg, source: s, lines: strings.Split(string(s.text), "\n"), spared: leftOut, first: len(all),
			negated: map[ast.Expr]bool{},
		}
		ast.Inspect(s.file, f.visit)
		slices.SortStableFunc(f.found, func(a, b *mutant) int { return a.line - b.line })
		all = append(all, f.found...)
	}
	return all
}

// finder walks over one file.
type finder struct {
	pkg     *loaded
	source  *source
	lines   []string
	spared  spared
	first   int        // the number of its first mutant
	parents []ast.Node // of the node at hand, the nearest last
	negated map[ast.Expr]bool
	found   []*mutant
}

func (f *finder) visit(n ast.Node) bool {
	if n == nil {
		f.parents = f.parents[:len(f.parents)-1]
		return true
	}
	if f.skipped(n) {
		return false
	}
	if e, ok := n.(ast.Expr); ok && f.pkg.info.Types[e].Value != nil {
		f.constant(e)
		return false
	}
	switch n := n.(type) {
	case *ast.BinaryExpr:
		f.binary(n)
	case *ast.IfStmt:
		f.branches(n)
	case *ast.ForStmt:
		f.negate(n.Cond)
	case *ast.CaseClause:
		f.branch(n)
	case *ast.ReturnStmt:
		f.results(n)
	case *ast.AssignStmt:
		f.sign(n)
		f.remove(n)
	case *ast.ExprStmt, *ast.IncDecStmt, *ast.BranchStmt:
		f.remove(n.(ast.Stmt))
	}
	f.parents = append(f.parents, n)
	return true
}

// skipped tells whether nothing within a node is changed.
func (f *finder) skipped(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.GenDecl:
		return n.Tok != token.VAR
	case *ast.ArrayType, *ast.FuncType, *ast.InterfaceType, *ast.MapType, *ast.StructType:
		return true
	case *ast.FuncDecl:
		return f.spared.function(f.pkg.dir, functionName(n))
	case *ast.CallExpr:
		return f.spared.call(f.callee(n))
	}
	return false
}

// callee is the full name of what is called, as in (*log/slog.Logger).Info; "" if it has none.
func (f *finder) callee(call *ast.CallExpr) string {
	var name *ast.Ident
	switch fun := ast.Unparen(call.Fun).(type) {
	case *ast.Ident:
		name = fun
	case *ast.SelectorExpr:
		name = fun.Sel
	default:
		return ""
	}
	if function, ok := f.pkg.info.Uses[name].(interface{ FullName() string }); ok {
		return function.FullName()
	}
	return ""
}

// add takes a mutant in: what is done, where, and the edits that do it, in which § stands for its number.
func (f *finder) add(what string, at ast.Node, edits ...edit) *mutant {
	line := f.pkg.fset.Position(at.Pos()).Line
	m := &mutant{id: f.first + len(f.found), file: f.source.name, line: line, edits: edits}
	for i := range edits {
		edits[i].number(m.id)
	}
	function := "package"
	for _, parent := range f.parents {
		switch parent := parent.(type) {
		case *ast.FuncDecl:
			function, m.closing = functionName(parent), f.offset(parent.Body.Rbrace)
		case *ast.FuncLit:
			m.closing = f.offset(parent.Body.Rbrace)
		}
	}
	m.key = strings.Join([]string{f.pkg.dir, function, what, strings.Join(strings.Fields(f.lines[line-1]), " ")}, " | ")
	f.found = append(f.found, m)
	return m
}

// wrap puts something before and after a node.
func (f *finder) wrap(n ast.Node, before, after string) edit {
	return edit{start: f.offset(n.Pos()), end: f.offset(n.End()), before: before, after: after}
}

func (f *finder) offset(pos token.Pos) int { return f.pkg.fset.Position(pos).Offset }

// text is a node as a person writes it, on one line and not too long.
func (f *finder) text(n ast.Node) string {
	const longest = 80
	text := strings.Join(strings.Fields(string(f.source.text[f.offset(n.Pos()):f.offset(n.End())])), " ")
	if runes := []rune(text); len(runes) > longest {
		return string(runes[:longest]) + "…"
	}
	return text
}

// parent is the node around the one at hand.
func (f *finder) parent() ast.Node { return f.parents[len(f.parents)-1] }

// functionName is a function's name, for a method with its type's: Agent.loop.
func functionName(decl *ast.FuncDecl) string {
	if decl.Recv == nil || len(decl.Recv.List) == 0 {
		return decl.Name.Name
	}
	receiver := decl.Recv.List[0].Type
	for {
		switch r := receiver.(type) {
		case *ast.StarExpr:
			receiver = r.X
		case *ast.IndexExpr:
			receiver = r.X
		case *ast.IndexListExpr:
			receiver = r.X
		case *ast.Ident:
			return r.Name + "." + decl.Name.Name
		default:
			return decl.Name.Name
		}
	}
}

// choose returns the mutants of one file or line, "fold.go" or "fold.go:31", or all of them.
func choose(all []*mutant, only string) []*mutant {
	if only == "" {
		return all
	}
	file, line, lined := strings.Cut(only, ":")
	return slices.DeleteFunc(slices.Clone(all), func(m *mutant) bool {
		return m.file != file && !strings.HasSuffix(m.file, "/"+file) || lined && line != itoa(m.line)
	})
}
