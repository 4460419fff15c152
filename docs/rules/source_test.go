package rules_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// module is the product's module path, and top is its directory, from here.
const (
	module = "github.com/nth-project/nth"
	top    = "../.."
)

// source is one Go file.
type source struct {
	path string // from the project's top, with slashes
	fset *token.FileSet
	file *ast.File
}

// dir is the file's package, from the project's top.
func (s source) dir() string { return path.Dir(s.path) }

// test tells whether the file is part of no program: a test, or a package for tests, which like httptest has a name
// that ends so, or the lab.
func (s source) test() bool {
	return strings.HasSuffix(s.path, "_test.go") || strings.HasSuffix(s.dir(), "test") || s.lab()
}

// lab tells whether the file belongs to the modules below test/.
func (s source) lab() bool { return strings.HasPrefix(s.path, "test/") }

// at tells where something of the file is.
func (s source) at(pos token.Pos) string {
	return fmt.Sprintf("%s:%d", s.path, s.fset.Position(pos).Line)
}

// tree is all of the project. Of the functions that are used, types tells which they are, whatever the importing file calls them.
type tree struct {
	sources []source
	types   func() (*types.Info, error)
}

// resolve finds out what each identifier of the programs' packages stands for.
func resolve(fset *token.FileSet, sources []source) (*types.Info, error) {
	compiled, err := exported()
	if err != nil {
		return nil, err
	}
	config := types.Config{Importer: importer.ForCompiler(fset, "gc", func(imported string) (io.ReadCloser, error) {
		return os.Open(compiled[imported])
	})}
	packages := map[string][]*ast.File{}
	for _, s := range sources {
		if !s.test() {
			packages[s.dir()] = append(packages[s.dir()], s.file)
		}
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	for dir, files := range packages {
		if _, err := config.Check(module+"/"+dir, fset, files, info); err != nil {
			return nil, err
		}
	}
	return info, nil
}

// exported returns where the compiler has put what each package exports. The linter leaves it there, for the same flags.
var exported = sync.OnceValues(func() (map[string]string, error) {
	output, err := list("-export", "-deps", "-json=ImportPath,Export", "./...")
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	for decoder := json.NewDecoder(bytes.NewReader(output)); ; {
		var pkg struct{ ImportPath, Export string }
		if err := decoder.Decode(&pkg); err == io.EOF {
			return files, nil
		} else if err != nil {
			return nil, err
		}
		files[pkg.ImportPath] = pkg.Export
	}
})

// read returns the text of a file, whose path is from the project's top.
func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(top, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func list(args ...string) ([]byte, error) {
	command := exec.Command("go", append([]string{"list"}, args...)...)
	command.Dir, command.Env = top, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath")
	var stderr bytes.Buffer
	command.Stderr = &stderr
	output, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, stderr.String())
	}
	return output, nil
}

// uses returns the mentions, called or not, of functions, methods and package variables in the sources of the programs that
// given picks, and that are of interest by their package and name, as in "os.Exit" and "k8s.io/client-go/rest.Interface.Post".
func (t tree) uses(given func(source) bool, interesting func(name string, object types.Object) bool) ([]use, error) {
	info, err := t.types()
	if err != nil {
		return nil, err
	}
	var found []use
	for _, s := range t.sources {
		if s.test() || !given(s) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				if object := info.Uses[id]; object != nil && object.Pkg() != nil {
					if name := fullName(object); interesting(name, object) {
						found = append(found, use{name, s.dir(), s.at(id.Pos())})
					}
				}
			}
			return true
		})
	}
	return found, nil
}

func fullName(object types.Object) string {
	if function, ok := object.(*types.Func); ok {
		return strings.NewReplacer("(", "", "*", "", ")", "").Replace(function.FullName())
	}
	return object.Pkg().Path() + "." + object.Name() // For a field, without its struct.
}

// imports returns what the file imports, and where.
func (s source) imports() []use {
	var found []use
	for _, spec := range s.file.Imports {
		imported, _ := strconv.Unquote(spec.Path.Value) // It was parsed.
		found = append(found, use{imported, s.dir(), s.at(spec.Pos())})
	}
	return found
}

// project returns all of the project's own Go files.
func project(t *testing.T) tree {
	t.Helper()
	read, err := readProject()
	if err != nil {
		t.Fatal(err)
	}
	return read
}

var readProject = sync.OnceValues(func() (tree, error) {
	var read tree
	fset := token.NewFileSet()
	err := filepath.WalkDir(top, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		hidden := strings.HasPrefix(entry.Name(), ".") && file != top
		if entry.IsDir() && (hidden || slices.Contains([]string{"bin", "dist", "testdata"}, entry.Name())) {
			return filepath.SkipDir
		}
		if entry.IsDir() || hidden || filepath.Ext(file) != ".go" {
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil || bytes.HasPrefix(text, []byte("//go:build manual\n")) { // This is run by packaging/build, and linked into no program that is installed.
			return err
		}
		name := filepath.ToSlash(strings.TrimPrefix(file, top+"/"))
		parsed, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
		read.sources = append(read.sources, source{name, fset, parsed})
		return err
	})
	read.types = sync.OnceValues(func() (*types.Info, error) { return resolve(fset, read.sources) })
	return read, err
})
