package mutate

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"slices"
	"strconv"
	"strings"
)

// edit puts text around a piece of a file, or in its place. Pieces lie within each other or apart, so that any number of
// edits go together. No text has a line end: what is rewritten keeps its line.
type edit struct {
	start, end    int // offsets
	before, after string
	replaces      bool // before stands for the piece
}

func (e *edit) number(id int) {
	e.before = strings.ReplaceAll(e.before, "§", itoa(id))
	e.after = strings.ReplaceAll(e.after, "§", itoa(id))
}

// rewrite returns the texts of the package's files, by their names, with all mutants in them, and the mutants. Those that
// the type checker does not take are left out.
func rewrite(pkg *loaded, mutants []*mutant) (map[string]string, []*mutant, error) {
	count := len(mutants)
	for {
		texts, origins := map[string]string{}, map[string][]chunk{}
		for _, s := range pkg.files {
			var edits []edit
			for _, m := range mutants {
				if m.file == s.name {
					edits = append(edits, m.edits...)
				}
			}
			texts[s.at], origins[s.at] = render(s.text, edits)
		}
		texts[pkg.switchAt()] = fmt.Sprintf("package %s%s\nconst mutantCount = %d\n", pkg.files[0].file.Name.Name, switchText, count+1)
		fset := token.NewFileSet()
		faults, err := pkg.faults(fset, texts)
		if err != nil || len(faults) == 0 {
			return texts, mutants, err
		}
		var refused []*mutant
		for _, fault := range faults {
			at := fset.Position(fault.Pos)
			if m := culprit(mutants, pkg.nameOf(at.Filename), origin(origins[at.Filename], at.Offset)); m != nil {
				refused = append(refused, m)
			}
		}
		if len(refused) == 0 {
			return nil, nil, fmt.Errorf("checking the rewritten package: %w", faults[0])
		}
		mutants = slices.DeleteFunc(slices.Clone(mutants), func(m *mutant) bool { return slices.Contains(refused, m) })
	}
}

func (pkg *loaded) faults(fset *token.FileSet, texts map[string]string) ([]types.Error, error) {
	var files []*ast.File
	for name, text := range texts {
		file, err := parser.ParseFile(fset, name, text, parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("parsing the rewritten package: %w", err)
		}
		files = append(files, file)
	}
	return pkg.check(fset, files, nil), nil
}

func (pkg *loaded) nameOf(at string) string {
	for _, s := range pkg.files {
		if s.at == at {
			return s.name
		}
	}
	return ""
}

// culprit is the innermost mutant around a place; at the end of a function, which then lacks a return, one whose block
// is no longer a function's sure end.
func culprit(mutants []*mutant, file string, offset int) *mutant {
	var best *mutant
	narrowest := 0
	for _, m := range mutants {
		if m.file != file {
			continue
		}
		if m.closing == offset && m.block {
			return m
		}
		for _, e := range m.edits {
			if width := e.end - e.start; e.start <= offset && offset <= e.end && (best == nil || width < narrowest) {
				best, narrowest = m, width
			}
		}
	}
	return best
}

// chunk is a piece of the original in the rewritten text.
type chunk struct{ rewritten, original int }

// origin is where in the original the given place of the rewritten text comes from.
func origin(chunks []chunk, offset int) int {
	place := 0
	for i, c := range chunks {
		if c.rewritten > offset {
			break
		}
		place = c.original + offset - c.rewritten
		if i+1 < len(chunks) {
			place = min(place, chunks[i+1].original)
		}
	}
	return place
}

// render makes the edits.
func render(text []byte, edits []edit) (string, []chunk) {
	type insertion struct {
		at      int
		closing bool
		width   int // of the piece around which it goes
		order   int
		text    string
		skip    int // bytes of the original that it replaces
	}
	var all []insertion
	for i, e := range edits {
		width := e.end - e.start
		if e.replaces {
			all = append(all, insertion{at: e.start, width: width, order: i, text: e.before, skip: width})
			continue
		}
		all = append(all,
			insertion{at: e.start, width: width, order: i, text: e.before},
			insertion{at: e.end, closing: true, width: width, order: i, text: e.after})
	}
	// What ends at a place ends before anything begins there, the innermost first; what begins, the outermost first.
	slices.SortFunc(all, func(a, b insertion) int {
		switch {
		case a.at != b.at:
			return a.at - b.at
		case a.closing != b.closing && a.closing:
			return -1
		case a.closing != b.closing:
			return 1
		case a.closing && a.width != b.width:
			return a.width - b.width
		case a.closing:
			return b.order - a.order
		case a.width != b.width:
			return b.width - a.width
		}
		return a.order - b.order
	})
	var out strings.Builder
	var chunks []chunk
	done := 0
	for _, i := range all {
		chunks = append(chunks, chunk{out.Len(), done})
		out.Write(text[done:i.at])
		out.WriteString(i.text)
		done = i.at + i.skip
	}
	chunks = append(chunks, chunk{out.Len(), done})
	out.Write(text[done:])
	return out.String(), chunks
}

func itoa(n int) string { return strconv.Itoa(n) }
