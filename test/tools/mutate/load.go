package mutate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
)

// loaded is a package, read and type-checked.
type loaded struct {
	dir       string // from the project's top, with slashes
	at        string // the same, absolute
	path      string // as it is imported
	goVersion string
	fset      *token.FileSet
	files     []*source
	info      *types.Info
	imports   types.Importer
}

// source is one of its files.
type source struct {
	name string // from the project's top
	at   string // the same, absolute
	text []byte
	file *ast.File
}

// listed is what go list says of a package.
type listed struct {
	ImportPath, Dir, Export string
	DepOnly                 bool
	GoFiles                 []string
	Module                  *struct{ GoVersion string }
}

func load(ctx context.Context, top, dir string) (*loaded, error) {
	at, err := filepath.Abs(filepath.Join(top, filepath.FromSlash(dir)))
	if err != nil {
		return nil, err
	}
	own, exports, err := list(ctx, at)
	if err != nil {
		return nil, err
	}
	if len(own.GoFiles) == 0 {
		return nil, fmt.Errorf("%s has no code to change", dir)
	}
	pkg := &loaded{dir: dir, at: own.Dir, path: own.ImportPath, fset: token.NewFileSet()}
	if own.Module.GoVersion != "" {
		pkg.goVersion = "go" + own.Module.GoVersion
	}
	pkg.imports = importer.ForCompiler(pkg.fset, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("go list has no export data of %s", path)
		}
		return os.Open(exports[path])
	})
	for _, name := range own.GoFiles {
		s := &source{name: path.Join(dir, name), at: filepath.Join(own.Dir, name)}
		if s.text, err = os.ReadFile(s.at); err != nil {
			return nil, err
		}
		s.file, err = parser.ParseFile(pkg.fset, s.at, s.text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		pkg.files = append(pkg.files, s)
	}
	pkg.info = &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{},
	}
	var files []*ast.File
	for _, s := range pkg.files {
		files = append(files, s.file)
	}
	if faults := pkg.check(pkg.fset, files, pkg.info); len(faults) > 0 {
		return nil, faults[0]
	}
	return pkg, nil
}

// list asks go for the package, and for the export data of all that it, or what is added to it, imports.
func list(ctx context.Context, at string) (own listed, exports map[string]string, err error) {
	args := append([]string{"list", "-export", "-deps", "-json=ImportPath,Dir,Export,DepOnly,GoFiles,Module", "."}, switchImports...)
	cmd := exec.CommandContext(ctx, "go", args...)
	var stderr bytes.Buffer
	cmd.Dir, cmd.Stderr = at, &stderr
	output, err := cmd.Output()
	if err != nil {
		return own, nil, fmt.Errorf("asking go for the package: %w\n%s", err, stderr.String())
	}
	exports = map[string]string{}
	for decoder := json.NewDecoder(bytes.NewReader(output)); ; {
		var p listed
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return own, exports, nil
		}
		if err != nil {
			return own, nil, fmt.Errorf("reading what go says of the package: %w", err)
		}
		exports[p.ImportPath] = p.Export
		if p.Module != nil && !p.DepOnly { // The others that were asked for are of the standard library.
			own = p
		}
	}
}

// switchAt is where the file of switches would be.
func (pkg *loaded) switchAt() string { return filepath.Join(pkg.at, switchFile) }

// check type-checks a version of the package and returns what is wrong with it.
func (pkg *loaded) check(fset *token.FileSet, files []*ast.File, info *types.Info) (faults []types.Error) {
	checker := types.Config{
		Importer: pkg.imports, GoVersion: pkg.goVersion,
		Error: func(err error) {
			if fault, ok := errors.AsType[types.Error](err); ok {
				faults = append(faults, fault)
			}
		},
	}
	_, _ = checker.Check(pkg.path, fset, files, info) // the first of the faults
	return faults
}
