package mutate

import (
	"fmt"
	"go/ast"
	"os"
	"path"
	"strings"
)

// An entry is a subject on a line of its own, and below it, indented, the reason. Lines that begin with # are comments.
type entry struct {
	subject, reason string
}

type entries []entry

// readEntries reads a list that is written by hand.
func readEntries(name string) (entries, error) {
	if name == "" {
		return nil, nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("reading the list: %w", err)
	}
	var all entries
	for number, line := range strings.Split(string(text), "\n") {
		indented := strings.HasPrefix(line, " ") || strings.HasPrefix(line, "\t")
		line = strings.TrimSpace(line)
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case !indented:
			all = append(all, entry{subject: line})
		case len(all) == 0:
			return nil, fmt.Errorf("reading %s: line %d: a reason of nothing", name, number+1)
		default:
			last := &all[len(all)-1]
			last.reason = strings.TrimSpace(last.reason + " " + line)
		}
	}
	for _, e := range all {
		if e.reason == "" {
			return nil, fmt.Errorf("reading %s: no reason is given for: %s", name, e.subject)
		}
	}
	return all, nil
}

// of returns the entry of a mutant, and whether there is one.
func (all entries) of(m *mutant) (entry, bool) {
	for _, e := range all {
		if e.subject == m.key {
			return e, true
		}
	}
	return entry{}, false
}

// equivalent tells whether the reason says that the mutant does what the code does: no test can notice it.
func (e entry) equivalent() bool { return strings.HasPrefix(e.reason, "equivalent:") }

// spared is the code that is not changed. A subject is one of
//
//	file pkg/agent/tell.go
//	func pkg/agent.Agent.logMessage
//	call (*github.com/sirupsen/logrus.Entry).*
//
// where * stands for whatever comes after. A call is spared with its arguments.
type spared struct{ entries }

func (s spared) file(name string) bool { return s.has("file", name) }

func (s spared) function(dir, name string) bool { return s.has("func", dir+"."+name) }

func (s spared) call(name string) bool { return name != "" && s.has("call", name) }

func (s spared) has(what, name string) bool {
	for _, e := range s.entries {
		kind, pattern, _ := strings.Cut(e.subject, " ")
		prefix, open := strings.CutSuffix(pattern, "*")
		if kind == what && (pattern == name || open && strings.HasPrefix(name, prefix)) {
			return true
		}
	}
	return false
}

// unmet returns the subjects that spare nothing, of those that name a package's file or function.
func (s spared) unmet(pkg *loaded) []string {
	known := map[string]bool{}
	for _, f := range pkg.files {
		known["file "+f.name] = true
		for _, decl := range f.file.Decls {
			if function, ok := decl.(*ast.FuncDecl); ok {
				known["func "+pkg.dir+"."+functionName(function)] = true
			}
		}
	}
	var unmet []string
	for _, e := range s.entries {
		kind, name, _ := strings.Cut(e.subject, " ")
		ours := kind == "file" && path.Dir(name) == pkg.dir || kind == "func" && strings.HasPrefix(name, pkg.dir+".")
		if ours && !strings.HasSuffix(name, "*") && !known[e.subject] {
			unmet = append(unmet, e.subject)
		}
	}
	return unmet
}
